//! The Python that fetches wheels.

use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow};

use super::{apt, in_path};

/// One that has pip; installed on the first call if need be.
pub fn with_pip() -> Result<&'static str> {
    static PYTHON: OnceLock<Result<&'static str, String>> = OnceLock::new();
    let python = PYTHON.get_or_init(|| find_or_install().map_err(|error| format!("{error:#}")));
    python.as_ref().map(|name| *name).map_err(|error| anyhow!("{error}"))
}

fn find_or_install() -> Result<&'static str> {
    if let Some(python) = find() {
        return Ok(python);
    }
    let packages: &[&str] = match in_path("python3") {
        Some(_) => &["python3-pip"],
        None => &["python3", "python3-pip"],
    };
    apt::install(packages)?;
    find().context("no Python with pip, even after installing it")
}

fn find() -> Option<&'static str> {
    let has_pip = |python: &&str| {
        let mut command = Command::new(python);
        command.args(["-m", "pip", "--version"]);
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    // The second is where apt puts pip, whatever shadows it in PATH.
    ["python3", "/usr/bin/python3"].into_iter().find(has_pip)
}
