//! Names that would have a terminal, a log or a page obey them.

use serde_json::{Value, json};
use tallygate_testkit::http::{Response, request};

use crate::support::served::{Served, bearer, body};

/// In every name below, to recognise it where it comes out.
const MARK: &str = "h0stile";

fn names() -> Vec<String> {
    let inserted = [
        "\0",
        "\u{1b}[31m",
        "\u{1b}]0;owned\u{7}",
        "\u{202e}",
        "\u{2066}",
        "\u{200b}",
        "\u{feff}",
        "\u{2028}",
        "\u{7f}",
        "\u{9b}31m",
        "\u{85}",
        "\u{e0041}",
        "\r\nset-cookie: owned=1",
        "\n",
        "\t",
        "\"",
        "\\",
        "'",
        "{}",
        "%s%n",
        "</script>",
        "\u{fffd}",
        "e\u{301}",
        "漢",
    ];
    let mut names: Vec<String> = inserted.iter().map(|inserted| format!("{MARK}{inserted}{MARK}")).collect();
    names.push(MARK.repeat(1024 / MARK.len()));
    names.push(format!("{MARK}{}", "\u{202e}".repeat(300)));
    names
}

/// What a terminal obeys or hides. All that are assigned are beyond ASCII or controls.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
        || matches!(c, '\u{e0000}'..='\u{e007f}')
}

/// Nothing in it is to be obeyed.
#[track_caller]
fn is_plain(response: &Response) {
    assert!(response.status < 500, "{response:?}");
    assert!(!response.text().contains(is_hidden), "{:?}", response.text());
    for (name, value) in &response.headers {
        assert!(value.chars().all(|c| c == ' ' || c.is_ascii_graphic()), "{name}: {value:?}");
        assert!(!name.eq_ignore_ascii_case("set-cookie"));
    }
    if !response.body.is_empty() {
        assert!(body(response).is_object(), "{}", response.text());
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

const POLICIES: &str = r#"
policies:
  - {name: "rever\u202esed", domain: "api", partition: [user], limit: 2/h, near: 50}
  - {name: "quo\"te\\", domain: "api", limit: 1000000/h, mode: shadow}
  - {name: "ünï", domain: "dom\u2066ain", partition: [user], limit: 2/h}
"#;

#[test]
fn names_of_callers_come_out_escaped_or_not_at_all() {
    let server = Served::with(POLICIES);
    for name in names() {
        let questions = [
            json!({"domain": "api", "descriptors": [{"user": name}]}),
            json!({"domain": "api", "descriptors": [{&name: "x"}]}),
            json!({"domain": "api", "descriptors": [{&name: []}]}),
            json!({"domain": "dom\u{2066}ain", "descriptors": [{"user": name}]}),
            json!({"domain": name, "descriptors": [{"user": "1"}]}),
            json!({"key": name, "limit": "1/h"}),
            json!({"key": "k", "limit": "1/h", "policy": name}),
            json!({"key": "k", "limit": name}),
            json!({"key": "k", "limit": format!("1/h {name}")}),
            json!({"key": "k", "limit": "1/h", "algorithm": name}),
            json!({"key": "k", "limit": "1/h", &name: 1}),
            json!({"key": "k", "limit": "1/h", "cost": name}),
            Value::from(&*name),
        ];
        for question in &questions {
            for path in ["/v1/check", "/v1/check", "/v1/check", "/v1/peek", "/v1/refund", "/v1/reset"] {
                is_plain(&server.post_with(path, question, &[bearer()]));
            }
        }
        let name = encoded(&name);
        for target in [
            format!("/v1/counters/{name}"),
            format!("/v1/{name}"),
            format!("/v1/forward-auth?domain={name}"),
            format!("/v1/forward-auth?{name}=1"),
            format!("/v1/forward-auth?header={name}"),
            format!("/v1/forward-auth?cost={name}"),
            format!("/v1/forward-auth?deny_status={name}"),
        ] {
            is_plain(&server.get(&target));
        }
        is_plain(&server.post(&format!("/v1/counters/{name}"), &json!({"by": 1})));
    }
    // What cannot stand in a URL or a question, but in a header.
    for value in ["\u{202e}h0stile", "h0\tstile", "\u{9b}31mh0stile"] {
        for name in ["x-forwarded-for", "x-forwarded-uri", "x-forwarded-method", "x-forwarded-host", "x-a"] {
            let target = "/v1/forward-auth?domain=api&header=x-a&secret=x-a";
            is_plain(&request(server.http, "GET", target, &[(name, value)], b""));
        }
    }
    pages_are_plain(&server);
}

/// Those of the operator, who reads them in a terminal.
fn pages_are_plain(server: &Served) {
    let metrics = server.admin_get("/metrics");
    let page = metrics.text();
    assert!(!page.contains(MARK), "{page}");
    assert!(!page.contains(|c| c != '\n' && is_hidden(c)), "{page:?}");
    assert!(page.contains(r#"policy="rever\\u{202e}sed""#) && page.contains(r#"policy="quo\"te\\""#), "{page}");
    assert!(page.contains(r#"domain="dom\\u{2066}ain",policy="ünï""#), "{page}");
    let config = server.admin_get("/v1/config");
    is_plain(&config);
    assert_eq!(body(&config)["policies"][0]["name"], "rever\u{202e}sed");
}
