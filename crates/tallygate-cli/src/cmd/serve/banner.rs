//! What `serve` prints when it starts: where it listens, and a call to try.

use std::fmt::Write as _;

use tallygate_config::Example;
use tallygate_http::sanitize;
use tallygate_server::listen::Listener;
use tallygate_server::{Listeners, Settings, Token};

use super::Args;

pub(super) fn text(args: &Args, settings: &Settings, listeners: &Listeners, example: Option<&Example>) -> String {
    let scheme = if settings.tls.is_some() { "https://" } else { "http://" };
    let policies = match &args.config {
        Some(path) => sanitize::text(&path.display().to_string()),
        None => "the built-in policy".to_owned(),
    };
    let place = match settings.store.place().as_str() {
        "memory" => match &args.data_dir {
            Some(directory) => {
                format!("the embedded store, kept in {}", sanitize::text(&directory.display().to_string()))
            }
            None => "the embedded store".to_owned(),
        },
        place => sanitize::text(place),
    };
    let mut text = format!("tallygate {} serves {policies} on {place}\n\n", crate::VERSION.as_str());
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
        let (title, question) = match example {
            Some(example) => (format!("the policy `{}`", sanitize::text(&example.policy)), question(example)),
            None => ("a limit of the call's own".to_owned(), r#"{"key":"me","limit":"10/min"}"#.to_owned()),
        };
        let at = http.local_addr();
        let guarded = settings.token.as_ref().is_some_and(Token::guards_checks);
        let token = if guarded { " -H 'Authorization: Bearer <token>'" } else { "" };
        let _ = write!(
            text,
            "\nTry {title} until it is denied:\n\n  \
             curl -i {scheme}{at}/v1/check -H 'content-type: application/json'{token} -d '{question}'\n"
        );
    }
    text + "\nCtrl-C stops it; open requests may finish.\n"
}

/// The body of a call under a policy, as it stands between single quotes in a shell.
fn question(example: &Example) -> String {
    let quote = |text: &str| serde_json::Value::from(text).to_string();
    let entry = |(key, value): &(String, String)| format!("{}:{}", quote(key), quote(value));
    let entries: Vec<String> = example.descriptor.entries().iter().map(entry).collect();
    let body = format!(r#"{{"domain":{},"descriptors":[{{{}}}]}}"#, quote(&example.domain), entries.join(","));
    sanitize::json(&body).replace('\'', r"'\''")
}

#[cfg(test)]
mod tests {
    use tallygate_config::Config;

    use super::*;

    #[test]
    fn the_example_is_safe_in_a_shell() {
        let text =
            "policies: [{name: a, domain: \"it's\", match: {'a\"b': \"\\x1b'\"}, partition: [user], limit: 5/s}]";
        let config = Config::from_texts(&[("f.yaml", text)]).unwrap();
        let expected = r#"{"domain":"it'\''s","descriptors":[{"a\"b":"\u001b'\''","user":"me"}]}"#;
        assert_eq!(question(config.example().unwrap()), expected);
    }
}
