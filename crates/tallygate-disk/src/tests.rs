//! A disk that fails: what was saved stays, and what was not is saved when that is possible again.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redb::backends::FileBackend;
use redb::{Builder, StorageBackend};
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::store::MemoryStoreBuilder;
use tallygate::{BoundLimit, Limiter, MemoryStore};

use crate::directory::Directory;
use crate::file::Opener;
use crate::saver::Saver;

/// A disk on which only so many more bytes can be written.
#[derive(Debug, Clone, Default)]
struct Room(Arc<AtomicU64>);

impl Room {
    fn of(bytes: u64) -> Self {
        Self(Arc::new(AtomicU64::new(bytes)))
    }

    fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::SeqCst);
    }

    fn take(&self, bytes: u64) -> io::Result<()> {
        let left = |room: u64| room.checked_sub(bytes);
        let taken = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left);
        taken.map(|_| ()).map_err(|_| io::Error::from(io::ErrorKind::StorageFull))
    }

    fn opener(&self) -> Opener {
        let room = self.clone();
        Box::new(move |file| {
            let file = FileBackend::new(file)?;
            Builder::new().create_with_backend(Limited { file, room: room.clone() })
        })
    }
}

#[derive(Debug)]
struct Limited {
    file: FileBackend,
    room: Room,
}

impl StorageBackend for Limited {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.room.take(1)?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.room.take(1)?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.room.take(data.len() as u64)?;
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }
}

const PLENTY: u64 = u64::MAX;

struct Scene {
    directory: tempfile::TempDir,
    room: Room,
    clock: ManualClock,
}

impl Scene {
    fn new() -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
        Self { directory: tempfile::tempdir().unwrap(), room: Room::of(PLENTY), clock }
    }

    fn builder(&self) -> MemoryStoreBuilder {
        MemoryStore::builder().clock(self.clock.clone())
    }

    fn open(&self) -> (BoundLimit<MemoryStore>, Arc<MemoryStore>, Saver) {
        let directory = Directory::lock(self.directory.path(), self.room.opener()).unwrap();
        let (store, saver) = directory.load(self.builder()).unwrap();
        let store = Arc::new(store);
        (Limiter::over(Arc::clone(&store)).limit("p", "1000000/day fixed_window").unwrap(), store, saver)
    }

    /// What is on the disk now, as a process would find it that starts after a crash.
    fn found(&self, subject: &str) -> u64 {
        let copy = tempfile::tempdir().unwrap();
        std::fs::copy(self.directory.path().join("tallygate.redb"), copy.path().join("tallygate.redb")).unwrap();
        let (store, _) = crate::open(copy.path(), self.builder()).unwrap();
        let limit = Limiter::new(store).limit("p", "1000000/day fixed_window").unwrap();
        999_999 - limit.check_now(subject).unwrap().binding().remaining()
    }
}

/// Wherever the disk becomes full, what was saved is found, whole; and when there is room again, nothing is missing.
#[test]
fn a_full_disk_loses_nothing_that_was_saved_and_is_caught_up_with() {
    let mut failed = 0;
    for room in (0..10).map(|step| step * 13_000).chain([100, 1 << 20]) {
        let scene = Scene::new();
        let (limit, store, mut saver) = scene.open();
        for subject in 0..50 {
            limit.check_cost_now(&subject.to_string(), 2).unwrap();
        }
        saver.save(&store).unwrap();
        assert_eq!(scene.found("7"), 2);
        for subject in 0..500 {
            limit.check_cost_now(&subject.to_string(), 3).unwrap();
        }
        scene.room.set(room);
        let saved = saver.save(&store);
        failed += u64::from(saved.is_err());
        // All of a transaction, or nothing of it.
        let expected = if saved.is_ok() { [5, 3] } else { [2, 0] };
        assert_eq!([scene.found("7"), scene.found("77")], expected, "with {room} bytes");
        // It is still full.
        scene.room.set(room.min(3000));
        limit.check_cost_now("7", 10).unwrap();
        assert!(saver.save(&store).is_err() && saver.save(&store).is_err());
        // There is room again, but not at once.
        scene.room.set(9000);
        let _ = saver.save(&store);
        scene.room.set(PLENTY);
        limit.reset_now("78", &store);
        saver.save(&store).unwrap();
        assert_eq!([scene.found("7"), scene.found("77"), scene.found("78")], [15, 3, 0]);
        limit.check_cost_now("7", 1).unwrap();
        saver.save(&store).unwrap();
        assert_eq!(scene.found("7"), 16);
        drop(saver);
        let (limit, ..) = scene.open();
        assert_eq!(limit.check_now("7").unwrap().binding().remaining(), 1_000_000 - 17);
    }
    assert!(failed > 4, "only {failed} attempts failed");
}

trait Reset {
    fn reset_now(&self, subject: &str, store: &MemoryStore);
}

impl Reset for BoundLimit<MemoryStore> {
    fn reset_now(&self, subject: &str, store: &MemoryStore) {
        use tallygate::call::{Call, Verb};
        let check = [self.of(subject).unwrap()];
        Call::new(Verb::Reset, &check).unwrap().ask_now(store).unwrap().unwrap();
    }
}

/// What no longer counts is not in the file after a start, and the file does not grow with every key that ever was.
#[test]
fn expired_entries_are_deleted_and_the_file_shrinks() {
    let scene = Scene::new();
    let (_, store, mut saver) = scene.open();
    let short = Limiter::over(Arc::clone(&store)).limit("short", "5/s").unwrap();
    for subject in 0..50_000 {
        short.check_now(&subject.to_string()).unwrap();
    }
    saver.save(&store).unwrap();
    let full = saver.bytes();
    drop(saver);
    scene.clock.advance(std::time::Duration::from_secs(60));
    let (_, store, saver) = scene.open();
    assert_eq!(store.len(), 0);
    assert!(saver.bytes() < full / 4, "{} of {full} bytes", saver.bytes());
    drop(saver);
    // While it is used, too: what the store drops goes from the file.
    let (_, store, mut saver) = scene.open();
    let short = Limiter::over(Arc::clone(&store)).limit("short", "5/s").unwrap();
    for round in 0..20 {
        for subject in 0..2000 {
            short.check_now(&format!("{round} {subject}")).unwrap();
        }
        saver.save(&store).unwrap();
        scene.clock.advance(std::time::Duration::from_secs(60));
    }
    assert!(saver.entries() < 10_000, "{} entries", saver.entries());
}
