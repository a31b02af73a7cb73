//! A Prometheus server that scrapes what a test specifies.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use serde_json::Value;

use crate::daemon::{Daemon, Ready};
use crate::http;
use crate::port::Port;
use crate::tool::Tool;

/// A running server, on a free port of 127.0.0.1.
#[derive(Debug)]
pub struct Prometheus {
    daemon: Daemon,
    port: Port,
}

/// One series of a result.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Includes `__name__`, unless the expression dropped it.
    pub labels: BTreeMap<String, String>,
    /// The current value.
    pub value: f64,
}

impl Prometheus {
    /// Starts it with this `prometheus.yml`; relative paths in it are relative to the folder of [`Prometheus::daemon`].
    ///
    /// # Panics
    /// When it does not come up, with its log.
    #[must_use]
    #[track_caller]
    pub fn start(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("prometheus.yml"), config).unwrap();
        let port = Port::reserve();
        let mut command = Tool::Prometheus.command();
        command.args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"]);
        command.arg(format!("--web.listen-address=127.0.0.1:{}", port.number()));
        let daemon = Daemon::start(command, folder, &[Ready::Http(port.number(), "/-/ready")]);
        Self { daemon, port }
    }

    /// The address of its HTTP API.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port.number()).into()
    }

    /// The process.
    #[must_use]
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Evaluates an expression that yields an instant vector or a scalar. Empty until the first scrape.
    ///
    /// # Panics
    /// When the expression is refused, or yields something else.
    #[must_use]
    #[track_caller]
    pub fn query(&self, expression: &str) -> Vec<Sample> {
        let answer = self.get(&format!("/api/v1/query?query={}", encode(expression)));
        let data = &answer["data"];
        match data["resultType"].as_str() {
            Some("vector") => data["result"].as_array().into_iter().flatten().map(Sample::read).collect(),
            Some("scalar") => vec![Sample { labels: BTreeMap::new(), value: number(&data["result"]) }],
            _ => panic!("neither vector nor scalar: {answer}"),
        }
    }

    /// Queries its API, for example `/api/v1/alerts`.
    ///
    /// # Panics
    /// When it refuses.
    #[must_use]
    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        let response = http::request(self.addr(), "GET", path, &[], b"");
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        serde_json::from_slice(&response.body).expect("its API returns JSON")
    }
}

impl Sample {
    /// A label; empty if absent, which is the same to Prometheus.
    #[must_use]
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }

    fn read(series: &Value) -> Self {
        let labels = series["metric"].as_object().into_iter().flatten();
        let text = |value: &Value| value.as_str().expect("a label is a string").to_owned();
        Self {
            labels: labels.map(|(name, value)| (name.clone(), text(value))).collect(),
            value: number(&series["value"]),
        }
    }
}

/// The value of a pair of time and value. It is a string, to allow `NaN` and `+Inf`.
fn number(pair: &Value) -> f64 {
    pair[1].as_str().and_then(|text| text.parse().ok()).expect("a value is a number in a string")
}

fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
