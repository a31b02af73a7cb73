//! The binary as its users meet it: arguments in; text, JSON and exit codes out.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod audit; // what it finds, what it repairs, and what it leaves alone
mod bad_input; // what is refused, and what no input can do to a terminal
mod check; // `check`, `peek`, `refund`, `reset`
mod counter; // `counter`
mod demo; // the facts in the picture
mod explain; // which policies apply, why, and that nothing is charged
mod readme; // the console examples of the README
mod serve; // the binary as a server: signals, reload, logs
mod shared; // the commands on a real server
mod trouble; // stores that cannot be used: exit code 2
mod validate; // `validate` and `schema`
mod verify; // it holds on every kind of server, and says so when it does not

use std::ffi::OsStr;
use std::process::{Command, Output};

/// What one run of the binary did.
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallygate"));
    for setting in ["TALLYGATE_STORE", "TALLYGATE_PREFIX", "TALLYGATE_CONFIG"] {
        command.env_remove(setting);
    }
    command
}

fn run<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Ran {
    ran(binary().args(args).output().expect("the binary starts"))
}

fn ran(output: Output) -> Ran {
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    Ran {
        code: output.status.code().expect("no signal ended it"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

#[test]
/// The object has these fields and no others, in this order in the text that it was read from.
fn assert_fields(text: &str, object: &serde_json::Value, fields: &[&str]) {
    let known: std::collections::BTreeSet<&str> =
        object.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(known, fields.iter().copied().collect(), "{object}");
    let places: Vec<_> = fields.iter().map(|field| text.find(&format!("\"{field}\":"))).collect();
    assert!(places.is_sorted() && places.iter().all(Option::is_some), "{fields:?}: {text}");
}

fn help_and_version_are_answers_not_errors() {
    let verbs =
        ["demo", "check", "peek", "refund", "reset", "counter", "verify", "audit", "validate", "explain", "schema"];
    let help = run(["--help"]);
    assert_eq!((help.code, help.stderr.as_str()), (0, ""));
    for verb in verbs {
        assert!(help.stdout.contains(verb), "{verb}");
        let help = run([verb, "--help"]);
        assert_eq!(help.code, 0, "{verb}");
        assert!(help.stdout.contains("Examples:"), "{verb}");
        assert!(help.stdout.lines().all(|line| line.chars().count() <= 100), "{verb}");
    }
    let version = run(["--version"]);
    assert_eq!(version.stdout, format!("tallygate {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(run([] as [&str; 0]).code, 2);
}

#[test]
fn a_password_in_the_store_url_is_never_printed() {
    let mut command = binary();
    command.env("TALLYGATE_STORE", "nosuch://user:hunter2@host").args(["check", "alice", "--limit", "3/min"]);
    let refused = ran(command.output().unwrap());
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.starts_with("error: "), "{}", refused.stderr);
    assert!(refused.stderr.contains("nosuch"), "{}", refused.stderr);
    assert!(!refused.stderr.contains("hunter2"), "{}", refused.stderr);

    let mut command = binary();
    command.env("TALLYGATE_STORE", "redis://user:hunter2@host").args(["check", "--help"]);
    assert!(!ran(command.output().unwrap()).stdout.contains("hunter2"));
}

/// `tallygate … | head -1` is no reason for a message, and no permission.
#[test]
fn a_reader_who_leaves_is_no_error_to_report() {
    let mut command = binary();
    command.args(["check", "alice", "--limit", "3/min", "--repeat", "100000"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let left = ran(child.wait_with_output().unwrap());
    assert_eq!((left.code, left.stderr.as_str()), (2, ""));
}
