//! More calls than the server can have under way.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tallygate_server::store::StoreSpec;
use tallygate_testkit::Server;
use tallygate_testkit::http::{Response, request};

use crate::support::served::{Served, body, until};

const POLICIES: &str = "policies: [{name: own, domain: api, limit: 1000/h, on_error: local}]";
const ROOM: usize = 4;
const CALLS: usize = 60;

/// Nothing is waited for that takes this long.
const AT_ONCE: Duration = Duration::from_secs(1);

#[expect(clippy::disallowed_methods, reason = "a stopwatch: it decides nothing")]
fn clock() -> Instant {
    Instant::now()
}

fn timed(ask: impl FnOnce() -> Response) -> (Response, Duration) {
    let began = clock();
    let answer = ask();
    (answer, began.elapsed())
}

#[test]
fn calls_beyond_the_cap_are_shed_at_once_while_a_store_hangs_and_probes_get_through() {
    let redis = Server::redis().start();
    let server = Served::start(POLICIES, |settings| {
        settings.store = StoreSpec { deadline: Duration::from_secs(8), ..StoreSpec::new(&redis.url()) };
        settings.listen.max_in_flight = ROOM;
    });
    until("the store", || server.get("/readyz").status == 200);
    redis.stop();
    let (send, answers) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..CALLS {
            let (send, server) = (send.clone(), &server);
            scope.spawn(move || send.send(timed(|| server.check("1"))).unwrap());
        }
        for _ in 0..CALLS - ROOM {
            let (shed, took) = answers.recv_timeout(Duration::from_secs(5)).unwrap();
            assert_eq!((shed.status, shed.header("retry-after")), (503, Some("1")), "{}", shed.text());
            assert_eq!(shed.header("content-type"), Some("application/problem+json"));
            assert_eq!(body(&shed)["status"], json!(503));
            assert!(took < AT_ONCE, "{took:?}");
        }
        assert!(answers.try_recv().is_err(), "the others wait for the store");
        for address in [server.http, server.admin] {
            let (alive, took) = timed(|| request(address, "GET", "/livez", &[], b""));
            assert_eq!(alive.status, 200);
            assert!(took < AT_ONCE, "{took:?}");
        }
        // The cap is the listener's: operators see what goes on.
        assert_eq!(server.metric("tallygate_shed_total{listener=\"http\"}"), Some((CALLS - ROOM) as f64));
        redis.cont();
        for _ in 0..ROOM {
            let (answer, took) = answers.recv_timeout(Duration::from_secs(10)).unwrap();
            assert_eq!(answer.status, 200, "after {took:?}: {}", answer.text());
        }
    });
    assert_eq!(server.check("1").status, 200, "there is room again");
}
