//! What operators see.

use std::time::Duration;

use serde_json::json;
use tallygate_server::store::StoreSpec;
use tallygate_server::{Settings, Token};
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
    assert_eq!(value("tallygate_near_limit_total{domain=\"api\",policy=\"per-user\"}"), 3.0);
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

/// Scraping needed the token that can reset limits.
#[test]
fn a_token_may_do_what_its_scopes_say_and_no_more() {
    let tokens = "prometheus:read:0123456789abcdef\nci:operate:fedcba9876543210\napp:check:0011223344556677\n";
    let server = Served::start(POLICIES, |settings: &mut Settings| settings.token = Some(Token::new(tokens).unwrap()));
    let question = json!({"domain": "api", "descriptors": [{"user": "1"}]}).to_string();
    let status = |addr, method, path, token: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        http::request(addr, method, path, &headers, question.as_bytes()).status
    };
    let of_token = |token: &str| {
        [
            status(server.admin, "GET", "/metrics", token),
            status(server.admin, "POST", "/-/reload", token),
            status(server.http, "POST", "/v1/reset", token),
            status(server.http, "POST", "/v1/check", token),
        ]
    };
    assert_eq!(of_token("0123456789abcdef"), [200, 403, 403, 403]);
    assert_eq!(of_token("fedcba9876543210"), [403, 200, 200, 403]);
    assert_eq!(of_token("0011223344556677"), [403, 403, 403, 200]);
    assert_eq!(of_token("a token of nobody"), [401; 4]);
    let lacking = http::request(server.admin, "GET", "/metrics", &[("authorization", "Bearer fedcba9876543210")], b"");
    assert_eq!(body(&lacking)["detail"], "The token `ci` does not have the scope `read`.");
    // Proxies forward the authorization of their clients, and are trusted by address.
    assert_eq!(http::request(server.http, "GET", "/v1/forward-auth?domain=api", &[], b"").status, 200);
}

#[test]
fn the_policies_in_force_can_be_read() {
    let server = Served::with(POLICIES);
    let config = body(&server.admin_get("/v1/config"));
    assert_eq!(config["store"], "memory");
    assert_eq!(config["policies"][0]["name"], "per-user");
    assert_eq!(config["policies"][0]["limit"], "5/min");
    assert_eq!(config["files"], json!([server.policy_file()]));
    assert_eq!(config["policies"][0]["algorithm"], "token_bucket");
    assert_eq!(config["policies"][0]["on_error"], "local");
}

/// It showed the numbers of a policy, and not which calls they are for.
#[test]
fn the_config_shows_what_a_policy_does() {
    let server = Served::with(
        "
policies:
  - name: free
    domain: api
    match: {path: [/v1/*, /v2/*], bot: null}
    partition: [user, region]
    limit: 10/min
    overrides: [{match: {plan: pro}, limit: 100/min}, {match: {plan: staff}, limit: unlimited}]
",
    );
    let config = body(&server.admin_get("/v1/config"));
    let policy = &config["policies"][0];
    assert_eq!(policy["match"], json!(["path = /v1/* or /v2/*", "bot is absent"]));
    assert_eq!(policy["partition"], json!(["user", "region"]));
    let overrides = json!([
        {"match": ["plan = pro"], "limit": "100/min"},
        {"match": ["plan = staff"], "limit": "unlimited"},
    ]);
    assert_eq!(policy["overrides"], overrides);
}

#[test]
fn the_policy_of_limits_that_requests_carry_is_internal() {
    let server = Served::with(POLICIES);
    assert!(!server.admin_get("/v1/config").text().contains("requested"));
    assert!(!server.admin_get("/metrics").text().contains("requested"));
    let entry = json!({"entries": [{"key": "a", "value": "b"}], "limit": {"requestsPerUnit": 1, "unit": "HOUR"}});
    server.post("/json", &json!({"domain": "api", "descriptors": [entry]}));
    let used = "tallygate_decisions_total{domain=\"api\",policy=\"requested\",outcome=\"allowed\",source=\"store\"}";
    assert_eq!(server.metric(used), Some(1.0));
}

/// With 10 and `near: 80` the eighth call did not count, and with `near: 100` none ever did.
#[test]
fn a_limit_is_near_from_its_percentage_on() {
    let server = Served::with(
        "
policies:
  - {name: most, domain: api, partition: [user], limit: 10/h, near: 80}
  - {name: all, domain: api, partition: [user], limit: 10/h, near: 100}
",
    );
    let near =
        |policy: &str| server.metric(&format!("tallygate_near_limit_total{{domain=\"api\",policy=\"{policy}\"}}"));
    let counts: Vec<_> = (0..10).map(|_| (server.check("1").status, near("most"), near("all"))).collect();
    let expected = |call: u32| (200, Some(f64::from(call.saturating_sub(7))), Some(f64::from(call / 10)));
    assert_eq!(counts, (1..=10).map(expected).collect::<Vec<_>>());
}

/// Seven units were counted as allowed by `all`, which was charged five: `user` had denied the rest.
#[test]
fn units_that_another_policy_denied_are_not_counted_as_allowed() {
    let server = Served::with(
        "
policies:
  - {name: user, domain: api, partition: [user], limit: 5/h}
  - {name: all, domain: api, limit: 100/h}
",
    );
    for _ in 0..7 {
        server.check("1");
    }
    let units = |policy: &str, outcome: &str| {
        server.metric(&format!("tallygate_units_total{{domain=\"api\",policy=\"{policy}\",outcome=\"{outcome}\"}}"))
    };
    assert_eq!((units("all", "allowed"), units("all", "denied")), (Some(5.0), Some(0.0)));
    assert_eq!((units("user", "allowed"), units("user", "denied")), (Some(5.0), Some(2.0)));
}

/// `rate()` does not see the first increase of a series that was not there before.
#[test]
fn series_of_a_policy_start_at_zero() {
    let server = Served::with(
        "
policies:
  - {name: closed, domain: api, limit: 5/h, on_error: deny}
  - {name: trial, domain: api, limit: 5/h, mode: shadow}
  - {name: free, domain: api, limit: unlimited}
",
    );
    let page = server.admin_get("/metrics").text().to_owned();
    let start = "tallygate_decisions_total{domain=\"api\",policy=";
    let series: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(start)?.strip_suffix("\"} 0")).collect();
    let expected = [
        "\"closed\",outcome=\"allowed\",source=\"store",
        "\"closed\",outcome=\"denied\",source=\"store",
        "\"closed\",outcome=\"denied\",source=\"on_error_deny",
        "\"closed\",outcome=\"denied\",source=\"shed",
        "\"trial\",outcome=\"shadow_allowed\",source=\"store",
        "\"trial\",outcome=\"shadow_allowed\",source=\"on_error_local",
        "\"trial\",outcome=\"shadow_denied\",source=\"store",
        "\"trial\",outcome=\"shadow_denied\",source=\"on_error_local",
        "\"free\",outcome=\"allowed\",source=\"unlimited",
    ];
    assert_eq!(series, expected);
    assert_eq!(page.lines().filter(|line| line.starts_with("tallygate_units_total{")).count(), 6);
}

/// It was absent, so no alert could compare it.
#[test]
fn the_time_of_the_last_audit_is_0_if_none_has_succeeded_and_absent_if_audits_are_off() {
    let with = |audit_every| {
        Served::start(POLICIES, |settings| {
            settings.store = StoreSpec { audit_every, ..StoreSpec::new("redis://127.0.0.1:1") };
        })
    };
    let metric = "tallygate_audit_last_success_timestamp_seconds";
    let audited = with(Duration::from_secs(300));
    assert_eq!((audited.metric(metric), audited.metric("tallygate_keys ")), (Some(0.0), None));
    assert_eq!(with(Duration::ZERO).metric(metric), None);
    assert!(Served::with(POLICIES).metric(metric) > Some(0.0), "the embedded store is always counted");
}

#[test]
fn the_process_and_the_listeners_are_measured() {
    let server = Served::with(POLICIES);
    server.check("1");
    let value = |name: &str| server.metric(name).unwrap_or_else(|| panic!("no {name}"));
    assert!(value("process_resident_memory_bytes ") > 1e6);
    assert!(value("process_virtual_memory_bytes ") >= value("process_resident_memory_bytes "));
    assert!(value("process_open_fds ") >= 3.0 && value("process_max_fds ") >= value("process_open_fds "));
    assert!(value("process_start_time_seconds ") > 1.7e9 && value("process_cpu_seconds_total ") >= 0.0);
    assert!(value("tallygate_requests_total{listener=\"http\"}") >= 1.0);
    assert_eq!(value("tallygate_panics_total{listener=\"http\"}"), 0.0);
    let page = server.admin_get("/metrics");
    assert!(page.text().contains("# TYPE tallygate_store_evicted_keys_total counter\n"));
}

/// Its 404 named a document that was itself a 404.
#[test]
fn the_admin_listener_describes_itself() {
    let server = Served::with(POLICIES);
    let get = |path| http::request(server.admin, "GET", path, &[bearer()], b"");
    let missing = body(&get("/"));
    assert_eq!(missing["code"], "unknown_path");
    assert!(missing["detail"].as_str().unwrap().contains("GET /openapi.json"), "{missing}");
    let document = body(&get("/openapi.json"));
    assert!(document["paths"]["/-/reload"]["post"].is_object());
    let elsewhere = body(&get("/v1/check"));
    assert_eq!(elsewhere["detail"], "`/v1/check` is served by the HTTP listener, not by this one.");
    let method = body(&get("/-/reload"));
    assert_eq!(method["detail"], "/-/reload does not take GET: use POST.");
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
