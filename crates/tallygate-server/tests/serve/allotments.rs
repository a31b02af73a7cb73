//! Two servers on one Redis that take units of hot keys in advance.

use serde_json::json;
use tallygate_server::store::StoreSpec;
use tallygate_testkit::{Server, http};

use crate::support::served::{Served, body, until};

const POLICIES: &str = "
policies:
  - {name: hot, domain: api, partition: [user], limit: 600/h, algorithm: fixed_window_from_first_call, allotment: true}
";

fn two(redis: &Server) -> [Served; 2] {
    [0; 2].map(|_| {
        let served = Served::start(POLICIES, |settings| {
            // A call that is late on a busy machine would be decided locally.
            settings.store = StoreSpec { deadline: std::time::Duration::from_secs(5), ..StoreSpec::new(&redis.url()) };
        });
        until("the store", || http::request(served.http, "GET", "/readyz", &[], b"").status == 200);
        served
    })
}

fn question(user: &str) -> serde_json::Value {
    json!({"domain": "api", "descriptors": [{"user": user}]})
}

fn admitted(server: &Served, user: &str, calls: usize) -> usize {
    let ask = |_: &usize| server.post("/v1/check", &question(user)).status == 200;
    (0..calls).filter(ask).count()
}

fn held(server: &Served) -> f64 {
    server.metric("tallygate_allotment_units ").unwrap()
}

#[test]
fn two_servers_with_allotments_admit_exactly_the_limit() {
    let redis = Server::redis().start();
    let servers = two(&redis);
    let both = &servers;
    let mut total = std::thread::scope(|scope| {
        let callers = (0..6).map(|caller| scope.spawn(move || admitted(&both[caller % 2], "everybody", 250)));
        callers.collect::<Vec<_>>().into_iter().map(|caller| caller.join().unwrap()).sum::<usize>()
    });
    // A server whose callers had all been answered before the limit was reached gives back what it held.
    until("nothing is held", || servers.iter().all(|server| held(server) == 0.0));
    total += servers.iter().map(|server| admitted(server, "everybody", 100)).sum::<usize>();
    assert_eq!(total, 600);
    let of = |server: &Served, source: &str| {
        let labels = format!("domain=\"api\",policy=\"hot\",outcome=\"allowed\",source=\"{source}\"");
        server.metric(&format!("tallygate_decisions_total{{{labels}}}")).unwrap()
    };
    let [local, asked] =
        ["allotment", "store"].map(|source| servers.iter().map(|server| of(server, source)).sum::<f64>());
    assert_eq!(local + asked, 600.0);
    assert!(local > 0.0);
}

/// What a server does not spend is free for the other a second later, and at once if it stops.
#[test]
fn what_is_not_spent_is_given_back() {
    let redis = Server::redis().start();
    let [one, other] = two(&redis);
    let left = |user: &str| body(&other.post("/v1/peek", &question(user)))["remaining"].as_u64().unwrap();
    assert_eq!(admitted(&one, "idle", 200), 200);
    until("nothing is held", || held(&one) == 0.0);
    assert_eq!(left("idle"), 400);
    assert_eq!(admitted(&one, "stopped", 200), 200);
    one.stop().unwrap();
    assert_eq!(left("stopped"), 400);
}
