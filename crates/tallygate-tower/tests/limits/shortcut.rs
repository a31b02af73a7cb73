//! The shortcut that most requests take answers as the long way does, on which the verdict is shared.

use std::time::Duration;

use http::Request;
use proptest::prelude::*;
use tallygate::{ManualClock, MemoryStore, Timestamp};
use tallygate_tower::{Dialect, Mode, Prefixes, RateLimit, Rule};

use super::rig::send;

#[derive(Debug, Clone)]
struct Call {
    peer: Option<&'static str>,
    method: &'static str,
    preflight: bool,
    /// How long before it nobody calls.
    pause: u64,
}

impl Call {
    fn request(&self) -> Request<()> {
        let mut request = Request::builder().method(self.method).header("origin", "https://example.com");
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
    let call = (peer, method, any::<bool>(), prop::sample::select(vec![0, 1, 700, 30_000]));
    let call = call.prop_map(|(peer, method, preflight, pause)| Call { peer, method, preflight, pause });
    prop::collection::vec(call, 1..30)
}

fn layers() -> impl Strategy<Value = (Dialect, RateLimit)> {
    let limit = prop::sample::select(vec!["3/min", "2/s burst 4", "5/h fixed_window", "2/min sliding_log", "0/s"]);
    let told = (prop::sample::select(Dialect::ALL.to_vec()), any::<bool>(), any::<bool>());
    let rule = (limit, prop::sample::select(Mode::ALL), any::<bool>(), prop::sample::select(vec![24, 32]));
    (rule, told).prop_map(|((limit, mode, anonymous, v4), (dialect, expose, preflights))| {
        let mut rule = Rule::new("näme", limit.parse().unwrap()).mode(mode);
        if anonymous {
            rule = rule.anonymous("1/h".parse().unwrap());
        }
        let mut layer = RateLimit::new().rule(rule).prefixes(Prefixes { v4, v6: 64 }).headers(dialect);
        if expose {
            layer = layer.expose_headers();
        }
        (dialect, if preflights { layer.limit_preflights() } else { layer })
    })
}

proptest! {
    #[test]
    fn the_shortcut_answers_as_the_long_way_does((dialect, layer) in layers(), calls in calls()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
        let on_its_own_store = |layer: RateLimit| layer.store(MemoryStore::builder().clock(clock.clone()).build());
        let (short, long) = (on_its_own_store(layer.clone()), on_its_own_store(layer.share_verdict()));
        for call in calls {
            clock.advance(Duration::from_millis(call.pause));
            let answers = [&short, &long].map(|layer| runtime.block_on(send(layer, call.request())));
            let [short, long] = answers.map(|answer| {
                let mut headers = answer.headers;
                if dialect == Dialect::XEpoch {
                    // An instant of the machine's clock: a second may have begun between the two.
                    headers.remove("x-ratelimit-reset");
                }
                (answer.status, headers, answer.body)
            });
            prop_assert_eq!(short, long);
        }
    }
}
