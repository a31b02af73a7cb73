//! Every crate can be packaged: its manifest is complete, and its README and licences are in it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run;

/// For tests and this repository only.
const NOT_PUBLISHED: [&str; 2] = ["tallygate-testkit", "tallygate-torture"];
const IN_EVERY_PACKAGE: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Without building them: the workspace is built by every other step. Without a lock file: to resolve one, the crates would have to be published.
pub fn run() -> Result<()> {
    let folder = run::target().join("packages");
    let mut package = run::cargo(&["package", "--no-verify", "--allow-dirty", "--exclude-lockfile", "--offline"]);
    package.arg("--target-dir").arg(&folder);
    let names = crates()?;
    for name in &names {
        package.args(["-p", name]);
    }
    run::run(&mut package)?;
    for name in &names {
        check(&folder, name)?;
    }
    println!("xtask package: {} crates", names.len());
    Ok(())
}

fn crates() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(run::root().join("crates"))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.retain(|name| !NOT_PUBLISHED.contains(&name.as_str()));
    names.sort();
    Ok(names)
}

fn check(folder: &Path, name: &str) -> Result<()> {
    let manifest = fs::read_to_string(run::root().join("crates").join(name).join("Cargo.toml"))?;
    for field in ["description", "keywords", "categories", "license"] {
        if !manifest.lines().any(|line| line.starts_with(field)) {
            bail!("crates/{name}/Cargo.toml has no `{field}`");
        }
    }
    let files = fs::read_dir(folder.join("package"))?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let is_its_package = |path: &&std::path::PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('-'))
            .is_some_and(|rest| rest.ends_with(".crate") && rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    let package = files.iter().find(is_its_package).with_context(|| format!("no package of {name}"))?;
    // A link to a licence is packaged as the file.
    let listing = run::output(Command::new("tar").arg("-tvzf").arg(package))?;
    for wanted in IN_EVERY_PACKAGE {
        let is_file = |line: &str| line.starts_with('-') && line.ends_with(&format!("/{wanted}"));
        if !listing.lines().any(is_file) {
            bail!("the package of {name} has no {wanted}");
        }
    }
    Ok(())
}
