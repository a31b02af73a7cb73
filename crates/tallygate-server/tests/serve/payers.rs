//! Policies with several payers, over HTTP.

use serde_json::{Value, json};
use tallygate_server::store::StoreSpec;
use tallygate_testkit::Server;
use tallygate_testkit::http::request;

use crate::support::served::{Served, body, until};

const POLICIES: &str = "
policies:
  - name: tokens
    domain: llm
    partition: [customer]
    limit: 10/h fixed_window
    payers:
      - {name: credits, limit: 5/365d fixed_window}
      - {name: overage, limit: 3/month in UTC}
";

fn question(more: Value) -> Value {
    let mut question = json!({"domain": "llm", "descriptors": [{"customer": "acme"}]});
    question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    question
}

/// Of each payer, what it has paid, was given back, and has left.
fn payers(answer: &Value) -> Vec<(String, u64, u64, u64)> {
    let number = |payer: &Value, name: &str| payer[name].as_u64().unwrap_or_default();
    let part = answer.get("statuses").unwrap_or(&answer["policies"]);
    let payers = part[0]["payers"].as_array().unwrap().iter();
    let told = payers.map(|payer| {
        let name = payer["name"].as_str().unwrap().to_owned();
        (name, number(payer, "paid"), number(payer, "refunded"), number(payer, "remaining"))
    });
    told.collect()
}

fn told(numbers: [(u64, u64, u64); 3]) -> Vec<(String, u64, u64, u64)> {
    let names = ["tokens", "credits", "overage"].into_iter().map(str::to_owned);
    names.zip(numbers).map(|(name, (paid, refunded, left))| (name, paid, refunded, left)).collect()
}

/// A server on the embedded store, and one on Redis.
fn on_both(test: impl Fn(&Served)) {
    test(&Served::with(POLICIES));
    let redis = Server::redis().start();
    let served = Served::start(POLICIES, |settings| settings.store = StoreSpec::new(&redis.url()));
    until("the store", || request(served.http, "GET", "/readyz", &[], b"").status == 200);
    test(&served);
}

#[test]
fn the_answer_says_who_paid_how_much() {
    on_both(|server| {
        let allowed = server.post("/v1/check", &question(json!({"cost": 13})));
        let answer = body(&allowed);
        assert_eq!((allowed.status, &answer["limit"], &answer["remaining"]), (200, &json!(18), &json!(5)));
        assert_eq!(payers(&answer), told([(10, 0, 0), (3, 0, 2), (0, 0, 3)]));
        assert_eq!(answer["payers"], answer["statuses"][0]["payers"], "the part that binds");
        let denied = server.post("/v1/check", &question(json!({"cost": 6})));
        assert_eq!(denied.status, 429);
        assert_eq!(payers(&body(&denied)), told([(0, 0, 0), (0, 0, 2), (0, 0, 3)]));
        let refunded = server.post("/v1/refund", &question(json!({"cost": 4})));
        assert_eq!(payers(&body(&refunded)), told([(0, 1, 1), (0, 3, 5), (0, 0, 3)]));
        let granted = server.post("/v1/check", &question(json!({"cost": 50, "up_to": true})));
        assert_eq!(body(&granted)["granted"], 9);
        assert_eq!(payers(&body(&granted)), told([(1, 0, 0), (5, 0, 0), (3, 0, 0)]));
        let metrics = server.admin_get("/metrics").text().to_owned();
        for (payer, units) in [("tokens", 11), ("credits", 8), ("overage", 3)] {
            let sample =
                format!("tallygate_paid_units_total{{domain=\"llm\",policy=\"tokens\",payer=\"{payer}\"}} {units}\n");
            assert!(metrics.contains(&sample), "{sample}");
        }
    });
}

#[test]
fn nothing_is_held_of_several_payers() {
    on_both(|server| {
        let refused = server.post("/v1/reserve", &question(json!({"units": 2})));
        assert_eq!(refused.status, 400);
        assert!(body(&refused)["detail"].as_str().unwrap().contains("check and refund instead"), "{}", refused.text());
        let left = body(&server.post("/v1/peek", &question(json!({}))));
        assert_eq!(left["remaining"], 18);
    });
}
