//! The metrics reference, `docs/guide/metrics.md`, against what a server exports and against the alert rules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

use serde_json::json;
use tallygate::decision::Source;
use tallygate_server::telemetry::{SampleRatio, Traces};
use tallygate_testkit::markdown::{Row, Table, tables};

use crate::support::served::Served;

static PAGE: LazyLock<String> = LazyLock::new(|| read("docs/guide/metrics.md"));

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// With every mode, so that every outcome of a policy has a series.
const POLICIES: &str = "
policies:
  - {name: per-user, domain: api, partition: [user], limit: 5/min, holds: {estimate: p95 from 2}}
  - {name: trial, domain: api, partition: [user], limit: 1/min, mode: shadow}
  - {name: closed, domain: api, partition: [], limit: 5000/min, on_error: deny}
  - {name: open, domain: api, partition: [tenant], limit: 5000/min, on_error: allow}
  - {name: free, domain: api, partition: [service], limit: unlimited}
  - {name: paid, domain: api, partition: [user], limit: 5/min, payers: [{name: credits, limit: 9/h}]}
";

/// What is known of a metric: its type, and the values of each label.
#[derive(Debug, Default, PartialEq, Eq)]
struct Family {
    kind: String,
    labels: BTreeMap<String, BTreeSet<String>>,
}

type Families = BTreeMap<String, Family>;

fn metric_tables() -> impl Iterator<Item = Table> {
    tables(&PAGE).into_iter().filter(|table| table.columns[0] == "metric")
}

/// A value table lists the values of the labels of all metrics in its section.
fn values(section: &str, label: &str) -> BTreeSet<String> {
    let tables = tables(&PAGE).into_iter().filter(|table| table.columns[0] == "label" && table.heading == section);
    let rows: Vec<Row> = tables.flat_map(|table| table.rows).filter(|row| row.plain("label") == label).collect();
    assert!(!rows.is_empty(), "the section `{section}` does not say what `{label}` can be");
    rows.iter().map(|row| row.plain("value")).collect()
}

fn documented() -> Families {
    let mut families = Families::new();
    for table in metric_tables() {
        for row in &table.rows {
            let labels = row.code("labels").into_iter();
            let labels = labels.map(|label| (label.to_owned(), values(&table.heading, label))).collect();
            let family = Family { kind: row.plain("type"), labels };
            let name = row.plain("metric");
            assert!(!row.text("unit").is_empty() && !row.text("meaning").is_empty(), "{name}");
            assert!(families.insert(name.clone(), family).is_none(), "{name} is listed twice");
        }
    }
    families
}

/// Of a page that was scraped. `le` belongs to the type.
fn exported(page: &str) -> Families {
    let mut families = Families::new();
    let mut name = "";
    for line in page.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (family, kind) = kind.split_once(' ').unwrap();
            name = family;
            families.insert(name.to_owned(), Family { kind: kind.to_owned(), ..Family::default() });
        } else if !line.starts_with('#') {
            let labels = line.split_once('{').map_or("", |(_, rest)| rest.rsplit_once('}').unwrap().0);
            let family = families.get_mut(name).unwrap();
            for label in labels.split(',').filter(|label| !label.is_empty()) {
                let (label, value) = label.split_once('=').unwrap();
                if label != "le" {
                    let values = family.labels.entry(label.to_owned()).or_default();
                    values.insert(value.trim_matches('"').to_owned());
                }
            }
        }
    }
    families
}

fn scraped() -> String {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // Nothing listens there: spans are counted, and go nowhere.
    let collector = "http://127.0.0.1:1";
    let traces = runtime.block_on(async { Traces::start(collector, SampleRatio::default()).unwrap() });
    let server = Served::start(POLICIES, |settings| settings.traces = Some(traces));
    assert_eq!(server.post("/v1/check", &json!({"domain": "api", "descriptors": [{"user": "1"}]})).status, 200);
    server.admin_get("/metrics").text().to_owned()
}

#[test]
fn every_metric_is_on_the_page_with_its_type_and_labels_and_no_other() {
    let page = scraped();
    let (mut documented, mut exported) = (documented(), exported(&page));
    assert!(exported.len() > 20, "{page}");
    if cfg!(not(target_os = "linux")) {
        documented.retain(|name, _| !name.starts_with("process_"));
    }
    // Names first: their difference is the one that is easy to read.
    let names = |families: &Families| families.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&documented), names(&exported), "left: the page, right: the server");

    let sources = exported.get_mut("tallygate_decisions_total").unwrap().labels.get_mut("source").unwrap();
    // Not all of them happen here.
    sources.extend(Source::ALL.iter().map(|source| source.name().to_owned()));
    let any = BTreeSet::from(["any".to_owned()]);
    for family in exported.values_mut() {
        for (label, values) in &mut family.labels {
            // Names that come from files, the version, and addresses.
            if ["domain", "payer", "policy", "server", "version"].contains(&label.as_str()) {
                values.clone_from(&any);
            }
        }
    }
    for (name, exported) in exported {
        assert_eq!(documented[&name], exported, "left: the page, right: the server; {name}");
    }
}

#[test]
fn the_buckets_are_those_on_the_page() {
    let page = scraped();
    let bounds = page.lines().filter_map(|line| line.split_once("le=\"")?.1.split_once('"')).map(|(bound, _)| bound);
    let bounds: BTreeSet<&str> = bounds.filter(|bound| *bound != "+Inf").collect();
    let written = PAGE.split_once("buckets up to ").unwrap().1.split_once(" second").unwrap().0;
    let written: BTreeSet<&str> = written.split([' ', ',']).filter(|word| word.starts_with(['0', '1'])).collect();
    assert_eq!(written, bounds, "left: the page, right: the server");
}

#[test]
fn every_alert_is_linked_from_the_metrics_that_it_reads() {
    let mut used: BTreeSet<(String, String)> = BTreeSet::new();
    for rule in read("deploy/prometheus/alerts.yml").split("- alert: ").skip(1) {
        let (alert, rest) = rule.split_once('\n').unwrap();
        // The expression; what follows is for people.
        let expression = rest.split("labels:\n").next().unwrap();
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
        for series in words.filter(|word| word.starts_with("tallygate_")) {
            let family = ["_bucket", "_count", "_sum"].iter().find_map(|suffix| series.strip_suffix(suffix));
            used.insert((family.unwrap_or(series).to_owned(), alert.to_owned()));
        }
    }
    let mut linked = BTreeSet::new();
    for row in metric_tables().flat_map(|table| table.rows) {
        for link in row.text("alerts").split('[').skip(1) {
            let (alert, target) = link.split_once("](").unwrap();
            assert!(target.starts_with(&format!("operating.md#{})", alert.to_lowercase())), "{link}");
            linked.insert((row.plain("metric"), alert.to_owned()));
        }
    }
    assert!(!used.is_empty());
    assert_eq!(linked, used, "left: the page, right: the alert rules");
}
