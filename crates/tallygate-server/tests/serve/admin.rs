//! What operators see.

use serde_json::json;
use tallygate_server::Settings;
use tallygate_testkit::http;

use crate::support::served::{Served, bearer, body};

const POLICIES: &str = "
policies:
  - {name: per-user, domain: api, partition: [user], limit: 5/min, near: 60}
  - {name: 'hostile \"name\"\\n', domain: api, limit: 100/h, mode: shadow}
";

#[test]
fn metrics_count_what_happened_and_never_name_a_caller() {
    let server = Served::with(POLICIES);
    for _ in 0..7 {
        server.check("a-subject-nobody-may-see");
    }
    server.post("/v1/check", &json!({"domain": "nowhere", "descriptors": [{"user": "1"}]}));
    let value = |start: &str| server.metric(start).unwrap_or_else(|| panic!("no {start}"));
    let decisions = "tallygate_decisions_total{domain=\"api\",policy=\"per-user\",outcome=";
    assert_eq!(value(&format!("{decisions}\"allowed\",source=\"store\"}}")), 5.0);
    assert_eq!(value(&format!("{decisions}\"denied\",source=\"store\"}}")), 2.0);
    assert_eq!(value("tallygate_near_limit_total{domain=\"api\",policy=\"per-user\"}"), 2.0);
    assert_eq!(value("tallygate_calls_total{api=\"http\",outcome=\"denied\"}"), 2.0);
    assert_eq!(value("tallygate_calls_total{api=\"http\",outcome=\"invalid\"}"), 1.0);
    assert_eq!(value("tallygate_limit_units{domain=\"api\",policy=\"per-user\"}"), 5.0);
    assert_eq!(value("tallygate_store_up"), 1.0);
    assert_eq!(value("tallygate_config_generation"), 1.0);
    assert_eq!(value("tallygate_keys"), 2.0);
    assert_eq!(value("tallygate_keys_without_ttl"), 0.0);
    assert_eq!(value("tallygate_decision_duration_seconds_count{api=\"http\"}"), 7.0);
    let page = server.admin_get("/metrics");
    assert!(!page.text().contains("a-subject-nobody-may-see"));
    assert!(page.text().contains(r#"policy="hostile \"name\"\\n""#), "{}", page.text());
}

/// It was counted twice, though charged once.
#[test]
fn a_subject_that_two_descriptors_name_is_counted_once() {
    let server = Served::with(POLICIES);
    server.post("/v1/check", &json!({"domain": "api", "descriptors": [{"user": "1"}, {"user": "1", "path": "/"}]}));
    let allowed = "tallygate_decisions_total{domain=\"api\",policy=\"per-user\",outcome=\"allowed\",source=\"store\"}";
    assert_eq!(server.metric(allowed), Some(1.0));
}

#[test]
fn a_token_guards_the_admin_listener_and_without_one_nothing_can_be_changed() {
    let server = Served::with(POLICIES);
    let get = |addr, path, headers: &[(&str, &str)]| http::request(addr, "GET", path, headers, b"").status;
    assert_eq!(get(server.admin, "/metrics", &[]), 401);
    assert_eq!(get(server.admin, "/metrics", &[bearer()]), 200);
    assert_eq!(get(server.admin, "/livez", &[]), 200);
    assert_eq!(http::request(server.admin, "POST", "/-/reload", &[], b"").status, 401);
    let tokenless = Served::start(POLICIES, |settings: &mut Settings| settings.token = None);
    assert_eq!(get(tokenless.admin, "/metrics", &[]), 200);
    assert_eq!(http::request(tokenless.admin, "POST", "/-/reload", &[], b"").status, 403);
}

#[test]
fn the_policies_in_force_can_be_read() {
    let server = Served::with(POLICIES);
    let config = body(&server.admin_get("/v1/config"));
    assert_eq!(config["store"], "memory");
    assert_eq!(config["policies"][0]["name"], "per-user");
    assert_eq!(config["policies"][0]["limit"], "5/min");
}

#[tokio::test]
async fn an_admin_listener_that_others_can_reach_needs_a_token() {
    use tallygate_server::listen::Listener;
    let admin = Listener::bind("0.0.0.0:0".parse().unwrap()).unwrap();
    let listeners = tallygate_server::Listeners { admin: Some(admin), ..Default::default() };
    let refused = tallygate_server::run(Settings::default(), listeners, std::future::pending()).await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("--token-file") && error.contains("127.0.0.1"), "{error}");
}
