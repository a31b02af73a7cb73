//! Debian and Ubuntu packages.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};

use super::in_path;
use crate::run;

/// Concurrent installs would fail on apt's own locks.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Installs what is missing.
pub fn install(packages: &[&str]) -> Result<()> {
    let names = packages.join(" ");
    require(&names)?;
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    as_root(&["update"], &names)?;
    as_root(&[["install", "-y", "--no-install-recommends"].as_slice(), packages].concat(), &names)
}

/// Puts the package, as a file, into the folder. Needs root only where the lists were never fetched.
pub fn download(package: &str, folder: &Path) -> Result<()> {
    require(package)?;
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let download = || {
        // Its own user, which it changes to when run by root, need not be able to write there.
        let sandbox = "APT::Sandbox::User=root";
        run::run(Command::new("apt-get").args(["-q", "-o", sandbox, "download", package]).current_dir(folder))
    };
    download().or_else(|_| {
        as_root(&["update"], package)?;
        download()
    })
}

fn require(names: &str) -> Result<()> {
    if in_path("apt-get").is_none() {
        bail!("there is no apt-get: install {names} yourself");
    }
    Ok(())
}

/// As root, or through sudo without a password.
fn as_root(args: &[&str], names: &str) -> Result<()> {
    let root = run::output(Command::new("id").arg("-u"))?.trim() == "0";
    if !root && in_path("sudo").is_none() {
        bail!("neither root nor sudo: `apt-get install {names}`");
    }
    // Runlevel 1: a server package does not start its service.
    let prefix = ["env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", "apt-get", "-q"];
    let sudo: &[&str] = if root { &[] } else { &["sudo", "-n"] };
    let words: Vec<&str> = [sudo, &prefix, args].concat();
    run::run(Command::new(words[0]).args(&words[1..]))
}
