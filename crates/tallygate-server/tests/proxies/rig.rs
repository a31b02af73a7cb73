//! Callers' side to service's side: a proxy, Tallygate beside it, and a service behind it.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tallygate_server::{Listeners, Settings};
use tallygate_testkit::http::Response;
use tallygate_testkit::{Port, Proxy, Upstream, http};
use tempfile::TempDir;

use crate::support::running::Running;

/// Those running together, ended in this order.
pub struct Rig {
    pub proxy: Proxy,
    pub service: Upstream,
    pub tallygate: Tallygate,
    _port: Port,
}

impl Rig {
    /// Starts Tallygate with these policy files, and the proxy by a function that gets the examples' ports replaced.
    pub fn start(policies: &[(&str, String)], proxy: impl FnOnce(&Filler, u16) -> Proxy) -> Self {
        Self::start_with(policies, |_| {}, proxy)
    }

    /// The same, with other settings.
    pub fn start_with(
        policies: &[(&str, String)],
        set: impl FnOnce(&mut Settings),
        proxy: impl FnOnce(&Filler, u16) -> Proxy,
    ) -> Self {
        let (service, tallygate, port) = (Upstream::answering(serve), Tallygate::start(policies, set), Port::reserve());
        let filler = Filler(vec![
            ("8000", port.number()),
            ("8080", tallygate.running.http.port()),
            ("8081", tallygate.running.other.port()),
            ("3000", service.port()),
        ]);
        let proxy = proxy(&filler, port.number());
        Self { proxy, service, tallygate, _port: port }
    }

    pub fn addr(&self) -> SocketAddr {
        self.proxy.addr()
    }

    /// The paths that got through to the service since this was last asked.
    pub fn served(&self) -> Vec<String> {
        self.service.take().into_iter().map(|request| request.path).collect()
    }
}

/// A service with a type of its own, a page it refuses, and answers that cost something.
fn serve(request: &http::Request) -> Response {
    let response = match request.path.as_str() {
        "/forbidden" => Response::new(403, "by the service"),
        "/llm/forbidden" => Response::new(403, "by the service"),
        "/llm" => Response::new(200, "words").with("X-Tokens", "600"),
        "/downloads/kilobyte" => Response::new(200, "b".repeat(1000)),
        _ => Response::new(200, "from behind"),
    };
    response.with("Content-Type", "text/x-service")
}

/// Puts a test's ports in the place of the examples'.
pub struct Filler(Vec<(&'static str, u16)>);

impl Filler {
    /// An example, ready to run here.
    pub fn example(&self, path: &str) -> String {
        self.fill(example(path))
    }

    /// The same of an example that was changed.
    pub fn fill(&self, mut text: String) -> String {
        for (number, port) in &self.0 {
            // Marked first, as a port put in may look like one yet to be replaced.
            for start in ["127.0.0.1:", "http://:", "port_value: "] {
                text = text.replace(&format!("{start}{number}"), &format!("{start}\0{port}"));
            }
        }
        text.replace('\0', "")
    }
}

/// A file below `examples/`.
pub fn example(path: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(path);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// A text with other words in it; each must be there.
#[track_caller]
pub fn changed(text: String, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(text, |text, (old, new)| {
        assert!(text.contains(old), "there is no `{old}` in\n{text}");
        text.replace(old, new)
    })
}

/// A server of this process. Dropping it lets it drain.
pub struct Tallygate {
    running: Running,
    _folder: TempDir,
}

impl Tallygate {
    fn start(policies: &[(&str, String)], set: impl FnOnce(&mut Settings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in policies {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let mut settings =
            Settings { policies: Some(folder.path().to_owned()), notice: Duration::ZERO, ..Settings::default() };
        set(&mut settings);
        let running = Running::start(settings, |grpc| Listeners { grpc: Some(grpc), ..Listeners::default() });
        Self { running, _folder: folder }
    }

    /// What is left of each policy that this falls under.
    pub fn remaining(&self, domain: &str, descriptor: &Value) -> Vec<u64> {
        let left = |policy: &Value| policy["remaining"].as_u64().unwrap_or_else(|| panic!("{policy}"));
        self.statuses(domain, descriptor).iter().map(left).collect()
    }

    /// What a look at this is answered by each policy.
    pub fn statuses(&self, domain: &str, descriptor: &Value) -> Vec<Value> {
        let answer = self.post("/v1/peek", &json!({"domain": domain, "descriptors": [descriptor]}));
        answer["statuses"].as_array().unwrap_or_else(|| panic!("{answer}")).clone()
    }

    /// The answer of its HTTP listener.
    pub fn post(&self, path: &str, question: &Value) -> Value {
        let headers = [("content-type", "application/json")];
        let answer = http::request(self.running.http, "POST", path, &headers, question.to_string().as_bytes());
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// Ends it, while the others go on.
    pub fn stop(&mut self) {
        if let Some(ended) = self.running.end() {
            ended.unwrap();
        }
    }
}
