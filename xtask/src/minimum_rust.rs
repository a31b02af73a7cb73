//! The libraries build on the Rust version that their manifests name.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

/// Crates that take the version of the workspace are built with it by every other step.
pub fn run() -> Result<()> {
    let mut crates: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in fs::read_dir(run::root().join("crates"))? {
        let folder = entry?;
        let name = folder.file_name().to_string_lossy().into_owned();
        let manifest = fs::read_to_string(folder.path().join("Cargo.toml")).with_context(|| name.clone())?;
        if let Some(version) = version(&manifest) {
            crates.entry(version).or_default().push(name);
        }
    }
    for (version, names) in &crates {
        run::run(Command::new("rustup").args(["toolchain", "install", "--profile", "minimal", version]))?;
        let mut check = cargo(version, &["check"]);
        check.args(names.iter().flat_map(|name| ["-p", name]));
        check.arg("--features").arg(features(names)?.join(","));
        run::run(&mut check)?;
    }
    println!("xtask minimum-rust: {crates:?}");
    Ok(())
}

/// All features of these crates but one, which only adds a C library that takes a minute to build.
fn features(names: &[String]) -> Result<Vec<String>> {
    let metadata = run::output(&mut run::cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let mut features = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let of_package = package["features"].as_object().into_iter().flat_map(|features| features.keys());
        let wanted = of_package.filter(|feature| *feature != "tls-aws-lc-rs");
        features
            .extend(wanted.filter(|_| names.iter().any(|one| one == name)).map(|feature| format!("{name}/{feature}")));
    }
    Ok(features)
}

/// In a folder of its own, so that the toolchains do not rebuild each other's work.
fn cargo(version: &str, args: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", version, "cargo"]).args(args).current_dir(run::root());
    command.env("CARGO_TARGET_DIR", run::target().join("minimum-rust"));
    command
}

/// The `rust-version` that a manifest names itself, with a patch number as rustup calls it.
fn version(manifest: &str) -> Option<String> {
    let line = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \""))?;
    let version = line.trim_end_matches('"');
    Some(if version.matches('.').count() == 1 { format!("{version}.0") } else { version.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn reads_the_version_that_a_manifest_names_itself() {
        assert_eq!(version("[package]\nrust-version = \"1.88\"\n").as_deref(), Some("1.88.0"));
        assert_eq!(version("rust-version = \"1.88.1\"").as_deref(), Some("1.88.1"));
        assert_eq!(version("rust-version.workspace = true"), None);
    }
}
