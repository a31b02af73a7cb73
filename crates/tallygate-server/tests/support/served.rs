//! A server of this process, and how to talk to it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tallygate_server::{Listeners, RunError, Settings, Token};
use tallygate_testkit::http::{self, Response};
use tempfile::TempDir;

use crate::support::running::Running;

pub const TOKEN: &str = "a token for this test";

/// A running server. Dropping it lets it drain.
pub struct Served {
    pub http: SocketAddr,
    pub admin: SocketAddr,
    running: Running,
    folder: TempDir,
}

impl Served {
    /// With these policies, on the embedded store.
    pub fn with(policies: &str) -> Self {
        Self::start(policies, |_| {})
    }

    /// With these policies, and other settings.
    pub fn start(policies: &str, set: impl FnOnce(&mut Settings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policies.yaml");
        std::fs::write(&file, policies).unwrap();
        let mut settings = Settings {
            policies: Some(file),
            token: Some(Token::new(TOKEN).unwrap()),
            notice: Duration::ZERO,
            ..Settings::default()
        };
        set(&mut settings);
        let running = Running::start(settings, |admin| Listeners { admin: Some(admin), ..Listeners::default() });
        Self { http: running.http, admin: running.other, running, folder }
    }

    pub fn policy_file(&self) -> PathBuf {
        self.folder.path().join("policies.yaml")
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.post_with(path, body, &[])
    }

    pub fn post_with(&self, path: &str, body: &Value, headers: &[(&str, &str)]) -> Response {
        let headers: Vec<_> = [("content-type", "application/json")].iter().chain(headers).copied().collect();
        http::request(self.http, "POST", path, &headers, body.to_string().as_bytes())
    }

    pub fn get(&self, path: &str) -> Response {
        http::request(self.http, "GET", path, &[], b"")
    }

    /// One call of `user` in the domain `api`.
    pub fn check(&self, user: &str) -> Response {
        self.post("/v1/check", &json!({"domain": "api", "descriptors": [{"user": user}]}))
    }

    pub fn admin_get(&self, path: &str) -> Response {
        http::request(self.admin, "GET", path, &[bearer()], b"")
    }

    /// The value of a metric whose line starts so.
    pub fn metric(&self, start: &str) -> Option<f64> {
        let page = self.admin_get("/metrics");
        let line = page.text().lines().find(|line| line.starts_with(start))?.to_owned();
        line.rsplit_once(' ').and_then(|(_, value)| value.parse().ok())
    }

    /// Lets it drain, and says how it ended.
    pub fn stop(mut self) -> Result<(), RunError> {
        self.running.end().unwrap()
    }
}

pub fn bearer() -> (&'static str, &'static str) {
    ("authorization", concat!("Bearer ", "a token for this test"))
}

pub fn body(response: &Response) -> Value {
    serde_json::from_slice(&response.body).unwrap_or_else(|error| panic!("{error}: {}", response.text()))
}

/// Waits for `what`, and fails if it does not come.
pub fn until(what: &str, condition: impl Fn() -> bool) {
    tallygate_testkit::wait::until(what, Duration::from_secs(20), || condition().then_some(()));
}
