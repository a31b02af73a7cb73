//! All tests, with everything they need.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::available_parallelism;
use std::{env, fs};

use anyhow::{Context, Result};

use crate::{run, setup};

/// Arguments go to `cargo test`; with any, the tests of optional features and of interleavings are left out.
pub fn run(args: &[String]) -> Result<()> {
    let ready = setup::run()?;
    let mut tally = Tally::default();
    if skipped_file().exists() {
        fs::remove_file(skipped_file())?;
    }

    let mut command = run::cargo(&["test", "--no-fail-fast"]);
    if !names_a_package(args) {
        command.arg("--workspace");
    }
    command.args(args).env("RUST_TEST_THREADS", threads());
    ready.apply(&mut command);
    let mut result = tally.run(&mut command);

    if args.is_empty() {
        // The tests of an optional feature.
        let mut cel = run::cargo(&["test", "--no-fail-fast", "-p", "tallygate-config", "--features", "cel"]);
        result = result.and(tally.run(&mut cel));
    }
    let mut skipped = ready.skipped.clone();
    let interleavings = run::root().join("crates/tallygate/tests/shuttle.rs");
    if args.is_empty() && interleavings.exists() {
        result = result.and(tally.run(&mut shuttle()));
    } else if args.is_empty() {
        skipped.push("interleavings: no crates/tallygate/tests/shuttle.rs".to_owned());
    } else {
        skipped.push("interleavings: arguments were given".to_owned());
    }

    tally.subtract_skipped()?;
    let Tally { suites, passed, failed, ignored, .. } = tally;
    let count = tally.skipped.len();
    println!("\nxtask test: {passed} passed, {failed} failed, {count} skipped, {ignored} ignored, in {suites} suites");
    for reason in skipped.iter().chain(&tally.skipped) {
        println!("xtask test: SKIPPED {reason}");
    }
    result
}

/// Most tests wait for servers, so a third thread pays on two processors.
fn threads() -> OsString {
    let processors = available_parallelism().map_or(1, usize::from);
    env::var_os("RUST_TEST_THREADS").unwrap_or_else(|| processors.max(3).to_string().into())
}

fn names_a_package(args: &[String]) -> bool {
    let args = args.iter().take_while(|arg| *arg != "--");
    args.into_iter().any(|arg| arg.starts_with("-p") || arg.starts_with("--package") || arg == "--workspace")
}

/// A separate target folder: the flag would rebuild everything each time.
fn shuttle() -> Command {
    let mut flags = env::var("RUSTFLAGS").unwrap_or_default();
    flags.push_str(" --cfg tallygate_shuttle");
    let mut command = run::cargo(&["test", "-p", "tallygate", "--test", "shuttle"]);
    command.env("RUSTFLAGS", flags.trim()).env("CARGO_TARGET_DIR", run::target().join("shuttle"));
    command
}

/// The testkit adds a line to this file for each test that it skips: libtest counts those as passed.
fn skipped_file() -> PathBuf {
    run::target().join("skipped.tsv")
}

/// The sum of the `test result:` lines, and the tests that were skipped.
#[derive(Debug, Default)]
struct Tally {
    suites: u64,
    passed: u64,
    failed: u64,
    ignored: u64,
    skipped: Vec<String>,
}

impl Tally {
    /// Passes the output through, and counts.
    fn run(&mut self, command: &mut Command) -> Result<()> {
        let program = run::announce(command);
        command.env("TALLYGATE_SKIPPED", skipped_file());
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("its output is piped")?;
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            self.count(&line);
        }
        run::check(program, child.wait()?)
    }

    /// Each test once.
    fn subtract_skipped(&mut self) -> Result<()> {
        let text = fs::read_to_string(skipped_file()).or_else(|error| match error.kind() {
            ErrorKind::NotFound => Ok(String::new()),
            _ => Err(error),
        })?;
        self.skip(&text);
        Ok(())
    }

    fn skip(&mut self, lines: &str) {
        for line in lines.lines() {
            let mut parts = line.splitn(3, '\t');
            let (binary, test, reason) = (parts.next(), parts.next(), parts.next());
            let [binary, test, reason] = [binary, test, reason].map(Option::unwrap_or_default);
            let binary = binary.rsplit_once('-').map_or(binary, |(name, _hash)| name);
            let skipped = format!("{binary} {test}: {reason}");
            // With one thread for all tests none of them has a name.
            if test == "main" || !self.skipped.contains(&skipped) {
                self.skipped.push(skipped);
                self.passed = self.passed.saturating_sub(1);
            }
        }
    }

    fn count(&mut self, line: &str) {
        let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". ")) else {
            return;
        };
        self.suites += 1;
        for part in counts.split("; ") {
            let Some((number, what)) = part.split_once(' ') else {
                continue;
            };
            let number = number.parse::<u64>().unwrap_or(0);
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_closing_lines() {
        let mut tally = Tally::default();
        tally.count("test result: ok. 20 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 14.94s");
        tally
            .count("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s");
        tally.count("test proxy::trickle ... ok");
        assert_eq!((tally.suites, tally.passed, tally.failed, tally.ignored), (2, 21, 2, 1));
    }

    #[test]
    fn a_skipped_test_is_not_a_passed_one() {
        let mut tally = Tally { passed: 5, ..Tally::default() };
        tally.skip("tests-0a1b\tverify::valkey_holds\tvalkey-server: no\ntests-0a1b\tverify::valkey_holds\tvalkey-server: no\n");
        tally.skip("tools-2c3d\tmain\tenvoy: no\ntools-2c3d\tmain\tenvoy: no\n");
        assert_eq!((tally.passed, tally.skipped.len()), (2, 3));
        assert_eq!(tally.skipped[0], "tests verify::valkey_holds: valkey-server: no");
    }

    #[test]
    fn arguments_of_the_tests_name_no_package() {
        let args = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(names_a_package(&args("-p tallygate")));
        assert!(!names_a_package(&args("--test x -- -p")));
    }
}
