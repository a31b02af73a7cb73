//! Debian and Ubuntu packages.

use std::process::Command;

use anyhow::{Result, bail};

use super::in_path;
use crate::run;

/// Installs what is missing, as root or through sudo without a password.
pub fn install(packages: &[&str]) -> Result<()> {
    let names = packages.join(" ");
    if in_path("apt-get").is_none() {
        bail!("no apt-get here: install {names} by hand");
    }
    let root = run::output(Command::new("id").arg("-u"))?.trim() == "0";
    if !root && in_path("sudo").is_none() {
        bail!("neither root nor sudo: `apt-get install {names}`");
    }
    let apt = |args: &[&str]| {
        // Runlevel 1: a server package shall not start its service.
        let prefix = ["env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", "apt-get", "-q"];
        let sudo: &[&str] = if root { &[] } else { &["sudo", "-n"] };
        let words: Vec<&str> = [sudo, &prefix, args].concat();
        run::run(Command::new(words[0]).args(&words[1..]))
    };
    apt(&["update"])?;
    apt(&[["install", "-y", "--no-install-recommends"].as_slice(), packages].concat())
}
