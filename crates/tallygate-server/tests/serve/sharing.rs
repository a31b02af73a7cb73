//! Several servers, one limit.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use tallygate_server::store::StoreSpec;
use tallygate_testkit::Server;
use tallygate_testkit::http::{Client, request};

use crate::support::served::{Served, until};

const LIMIT: u64 = 500;

fn policies() -> String {
    let own = format!("{{name: per-user, domain: api, partition: [user], limit: {LIMIT}/h, algorithm: sliding_log}}");
    format!("policies: [{own}, {{name: all, domain: api, limit: 100000/h, algorithm: fixed_window}}]")
}

/// Calls of one user at all of `servers`, by many callers at once: how many were allowed.
fn admitted(servers: &[SocketAddr]) -> u64 {
    let allowed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for caller in 0..16 {
            let (addr, allowed) = (servers[caller % servers.len()], &allowed);
            scope.spawn(move || {
                let mut client = Client::open(addr).unwrap();
                let question = json!({"domain": "api", "descriptors": [{"user": "1"}]}).to_string();
                for _ in 0..LIMIT / 8 {
                    let headers = [("content-type", "application/json")];
                    let answer = client.request("POST", "/v1/check", &headers, question.as_bytes()).unwrap();
                    assert!(matches!(answer.status, 200 | 429), "{}", answer.text());
                    allowed.fetch_add(u64::from(answer.status == 200), Ordering::Relaxed);
                }
            });
        }
    });
    allowed.into_inner()
}

#[test]
fn two_servers_on_one_redis_admit_exactly_the_limit_between_them() {
    let redis = Server::redis().start();
    let url = redis.url();
    let server = || {
        let store = StoreSpec { deadline: std::time::Duration::from_secs(5), ..StoreSpec::new(&url) };
        let served = Served::start(&policies(), |settings| settings.store = store);
        until("the store", || request(served.http, "GET", "/readyz", &[], b"").status == 200);
        served
    };
    let (one, other) = (server(), server());
    assert_eq!(admitted(&[one.http, other.http]), LIMIT);
}

#[test]
fn one_server_on_the_embedded_store_admits_exactly_the_limit() {
    let server = Served::with(&policies());
    assert_eq!(admitted(&[server.http]), LIMIT);
}
