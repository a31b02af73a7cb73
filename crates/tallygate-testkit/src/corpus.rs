//! The kept inputs of the fuzz targets, run as tests: what was found once stays found, without a fuzzer.

use std::fs;
use std::path::Path;

/// Runs the body of a fuzz target on every input in `fuzz/corpus/<target>`, and on none at all.
///
/// If it panics, the name of the input is printed.
pub fn replay(target: &str, body: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(!inputs.is_empty(), "{} is empty", folder.display());
    inputs.sort();
    body(&[]);
    for input in inputs {
        let running = Running(&input);
        body(&fs::read(&input).unwrap());
        drop(running);
    }
}

struct Running<'p>(&'p Path);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the input is {}", self.0.display());
        }
    }
}
