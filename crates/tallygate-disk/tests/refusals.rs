//! Directories that cannot be used: each a clear error with the remedy, and nothing in them is changed.

use std::fs;
use std::path::Path;

use tallygate::{Limiter, MemoryStore};
use tallygate_disk::OpenError;

fn open(directory: &Path) -> Result<(MemoryStore, tallygate_disk::Saver), OpenError> {
    tallygate_disk::open(directory, MemoryStore::builder())
}

/// A directory in which a thousand keys were saved.
fn saved() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let (store, mut saver) = open(directory.path()).unwrap();
    let limiter = Limiter::new(store);
    let limit = limiter.limit("p", "5/day").unwrap();
    for subject in 0..1000 {
        limit.check_now(&subject.to_string()).unwrap();
    }
    saver.save(limiter.store()).unwrap();
    directory
}

#[test]
fn a_directory_that_is_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let first = open(directory.path()).unwrap();
    let error = open(directory.path()).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }) && error.to_string().contains("stop that process"), "{error}");
    drop(first);
    open(directory.path()).unwrap();
}

#[test]
fn a_file_instead_of_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, "text").unwrap();
    let error = open(&path).unwrap_err();
    assert!(matches!(error, OpenError::Unusable { .. }) && error.to_string().contains("read and write"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"text");
}

#[test]
fn a_file_that_is_something_else() {
    for contents in [&b""[..], b"text", &[0; 4096], &[0xff; 65_536]] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tallygate.redb");
        fs::write(&path, contents).unwrap();
        let error = open(directory.path()).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }) && error.to_string().contains("backup"), "{error}");
        assert!(fs::read(&path).unwrap() == contents);
    }
}

/// A file that was cut or in which bits have changed is refused, or what was in it is found; it is never taken for a new one.
#[test]
fn a_damaged_file_is_refused_or_whole() {
    let whole = saved();
    let bytes = fs::read(whole.path().join("tallygate.redb")).unwrap();
    let mut refused = 0;
    let pages = bytes.len() / 4096;
    let damages = (0..pages).map(|page| (page * 4096 + 97 * page % 4096, false));
    let cuts = [4096, bytes.len() / 2, bytes.len() - 4096].map(|at| (at, true));
    for (at, cut) in damages.chain(cuts) {
        let mut damaged = bytes.clone();
        match cut {
            true => damaged.truncate(at),
            false => damaged[at] ^= 0x10,
        }
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("tallygate.redb"), &damaged).unwrap();
        match open(directory.path()) {
            Ok((store, _)) => assert_eq!(store.len(), 1000, "byte {at}, cut: {cut}"),
            Err(OpenError::Damaged { .. }) => refused += 1,
            Err(error) => panic!("byte {at}, cut: {cut}: {error}"),
        }
    }
    assert!(refused > 5, "{refused}");
}

/// A crash while a directory is made leaves it as if nothing had been done.
#[test]
fn a_file_that_was_not_finished_is_made_again() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("tallygate.redb.new"), "half").unwrap();
    open(directory.path()).unwrap();
    assert!(!directory.path().join("tallygate.redb.new").exists());
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_read_the_secret() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("data");
    open(&directory).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode(&directory), mode(&directory.join("tallygate.redb"))], [0o700, 0o600]);
}
