//! What every fuzz program does around the body of its target. The bodies stand in the crates that they test, where `cargo test`
//! runs them on the kept inputs.

use nix::sys::resource::{UsageWho, getrusage};

/// Far above what the longest input of any target may take.
const MOST_KIB: i64 = 32 * 1024;

/// Runs the body, and panics if it alone has raised the peak of the memory in use by more than any input may.
pub fn run(body: impl Fn(&[u8]), input: &[u8]) {
    let before = peak_kib();
    body(input);
    let taken = peak_kib() - before;
    assert!(taken <= MOST_KIB, "{} bytes of input took {taken} KiB of memory", input.len());
}

fn peak_kib() -> i64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.max_rss())
}

/// The program of a target.
#[macro_export]
macro_rules! target {
    ($body:path) => {
        libfuzzer_sys::fuzz_target!(|input: &[u8]| $crate::run($body, input));
    };
}
