//! What is in flight: reserved, renewed and released over HTTP.

use serde_json::{Value, json};
use tallygate_testkit::Server;
use tallygate_testkit::http::{Response, request};

use crate::support::served::{Served, body, until};

const POLICIES: &str = "
policies:
  - {name: jobs, domain: work, partition: [user], limit: 2 concurrent, holds: {max_ttl: 10s}}
  - {name: requests, domain: work, partition: [user], limit: 10/h}
  - {name: watched, domain: shadow, partition: [user], limit: 2 concurrent, mode: shadow}
";

/// A server on the embedded store, and one on Redis.
fn on_both(test: impl Fn(&Served)) {
    test(&Served::with(POLICIES));
    let redis = Server::redis().start();
    let store = tallygate_server::store::StoreSpec {
        deadline: std::time::Duration::from_secs(5),
        ..tallygate_server::store::StoreSpec::new(&redis.url())
    };
    let served = Served::start(POLICIES, |settings| settings.store = store);
    until("the store", || request(served.http, "GET", "/readyz", &[], b"").status == 200);
    test(&served);
}

fn reserve(server: &Served, user: &str) -> Response {
    server.post("/v1/reserve", &json!({"domain": "work", "descriptors": [{"user": user}], "ttl_ms": 9000}))
}

fn reserved(server: &Served, user: &str) -> String {
    let answer = reserve(server, user);
    assert_eq!(answer.status, 200, "{}", answer.text());
    body(&answer)["hold"].as_str().unwrap().to_owned()
}

fn renew(server: &Served, hold: &str, next: &str) -> (u16, Value) {
    let answer = server.post("/v1/renew", &json!({"hold": hold, "next": next, "ttl_ms": 9000}));
    (answer.status, body(&answer))
}

#[test]
fn a_place_is_held_renewed_and_free_again() {
    on_both(|server| {
        let [one, two] = [reserved(server, "a"), reserved(server, "a")];
        let denied = reserve(server, "a");
        let said = body(&denied);
        assert_eq!((denied.status, &said["policy"], &said["held"]), (429, &json!("jobs"), &json!(2)));
        assert!(said["retry_after_ms"].as_u64().unwrap() <= 9000, "{said}");
        // Its answer is lost, and it is repeated.
        let first = renew(server, &one, "2");
        assert_eq!((first.0, &first.1["state"]), (200, &json!("open")), "{first:?}");
        let renewed = first.1["hold"].as_str().unwrap().to_owned();
        assert_eq!(renew(server, &one, "2").1["hold"], renewed.as_str());
        let stale = server.post("/v1/settle", &json!({ "hold": one }));
        assert_eq!((stale.status, &body(&stale)["code"]), (409, &json!("hold_renewed")));
        assert_eq!(renew(server, &one, "3").0, 409);
        let settled = body(&server.post("/v1/settle", &json!({ "hold": renewed })));
        assert_eq!((&settled["state"], &settled["policies"][0]["refunded"]), (&json!("settled"), &json!(1)));
        assert_eq!(settled["policies"][1]["settled"], 1, "the request was made");
        reserved(server, "a");
        server.post("/v1/cancel", &json!({ "hold": two }));
    });
}

#[test]
fn many_leases_are_renewed_by_one_call() {
    on_both(|server| {
        let [one, two] = [reserved(server, "a"), reserved(server, "b")];
        server.post("/v1/cancel", &json!({ "hold": two }));
        let asked = json!({"holds": [{"hold": one, "next": "2"}, {"hold": two, "next": "2"}], "ttl_ms": 9000});
        let answer = server.post("/v1/renew", &asked);
        let holds = body(&answer)["holds"].clone();
        assert_eq!((answer.status, &holds[0]["state"], &holds[1]["state"]), (200, &json!("open"), &json!("cancelled")));
        assert_eq!(holds[1]["code"], "hold_ended");
        let next = holds[0]["hold"].as_str().unwrap();
        assert_eq!(server.post("/v1/settle", &json!({ "hold": next })).status, 200);
    });
}

#[test]
fn what_makes_no_sense_is_refused_with_the_remedy() {
    on_both(|server| {
        let hold = reserved(server, "a");
        let many: Vec<Value> = (0..257).map(|_| json!({"hold": hold, "next": "2"})).collect();
        for (asked, says) in [
            (json!({"hold": hold, "ttl_ms": 9000}), "`next` names this renewal"),
            (json!({"hold": hold, "next": "", "ttl_ms": 9000}), "`next` names this renewal"),
            (json!({"hold": hold, "next": "2"}), "Missing field `ttl_ms`"),
            (json!({"hold": hold, "next": "2", "ttl_ms": 0}), "`ttl_ms` must be from 1"),
            (json!({"hold": hold, "next": "2", "ttl_ms": 11000}), "lasts from 1 ms to 10s"),
            (json!({"hold": "xyz", "next": "2", "ttl_ms": 9000}), "`hold` is invalid"),
            (json!({"holds": [], "ttl_ms": 9000}), "from 1 to 256"),
            (json!({"holds": many, "ttl_ms": 9000}), "from 1 to 256"),
            (json!({"holds": [7], "ttl_ms": 9000}), "`holds[0]` must be an object"),
            (json!({"holds": {"hold": hold}, "ttl_ms": 9000}), "`holds` must be a list"),
            (json!({"holds": [{"hold": hold}], "ttl_ms": 9000}), "`next` names this renewal"),
            (json!({"holds": [{"hold": hold, "next": "2"}], "hold": hold, "ttl_ms": 9000}), "exclude each other"),
        ] {
            let answer = server.post("/v1/renew", &asked);
            let said = body(&answer);
            assert!(answer.status == 400 && said["detail"].as_str().unwrap().contains(says), "{says}: {said}");
        }
    });
}

#[test]
fn a_check_of_what_is_in_flight_is_refused_and_a_shadow_refuses_nobody() {
    on_both(|server| {
        let check = |domain: &str| server.post("/v1/check", &json!({"domain": domain, "descriptors": [{"user": "a"}]}));
        let refused = check("work");
        let said = body(&refused);
        assert_eq!((refused.status, &said["code"]), (400, &json!("only_reserved")), "{said}");
        assert!(said["detail"].as_str().unwrap().contains("/v1/reserve"), "{said}");
        let watched = check("shadow");
        assert_eq!((watched.status, &body(&watched)["allowed"]), (200, &json!(true)));
        // Nothing was charged by the check.
        let peeked = body(&server.post("/v1/peek", &json!({"domain": "work", "descriptors": [{"user": "a"}]})));
        assert_eq!([&peeked["statuses"][0]["remaining"], &peeked["statuses"][1]["remaining"]], [2, 10]);
        // A proxy cannot release anything, and an error would let the request pass.
        let envoy = json!({"domain": "work", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]});
        assert_eq!(server.post("/json", &envoy).status, 429);
    });
}
