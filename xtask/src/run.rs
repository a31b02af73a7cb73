//! Running other programs from the root of the repository.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::{env, fmt};

use anyhow::{Context, Result};

/// A program that failed; its exit code becomes ours.
#[derive(Debug)]
pub struct Failed {
    program: String,
    status: ExitStatus,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` failed: {}", self.program, self.status)
    }
}

impl std::error::Error for Failed {}

/// The root of the repository.
pub fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// Where cargo builds.
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The cargo that runs us, in the root.
pub fn cargo(args: &[&str]) -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

/// Runs it with our input and output, and prints the command.
pub fn run(command: &mut Command) -> Result<()> {
    let program = announce(command);
    let status = command.status();
    let status = status.with_context(|| format!("cannot run `{program}`"))?;
    check(program, status)
}

/// Runs it quietly, for its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let program = describe(command);
    let output = command.output();
    let output = output.with_context(|| format!("cannot run `{program}`"))?;
    if !output.status.success() {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
    }
    check(program, output.status)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Prints the command.
pub fn announce(command: &Command) -> String {
    let program = describe(command);
    eprintln!("\n$ {program}");
    program
}

/// An error unless it succeeded.
pub fn check(program: String, status: ExitStatus) -> Result<()> {
    if status.success() { Ok(()) } else { Err(Failed { program, status }.into()) }
}

/// The code of the failed program, if that is what went wrong.
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    let code =
        error.downcast_ref::<Failed>().and_then(|failed| failed.status.code()).and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

fn describe(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name();
    let mut words = vec![name.unwrap_or_default().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    words.join(" ")
}
