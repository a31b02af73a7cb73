//! Reports skipped tests: libtest has no such outcome for a test that has started.

use std::fs::OpenOptions;
use std::io::Write;
use std::{env, thread};

/// `cargo xtask test` sets this to a file, and counts its lines as skipped instead of passed.
const VARIABLE: &str = "TALLYGATE_SKIPPED";

/// Reports the test on this thread as skipped if the variable is set to a reason. The test must then return.
pub(crate) fn skipped_by(variable: &str, what: &str) -> bool {
    let Some(reason) = env::var(variable).ok().filter(|reason| !reason.is_empty()) else { return false };
    eprintln!("SKIPPED without {what}: {reason}");
    if let Some(path) = env::var_os(VARIABLE) {
        // libtest names the thread of a test after the test.
        let test = thread::current().name().unwrap_or("main").to_owned();
        let binary = env::current_exe().unwrap_or_default();
        let binary = binary.file_name().unwrap_or_default().to_string_lossy();
        let line = format!("{binary}\t{test}\t{what}: {}\n", reason.replace(['\t', '\n'], " "));
        // One write in append mode: lines of several processes do not mix.
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the file that xtask names can be written");
    }
    true
}
