//! What is in `deploy/` is accepted by the tools that will read it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tallygate_testkit::Tool;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Runs it at the root of the repository; a failure shows all it said.
fn passes(command: &mut Command) -> String {
    let output = command.current_dir(root()).output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{command:?}:\n{said}");
    said
}

/// What follows `key` on the lines that begin with it.
fn values<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    text.lines()
        .filter_map(|line| line.trim_start().trim_start_matches("- ").strip_prefix(key))
        .map(str::trim)
        .collect()
}

/// The files of a kustomization that are manifests of Kubernetes itself.
fn manifests() -> Vec<PathBuf> {
    let folder = root().join("deploy/kubernetes/base");
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .filter(|path| path.file_name().is_some_and(|name| name != "kustomization.yaml"))
        .collect();
    found.sort();
    found
}

#[test]
fn prometheus_accepts_the_rules_and_they_fire_when_they_should() {
    let promtool = Tool::Promtool.binary();
    passes(Command::new(&promtool).args(["check", "rules", "deploy/prometheus/alerts.yml"]));
    passes(Command::new(&promtool).args(["test", "rules", "deploy/prometheus/tests/alerts_test.yml"]));
}

#[test]
fn every_alert_has_a_test_that_fires_it_and_a_place_in_the_guide() {
    let (rules, tests) = (read("deploy/prometheus/alerts.yml"), read("deploy/prometheus/tests/alerts_test.yml"));
    let guide = read("docs/guide/operating.md");
    let alerts = values(&rules, "alert:");
    let links = values(&rules, "runbook_url:");
    assert!(!alerts.is_empty());
    assert_eq!(alerts.len(), links.len());
    for (alert, link) in alerts.iter().zip(links) {
        let anchor = alert.to_lowercase();
        assert_eq!(link, format!("docs/guide/operating.md#{anchor}"));
        assert!(guide.lines().any(|line| line == format!("### {alert}")), "the guide has no heading {alert}");
        assert!(tests.contains(&format!("runbook_url: {link}\n")), "no test makes {alert} fire");
    }
    let described: BTreeSet<&str> = values(&guide, "### Tallygate").into_iter().collect();
    let existing: BTreeSet<&str> = alerts.iter().filter_map(|alert| alert.strip_prefix("Tallygate")).collect();
    assert_eq!(described, existing);
}

#[test]
fn the_operator_gets_the_same_rules_as_plain_prometheus() {
    let plain = read("deploy/prometheus/alerts.yml");
    let groups = &plain[plain.find("groups:").unwrap()..];
    let indented: String =
        groups.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("  {line}\n") }).collect();
    let resource = read("deploy/kubernetes/monitoring/prometheusrule.yaml");
    let (_, carried) = resource.split_once("\nspec:\n").unwrap();
    assert_eq!(carried, indented);
}

#[test]
fn prometheus_parses_every_query_of_the_dashboard() {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/tallygate.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "two panels share an id");

    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    let mut queries = 0;
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        for target in panel["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"]["uid"], "${DS_PROMETHEUS}", "{panel}");
            // A string of JSON is a string of YAML, too.
            let query = target["expr"].to_string().replace("$__rate_interval", "5m");
            rules += &format!("      - record: query{queries}\n        expr: {query}\n");
            queries += 1;
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dashboard.yml");
    fs::write(&file, rules).unwrap();
    let said = passes(Command::new(Tool::Promtool.binary()).args(["check", "rules"]).arg(&file));
    assert!(queries > 0 && said.contains(&format!("{queries} rules found")), "{said}");
}

#[test]
fn hadolint_finds_nothing_in_the_containerfile() {
    let said = passes(Command::new(Tool::Hadolint.binary()).arg("deploy/container/Containerfile"));
    assert_eq!(said, "");
}

#[test]
fn kubernetes_knows_every_field_of_the_manifests() {
    let manifests = manifests();
    passes(Command::new(Tool::KubernetesValidate.binary()).arg("--strict").args(&manifests));

    let kustomization = read("deploy/kubernetes/base/kustomization.yaml");
    for path in manifests {
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(kustomization.contains(&format!("  - {name}\n")), "{name} is applied by nobody");
    }
}
