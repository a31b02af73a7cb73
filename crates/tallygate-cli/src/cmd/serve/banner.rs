//! What `serve` says when it starts: where it listens, and a line to try.

use std::fmt::Write as _;

use tallygate_http::sanitize;
use tallygate_server::listen::Listener;
use tallygate_server::{Listeners, Settings};

use super::Args;

pub(super) fn text(args: &Args, settings: &Settings, listeners: &Listeners) -> String {
    let scheme = if settings.tls.is_some() { "https://" } else { "http://" };
    let policies = match &args.config {
        Some(path) => sanitize::text(&path.display().to_string()),
        None => "the built-in policy".to_owned(),
    };
    let place = match settings.store.place().as_str() {
        "memory" => "the embedded store".to_owned(),
        place => sanitize::text(place),
    };
    let mut text = format!("tallygate {} serves {policies} on {place}\n\n", env!("CARGO_PKG_VERSION"));
    let mut line = |name: &str, listener: &Option<Listener>, scheme: &str, what: &str| {
        if let Some(listener) = listener {
            let at = format!("{scheme}{}", listener.local_addr());
            let _ = writeln!(text, "  {name:<6} {at:<24} {what}");
        }
    };
    line("http", &listeners.http, scheme, "JSON and forward-auth; see /openapi.json");
    line("grpc", &listeners.grpc, "", "Envoy's rate limit service");
    line("admin", &listeners.admin, scheme, "/metrics, /v1/config");
    if let Some(http) = &listeners.http {
        let question = match &args.config {
            None => r#"{"domain":"default","descriptors":[{"client":"me"}]}"#,
            Some(_) => r#"{"key":"me","limit":"10/min"}"#,
        };
        let at = http.local_addr();
        let _ = write!(
            text,
            "\nTry it until it is denied:\n\n  \
             curl -i {scheme}{at}/v1/check -H 'content-type: application/json' -d '{question}'\n"
        );
    }
    text + "\nCtrl-C stops it; what is under way may finish.\n"
}
