//! Copies of one service on one Redis.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tallygate_testkit::Server;
use tallygate_testkit::http::Client;

use super::process::Listening;

/// How often `headers` got through to `copies`, of `calls` from so many connections at once to each copy.
fn admitted(copies: &[Listening], headers: &[(&str, &str)], connections: usize, calls: usize) -> (u64, u64) {
    let (admitted, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for copy in copies {
            for _ in 0..connections {
                scope.spawn(|| {
                    let mut client = Client::open(copy.address).unwrap();
                    for _ in 0..calls {
                        match client.request("GET", "/", headers, b"").unwrap().status {
                            200 => admitted.fetch_add(1, Relaxed),
                            429 => refused.fetch_add(1, Relaxed),
                            other => panic!("{other}"),
                        };
                    }
                });
            }
        }
    });
    (admitted.into_inner(), refused.into_inner())
}

#[test]
fn three_copies_admit_exactly_the_limit_between_them() {
    let redis = Server::redis().start();
    let url = redis.url();
    let copies: Vec<Listening> = (0..3).map(|_| Listening::start("axum_plans", &[("TALLYGATE_STORE", &url)])).collect();
    // 3 copies of 8 connections of 70 calls, and 3 of 4 of 20, and 3 of 4 of 5.
    assert_eq!(admitted(&copies, &[("x-api-key", "key-of-acme")], 8, 70), (1000, 680));
    assert_eq!(admitted(&copies, &[("x-api-key", "key-of-bob")], 4, 20), (100, 140));
    // Unknown callers share one state, whatever key they made up.
    assert_eq!(admitted(&copies, &[("x-api-key", "made-up")], 4, 5), (10, 50));
    assert_eq!(admitted(&copies, &[], 1, 5), (0, 15));
}

#[test]
fn without_a_store_each_copy_counts_alone() {
    let copies: Vec<Listening> = (0..2).map(|_| Listening::start("axum_plans", &[])).collect();
    assert_eq!(admitted(&copies, &[("x-api-key", "key-of-bob")], 2, 60), (200, 40));
}
