//! A Prometheus reads the metrics, and answers every question of the dashboard and of the alerts.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tallygate_server::store::StoreSpec;
use tallygate_testkit::{Prometheus, Server, Tool, http};

use crate::support::served::{Served, TOKEN, until};

const POLICIES: &str = "
policies:
  - {name: per-user, domain: api, partition: [user], limit: 3/h, near: 50, on_error: local}
  - {name: trial, domain: api, partition: [user], limit: 1/h, mode: shadow}
  - {name: open, domain: open, limit: 1000000/h, on_error: allow}
  - {name: closed, domain: closed, limit: 1000000/h, on_error: deny}
";

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path).canonicalize().unwrap()
}

/// Title of the panel and query, as Grafana would send it.
fn dashboard() -> Vec<(String, String)> {
    let read: Value = serde_json::from_str(&fs::read_to_string(deploy("grafana/tallygate.json")).unwrap()).unwrap();
    let panels = read["panels"].as_array().unwrap().iter();
    let queries = panels.flat_map(|panel| {
        let title = panel["title"].as_str().unwrap();
        let targets = panel["targets"].as_array().into_iter().flatten();
        targets.map(move |target| (title.to_owned(), target["expr"].as_str().unwrap().to_owned()))
    });
    let substituted = queries.map(|(title, query)| {
        let query = query.replace("$__rate_interval", "1m");
        let query = ["$instance", "$domain", "$policy"].iter().fold(query, |query, name| query.replace(name, ".*"));
        assert!(!query.contains('$'), "{title} has a variable that is not known here: {query}");
        (title, query)
    });
    substituted.collect()
}

/// One call of everything there is.
fn traffic(server: &Served, round: u64) {
    let user = format!("user-{}", round / 6);
    let question = json!({"domain": "api", "descriptors": [{"user": user}]});
    server.post("/v1/check", &question);
    if round.is_multiple_of(6) {
        server.post("/v1/refund", &question);
    }
    server.post("/v1/check", &json!({"domain": "nowhere", "descriptors": [{"user": "1"}]}));
    server.post("/v1/check", &json!({"key": user, "limit": "1/h"}));
    server.post("/v1/peek", &question);
    server.post("/v1/counters/visits", &json!({"by": 1}));
    server.get("/v1/forward-auth?domain=open");
    server.get("/v1/forward-auth?domain=closed");
}

/// Every metric that a query names.
fn metrics(query: &str) -> BTreeSet<&str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    words.filter(|word| word.contains("tallygate_")).collect()
}

/// Whether the page has the family of this series.
fn is_exported(page: &str, series: &str) -> bool {
    let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| series.strip_suffix(suffix));
    let histogram = family.is_some_and(|family| page.contains(&format!("# TYPE {family} histogram\n")));
    histogram || ["counter", "gauge"].iter().any(|kind| page.contains(&format!("# TYPE {series} {kind}\n")))
}

/// Silent if there is nothing to say.
fn lint(page: &str) {
    let mut command = Tool::Promtool.command();
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && said.is_empty(), "{said}");
}

fn monitor(server: &Served) -> Prometheus {
    Prometheus::start(&format!(
        "
global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}
rule_files: ['{}']
scrape_configs:
  - job_name: tallygate
    authorization: {{credentials: '{TOKEN}'}}
    static_configs: [{{targets: ['{}']}}]
",
        deploy("prometheus/alerts.yml").display(),
        server.admin
    ))
}

#[test]
fn prometheus_answers_every_query_of_the_dashboard_and_the_alerts() {
    let redis = Server::redis().start();
    let server = Served::start(POLICIES, |settings| {
        settings.store = StoreSpec { audit_every: Duration::from_millis(500), ..StoreSpec::new(&redis.url()) };
    });
    until("the store", || server.get("/readyz").status == 200);
    let prometheus = monitor(&server);
    let queries = dashboard();
    assert!(queries.len() > 20);
    let round = std::cell::Cell::new(0);
    let busy_until = |what: &str, query: &str| {
        until(what, || {
            traffic(&server, round.replace(round.get() + 1));
            !prometheus.query(query).is_empty()
        });
    };
    busy_until("a scrape with the token", "up{job=\"tallygate\"} == 1");
    busy_until("denials", "sum(rate(tallygate_decisions_total{outcome=\"denied\",policy=\"per-user\"}[1m])) > 0");
    busy_until("shadow denials", "sum(rate(tallygate_decisions_total{outcome=\"shadow_denied\"}[1m])) > 0");
    busy_until("near calls", "rate(tallygate_near_limit_total{policy=\"per-user\"}[1m]) > 0");
    busy_until("refunds", "rate(tallygate_refunded_units_total{policy=\"per-user\"}[1m]) > 0");
    busy_until("an audit", "tallygate_keys > 0");
    lint(server.admin_get("/metrics").text());

    fs::write(server.policy_file(), "policies: many").unwrap();
    redis.kill();
    busy_until("the refusal", "tallygate_config_last_reload_successful == 0");
    busy_until("red", "tallygate_store_up == 0");
    busy_until("errors", "sum(rate(tallygate_store_errors_total[1m])) > 0");
    for source in ["allow", "deny", "local"] {
        let query = format!("sum(rate(tallygate_decisions_total{{source=\"on_error_{source}\"}}[1m])) > 0");
        busy_until(source, &query);
    }

    for (title, query) in &queries {
        assert!(!prometheus.query(query).is_empty(), "{title} stays empty: {query}");
    }
    let page = server.admin_get("/metrics");
    lint(page.text());
    let rules = rules(&prometheus);
    let recorded: BTreeSet<&str> = rules.iter().filter(|rule| rule.records).map(|rule| &*rule.name).collect();
    for query in queries.iter().map(|(_, query)| query).chain(rules.iter().map(|rule| &rule.query)) {
        for name in metrics(query) {
            assert!(recorded.contains(name) || is_exported(page.text(), name), "{name} is nowhere: {query}");
        }
    }
    // What has happened, and what has not.
    let holds = |name: &str| {
        let rule = rules.iter().find(|rule| rule.name == name).unwrap_or_else(|| panic!("no {name}"));
        !prometheus.query(&rule.query).is_empty()
    };
    for name in ["TallygateStoreDown", "TallygateStoreErrors", "TallygateAnswersWithoutStore", "TallygateConfigRefused"]
    {
        assert!(holds(name), "{name}");
    }
    for name in ["TallygateAbsent", "TallygateKeysWithoutTtl", "TallygateStoreEvicts", "TallygateSheds"] {
        assert!(!holds(name), "{name}");
    }
}

struct Rule {
    name: String,
    query: String,
    records: bool,
}

/// As Prometheus has read them and evaluated them, without an error.
fn rules(prometheus: &Prometheus) -> Vec<Rule> {
    let read = || prometheus.get("/api/v1/rules");
    let all = |answer: &Value| -> Vec<Value> {
        let groups = answer["data"]["groups"].as_array().unwrap().iter();
        groups.flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
    };
    until("every rule to be evaluated", || all(&read()).iter().all(|rule| rule["health"] != "unknown"));
    let rules = all(&read());
    assert!(rules.len() > 10);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let checked = rules.iter().map(|rule| {
        assert_eq!(rule["health"], "ok", "{rule}");
        // Over again, by itself: it must not be refused.
        let query = text(&rule["query"]);
        let _ = prometheus.query(&query);
        Rule { name: text(&rule["name"]), query, records: rule["type"] == "recording" }
    });
    checked.collect()
}

#[test]
fn hostile_names_do_not_break_the_page() {
    let server = Served::with(r#"policies: [{name: "a\u202e\"b\\c", domain: "d\u2066\\n", limit: 1/h}]"#);
    let answer = http::request(server.admin, "GET", "/metrics", &[crate::support::served::bearer()], b"");
    lint(answer.text());
    let prometheus = monitor(&server);
    until("the policy", || {
        let samples = prometheus.query("tallygate_limit_units");
        samples
            .iter()
            .any(|sample| sample.label("policy") == r#"a\u{202e}"b\c"# && sample.label("domain") == r"d\u{2066}\n")
    });
}
