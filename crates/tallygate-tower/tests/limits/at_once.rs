//! A store that answers at once and one that has to be waited for give the same answers.

use std::time::Duration;

use http::Request;
use proptest::prelude::*;
use tallygate::MemoryStore;
use tallygate::clock::{ManualClock, Timestamp};
use tallygate_testkit::FaultyStore;
use tallygate_tower::{Dialect, Mode, Prefixes, RateLimit, Rule};

use super::rig::send;

#[derive(Debug, Clone)]
struct Call {
    peer: Option<&'static str>,
    method: &'static str,
    preflight: bool,
    /// What the service behind answers.
    status: u16,
    /// How long before it nobody calls.
    pause: u64,
}

impl Call {
    fn request(&self) -> Request<()> {
        let mut request = Request::builder().method(self.method).uri(format!("/{}", self.status));
        request = request.header("origin", "https://example.com");
        if let Some(peer) = self.peer {
            request = request.extension(peer.parse::<std::net::IpAddr>().unwrap());
        }
        if self.preflight {
            request = request.header("access-control-request-method", "GET");
        }
        request.body(()).unwrap()
    }
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let peers = vec![None, Some("192.0.2.1"), Some("192.0.2.201"), Some("::ffff:192.0.2.1"), Some("2001:db8::1")];
    let peer = prop::sample::select(peers);
    let method = prop::sample::select(vec!["GET", "POST", "OPTIONS"]);
    let status = prop::sample::select(vec![200, 401]);
    let call = (peer, method, any::<bool>(), status, prop::sample::select(vec![0, 1, 700, 30_000]));
    let call =
        call.prop_map(|(peer, method, preflight, status, pause)| Call { peer, method, preflight, status, pause });
    prop::collection::vec(call, 1..30)
}

fn layers() -> impl Strategy<Value = (Dialect, RateLimit)> {
    let limit = prop::sample::select(vec!["3/min", "2/s burst 4", "5/h fixed_window", "2/min sliding_log", "0/s"]);
    let told = (prop::sample::select(Dialect::ALL.to_vec()), any::<bool>(), any::<bool>(), any::<bool>());
    let rule = (limit, prop::sample::select(Mode::ALL), any::<bool>(), prop::sample::select(vec![24, 32]));
    (rule, told).prop_map(|((limit, mode, anonymous, v4), (dialect, expose, preflights, failures))| {
        let mut rule = Rule::new("näme", limit).unwrap().mode(mode);
        if anonymous {
            rule = rule.anonymous("1/h").unwrap();
        }
        let mut layer = RateLimit::new().rule(rule).prefixes(Prefixes { v4, v6: 64 }).headers(dialect);
        if expose {
            layer = layer.expose_headers();
        }
        if failures {
            layer = layer.count_failures();
        }
        (dialect, if preflights { layer.limit_preflights() } else { layer })
    })
}

proptest! {
    #[test]
    fn waiting_for_the_store_changes_no_answer((dialect, layer) in layers(), calls in calls()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
        let store = || MemoryStore::builder().clock(clock.clone()).build();
        // A faulty store never answers at once, even while it works.
        let (at_once, later) = (layer.clone().store(store()), layer.store(FaultyStore::new(store())));
        for call in calls {
            clock.advance(Duration::from_millis(call.pause));
            let at_once = runtime.block_on(send(&at_once, call.request()));
            let later = runtime.block_on(send(&later, call.request()));
            let [at_once, later] = [at_once, later].map(|answer| {
                let mut headers = answer.headers;
                if dialect == Dialect::XEpoch {
                    // An instant of the machine's clock: a second may have begun between the two.
                    headers.remove("x-ratelimit-reset");
                }
                (answer.status, headers, answer.body, answer.verdict)
            });
            prop_assert_eq!(at_once, later);
        }
    }
}
