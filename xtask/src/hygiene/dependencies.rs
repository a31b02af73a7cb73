//! Sources, licences and duplicates of our dependencies.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Findings, licence};
use crate::run;

/// Duplicates that are accepted, with the reason.
const TWICE: &[(&str, &str)] = &[
    ("getrandom", "ring is still on 0.2, and rand of the OpenTelemetry SDK on 0.3"),
    ("syn", "the macros of prost, pin-project and tracing are still on 2; it runs at compile time only"),
];
/// Not published: their duplicates only cost build time.
const NOT_SHIPPED: [&str; 2] = ["tallygate-testkit", "xtask"];
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
const SHUTTLE: &str = "tallygate_shuttle";

pub fn check(findings: &mut Findings) -> Result<()> {
    let metadata = metadata()?;
    let packages = packages(&metadata)?;
    for package in packages.values() {
        let (name, version) = (text(package, "name"), text(package, "version"));
        let licence = text(package, "license");
        if !licence::allowed(licence) {
            findings.fail(format!("{name} {version}: licence `{licence}` is not allowed"));
        }
        let source = text(package, "source");
        if !source.is_empty() && source != REGISTRY {
            findings.fail(format!("{name} {version}: comes from {source}"));
        }
    }
    let mut versions: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for id in shipped(&metadata, &packages)? {
        let package = packages[id];
        let major = major(text(package, "version"));
        versions.entry(text(package, "name")).or_default().insert(major);
    }
    for (name, majors) in versions {
        if majors.len() > 1 && !TWICE.iter().any(|(twice, _)| *twice == name) {
            let majors: Vec<_> = majors.into_iter().collect();
            findings.fail(format!("{name} comes in versions {}", majors.join(" and ")));
        }
    }
    Ok(())
}

/// For this platform only, as the crates of others would have to be downloaded. With the crates of the interleaving tests.
fn metadata() -> Result<Value> {
    let rustc = run::output(Command::new("rustc").arg("-vV"))?;
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc names its host")?;
    let mut command = run::cargo(&["metadata", "--format-version", "1", "--filter-platform", host]);
    command.env("RUSTFLAGS", format!("--cfg {SHUTTLE}"));
    serde_json::from_str(&run::output(&mut command)?).context("cargo metadata")
}

fn packages(metadata: &Value) -> Result<HashMap<&str, &Value>> {
    let packages = metadata["packages"].as_array().context("packages")?;
    Ok(packages.iter().map(|package| (text(package, "id"), package)).collect())
}

/// What our crates need at run or build time; not what only tests need.
fn shipped<'a>(metadata: &'a Value, packages: &HashMap<&str, &Value>) -> Result<BTreeSet<&'a str>> {
    let nodes = metadata["resolve"]["nodes"].as_array().context("nodes")?;
    let nodes: HashMap<&str, &Value> = nodes.iter().map(|node| (text(node, "id"), node)).collect();
    let members = metadata["workspace_members"].as_array().context("members")?;
    let mut open: Vec<&str> = members.iter().filter_map(Value::as_str).collect();
    open.retain(|id| !NOT_SHIPPED.contains(&text(packages[id], "name")));
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id) {
            continue;
        }
        for dependency in nodes[id]["deps"].as_array().into_iter().flatten() {
            let kinds = dependency["dep_kinds"].as_array();
            let shipped = |kind: &Value| text(kind, "kind") != "dev" && !text(kind, "target").contains(SHUTTLE);
            if kinds.is_some_and(|kinds| kinds.iter().any(shipped)) {
                open.push(text(dependency, "pkg"));
            }
        }
    }
    Ok(seen)
}

/// Empty when absent or null.
fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// The part of a version that must differ for two to be incompatible: `1`, `0.17`, `0.0.3`.
fn major(version: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in version.split('.').take(3) {
        parts.push(part);
        if part != "0" {
            break;
        }
    }
    parts.join(".")
}

#[cfg(test)]
mod tests {
    use super::major;

    #[test]
    fn majors() {
        assert_eq!(["1.2.3", "0.17.1", "0.0.3"].map(major), ["1", "0.17", "0.0.3"]);
    }
}
