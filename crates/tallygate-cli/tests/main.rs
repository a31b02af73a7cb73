//! The binary as its users meet it: arguments in; text, JSON and exit codes out.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod audit; // what it finds, what it repairs, and what it leaves alone
mod bad_input; // what is refused, and what no input can do to a terminal
mod check; // `check`, `peek`, `refund`, `reset`
mod config_reference; // the page that lists every option and field has all of them, and no others
mod counter; // `counter`
mod data_dir; // what survives a stop, and a crash
mod demo; // the facts in the picture
mod doctor; // what it finds in a store, and what it prints and exits with
mod explain; // which policies apply, why, and that nothing is charged
mod health; // `health`, against a real server
mod overrides; // limits that are changed live
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
    for (setting, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TALLYGATE_")) {
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

/// The object has these fields and no others, in this order in the text that it was read from.
fn assert_fields(text: &str, object: &serde_json::Value, fields: &[&str]) {
    let known: std::collections::BTreeSet<&str> =
        object.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(known, fields.iter().copied().collect(), "{object}");
    let places: Vec<_> = fields.iter().map(|field| text.find(&format!("\"{field}\":"))).collect();
    assert!(places.is_sorted() && places.iter().all(Option::is_some), "{fields:?}: {text}");
}

#[test]
fn help_and_version_are_answers_not_errors() {
    let verbs = [
        "serve",
        "demo",
        "check",
        "peek",
        "refund",
        "reset",
        "reserve",
        "settle",
        "cancel",
        "extend",
        "holds",
        "counter",
        "verify",
        "audit",
        "doctor",
        "validate",
        "explain",
        "schema",
        "health",
        "completions",
        "man",
    ];
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
    let commit = option_env!("TALLYGATE_COMMIT").filter(|commit| !commit.is_empty());
    let commit = commit.map(|commit| format!(" ({commit})")).unwrap_or_default();
    assert_eq!(version.stdout, format!("tallygate {}{commit}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(run(["serve", "--version"]).code, 0);
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

/// `tallygate … | head -1` is not an error to report, and not a permission: the exit code is that of SIGPIPE.
#[test]
fn a_closed_pipe_ends_as_a_shell_expects() {
    let mut command = binary();
    command.args(["check", "alice", "--limit", "3/min", "--repeat", "100000"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let left = ran(child.wait_with_output().unwrap());
    assert_eq!((left.code, left.stderr.as_str()), (141, ""));
}

#[test]
fn help_is_a_command_too() {
    assert!(run(["help"]).stdout.contains("Usage: tallygate"));
    assert!(run(["help", "check"]).stdout.contains("Charge a call"));
}

#[test]
fn completions_and_manual_pages_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(["completions", shell]);
        assert!(script.code == 0 && script.stdout.contains("explain"), "{shell}: {}", script.stderr);
    }
    assert!(run(["man"]).stdout.contains(".TH tallygate 1"));
    assert!(run(["man", "serve"]).stdout.contains("TALLYGATE_LOG_LEVEL"));
    let unknown = run(["man", "nosuch"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.stderr.contains("unknown command `nosuch`"), "{}", unknown.stderr);
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let mut command = binary();
    command.env("TALLYGATE_STORE", "").env("TALLYGATE_PREFIX", "").args(["check", "alice", "--limit", "3/min"]);
    let checked = ran(command.output().unwrap());
    assert_eq!(checked.code, 0, "{}", checked.stderr);
}

#[test]
fn a_mistyped_variable_is_reported() {
    let mut command = binary();
    command.env("TALLYGATE_STOR", "redis://x").env("TALLYGATE_SERVICE_HOST", "x").env("TALLYGATE_SOMETHING_ELSE", "x");
    let checked = ran(command.args(["check", "alice", "--limit", "3/min"]).output().unwrap());
    let warning = "warning: unknown environment variable TALLYGATE_STOR: did you mean TALLYGATE_STORE?\n";
    assert!(checked.stderr.starts_with(warning), "{}", checked.stderr);
    assert_eq!(checked.stderr.matches("unknown").count(), 1, "{}", checked.stderr);
}

#[test]
fn colours_can_be_forced_and_forbidden() {
    let coloured = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = binary();
        command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").env_remove("TERM").envs(variables.iter().copied());
        ran(command.arg("demo").args(args).output().unwrap()).stdout.contains('\x1b')
    };
    assert!(!coloured(&[], &[]), "a pipe has no colours");
    assert!(coloured(&["--color", "always"], &[("NO_COLOR", "1")]));
    assert!(coloured(&[], &[("CLICOLOR_FORCE", "1")]));
    assert!(!coloured(&["--color", "never"], &[("CLICOLOR_FORCE", "1")]));
}

/// A script can tell a typo, which it must not repeat, from a store that may come back.
#[test]
fn the_exit_code_tells_an_unreachable_store_from_a_usage_error() {
    let with = |args: &[&str]| run([args, &["--store", "redis://127.0.0.1:1"]].concat()).code;
    assert_eq!(with(&["check", "alice", "--limit", "3/min"]), 3);
    assert_eq!(with(&["counter", "incr", "visits"]), 3);
    assert_eq!(with(&["audit"]), 3);
    assert_eq!(with(&["doctor"]), 3);
    assert_eq!(with(&["verify"]), 3);
    assert_eq!(with(&["check", "alice", "--limit", "3/mn"]), 2);
    assert_eq!(run(["check", "alice", "--limit", "3/min", "--store", "reddis://x"]).code, 2);
}
