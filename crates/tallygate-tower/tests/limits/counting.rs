//! Only failures, or only successes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tallygate::MemoryStore;
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::decision::Source;
use tallygate::policy::{Descriptor, Domain, Mode, Policy, PolicySet, Ruling};
use tallygate::store::Allotments;
use tallygate_redis::RedisStore;
use tallygate_testkit::{FaultyStore, Server};
use tallygate_tower::{OnError, RateLimit, Rule};
use tokio::sync::Semaphore;
use tower::{Layer, ServiceExt, service_fn};

use super::rig::{from, send, statuses, verdict};

fn calls(paths: &[&str]) -> Vec<http::Request<()>> {
    paths.iter().map(|path| from("192.0.2.1", path)).collect()
}

#[tokio::test]
async fn logins_that_succeed_cost_nothing() {
    let layer = RateLimit::per_client("2/min").unwrap().count_failures();
    let paths = ["/200", "/200", "/200", "/401", "/200", "/401", "/401", "/200"];
    assert_eq!(statuses(&layer, calls(&paths)).await, [200, 200, 200, 401, 200, 401, 429, 429]);
}

#[tokio::test]
async fn failures_cost_nothing_where_only_successes_count() {
    let layer = RateLimit::per_client("1/min").unwrap().count_successes();
    assert_eq!(statuses(&layer, calls(&["/500", "/404", "/200", "/200"])).await, [500, 404, 200, 429]);
}

/// Units that a shadow had no room for were given back all the same, and it forgot what it had counted.
#[tokio::test]
async fn what_was_not_charged_is_not_given_back() {
    let policy = |name: &str, limit: &str| Policy::new(name, "api", limit).unwrap();
    let policies = [policy("trial", "1/h").with_mode(Mode::Shadow), policy("real", "9/h")];
    let rules = policies.map(|policy| (policy, tallygate::policy::Rule::new()));
    let set = PolicySet::new(vec![Domain::new("api", rules).unwrap()]).unwrap();
    let layer = RateLimit::new().policies(set.into(), "api", |_| Descriptor::new()).count_successes();
    let mut left = Vec::new();
    for path in ["/200", "/500", "/500"] {
        let verdict = verdict(&layer, from("192.0.2.1", path)).await;
        let of = |ruling: &Ruling| (ruling.status().remaining(), ruling.charged());
        left.push([0, 1].map(|at| of(&verdict.rulings()[at])));
    }
    // Outer layers see the state after the refund, as the headers do.
    assert_eq!(left, [[(0, 1), (8, 1)], [(0, 0), (8, 0)], [(0, 0), (8, 0)]]);
}

#[tokio::test]
async fn a_caller_that_goes_away_before_the_response_stays_counted() {
    use tower::{Layer, Service, service_fn};
    let layer = RateLimit::per_client("1/min").unwrap().count_failures();
    let mut never = layer.layer(service_fn(|_: http::Request<()>| {
        std::future::pending::<Result<http::Response<http_body_util::Full<bytes::Bytes>>, std::convert::Infallible>>()
    }));
    let gone = never.call(from("192.0.2.1", "/200"));
    drop(gone);
    assert_eq!(send(&layer, from("192.0.2.1", "/200")).await.status, 429);
}

#[tokio::test]
async fn on_redis_too() {
    let redis = Server::redis().start();
    let store = RedisStore::builder(&redis.url()).deadline(std::time::Duration::from_secs(5)).connect().await.unwrap();
    let layer = RateLimit::per_client("2/min").unwrap().count_failures().store(store);
    let paths = ["/200", "/200", "/401", "/200", "/401", "/401"];
    assert_eq!(statuses(&layer, calls(&paths)).await, [200, 200, 401, 200, 401, 429]);
}

#[tokio::test]
async fn a_dead_store_is_answered_by_each_rule_and_said_in_the_verdict() {
    let redis = Server::redis().start();
    let url = redis.url();
    let layer = |on_error| {
        let url = url.clone();
        async move {
            let store =
                RedisStore::builder(&url).deadline(std::time::Duration::from_millis(200)).connect().await.unwrap();
            RateLimit::new().rule(Rule::new("r", "1/min").unwrap().on_error(on_error)).store(store).share_verdict()
        }
    };
    let layers = [layer(OnError::Allow).await, layer(OnError::Deny).await, layer(OnError::Local).await];
    redis.kill();
    let mut seen = Vec::new();
    for layer in &layers {
        let answers = [send(layer, from("192.0.2.1", "/")).await, send(layer, from("192.0.2.1", "/")).await];
        seen.push(answers.map(|answer| (answer.status.as_u16(), answer.verdict.unwrap().rulings()[0].source().name())));
    }
    assert_eq!(
        seen,
        [
            [(200, "on_error_allow"), (200, "on_error_allow")],
            [(503, "on_error_deny"), (503, "on_error_deny")],
            [(200, "on_error_local"), (429, "on_error_local")],
        ]
    );
}

/// `Allow` let everybody pass who came while too many calls were in flight to a healthy store.
#[tokio::test]
async fn an_overloaded_process_sheds_whatever_on_error_says() {
    let mut seen = Vec::new();
    for &on_error in OnError::ALL {
        let store = FaultyStore::new(MemoryStore::new());
        store.switch().overload();
        let rule = Rule::new("r", "2/min").unwrap().on_error(on_error);
        let layer = RateLimit::new().rule(rule).instances(2).store(store).share_verdict();
        let answers = [send(&layer, from("192.0.2.1", "/")).await, send(&layer, from("192.0.2.1", "/")).await];
        seen.push(answers.map(|answer| {
            let source = answer.verdict.as_ref().unwrap().rulings()[0].source().name();
            (answer.status.as_u16(), source, answer.header("retry-after").is_some())
        }));
    }
    let (shed, share) = ([(503, "shed", true); 2], [(200, "on_error_local", false), (429, "on_error_local", true)]);
    assert_eq!(seen, [shed, shed, share]);
}

#[tokio::test]
async fn units_taken_in_advance_admit_exactly_the_limit() {
    let redis = Server::redis().start();
    let store = RedisStore::builder(&redis.url()).deadline(std::time::Duration::from_secs(5)).connect().await.unwrap();
    let rule = Rule::new("r", "300/h fixed_window_from_first_call").unwrap().allotment(true);
    let layer = RateLimit::new().rule(rule).store(Allotments::new(store)).share_verdict();
    let (mut admitted, mut local) = (0, 0);
    for _ in 0..400 {
        let answer = send(&layer, from("192.0.2.1", "/")).await;
        admitted += u64::from(answer.status == 200);
        local += u64::from(answer.verdict.unwrap().rulings()[0].source() == Source::Allotment);
    }
    assert_eq!(admitted, 300);
    assert!(local > 0);
}

/// Each of several layers on one store had a share of its own while that was unreachable.
#[tokio::test]
async fn layers_made_from_one_have_one_share() {
    let store = FaultyStore::new(MemoryStore::new());
    store.switch().off();
    let base = RateLimit::new().store(store);
    let layers = [(); 2].map(|()| base.clone().rule(Rule::new("r", "2/min").unwrap().on_error(OnError::Local)));
    let mut seen = Vec::new();
    for layer in [&layers[0], &layers[1], &layers[0], &layers[1]] {
        seen.push(send(layer, from("192.0.2.1", "/")).await.status.as_u16());
    }
    assert_eq!(seen, [200, 200, 429, 429]);
}

/// It was 500, and an error in the log.
#[tokio::test]
async fn more_rules_than_a_decision_has_deny() {
    let rules = (0..33).map(|number| Rule::new(format!("r{number}"), "9/min").unwrap());
    let layer = rules.fold(RateLimit::new(), RateLimit::rule);
    assert_eq!(send(&layer, from("192.0.2.1", "/")).await.status, 429);
}

/// A call that the service behind failed without a response stayed counted as a success.
#[tokio::test]
async fn an_error_is_no_success() {
    let failing = || service_fn(|_: Request<()>| async { Err::<Response<Full<Bytes>>, &str>("boom") });
    let limit = || RateLimit::per_client("1/min").unwrap();
    for (layer, second) in [(limit().count_successes(), Err("boom")), (limit().count_failures(), Ok(429))] {
        let call = || layer.layer(failing()).oneshot(from("192.0.2.1", "/"));
        assert_eq!(call().await.map(|response| response.status().as_u16()), Err("boom"));
        assert_eq!(call().await.map(|response| response.status().as_u16()), second);
    }
}

/// gRPC callers got "never retry" when only the store was unreachable.
#[tokio::test]
async fn without_the_store_grpc_callers_are_told_to_come_again_soon() {
    let redis = Server::redis().start();
    let store =
        RedisStore::builder(&redis.url()).deadline(std::time::Duration::from_millis(200)).connect().await.unwrap();
    let rule = Rule::new("r", "1/min").unwrap().on_error(OnError::Deny);
    let layer = RateLimit::new().rule(rule).store(store);
    redis.kill();
    let mut call = from("192.0.2.1", "/");
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let denied = send(&layer, call).await;
    assert_eq!((denied.header("grpc-status"), denied.header("grpc-retry-pushback-ms")), (Some("14"), Some("1000")));
}

fn on_manual_clock(limit: &str) -> (RateLimit, ManualClock) {
    let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
    let layer = RateLimit::new().rule(Rule::new("logins", limit).unwrap()).count_failures();
    (layer.store(MemoryStore::builder().clock(clock.clone()).build()), clock)
}

/// Each success replaced the oldest failure, which then counted forever.
#[tokio::test]
async fn failures_stop_counting_whatever_succeeds_meanwhile() {
    for algorithm in ["sliding_log", "sliding_window", "token_bucket", "sliding_counter", "fixed_window"] {
        let (layer, clock) = on_manual_clock(&format!("5/15min {algorithm}"));
        assert_eq!(statuses(&layer, calls(&["/401"; 4])).await, [401; 4]);
        for _ in 0..20 {
            clock.advance(Duration::from_secs(180));
            assert_eq!(statuses(&layer, calls(&["/200"])).await, [200]);
        }
        assert_eq!(statuses(&layer, calls(&["/401"; 6])).await, [401, 401, 401, 401, 401, 429], "{algorithm}");
    }
}

/// Successes that were held open for minutes were given back although their units had long been regained: as many guesses were
/// free at once.
#[tokio::test]
async fn slow_successes_cannot_be_saved_up() {
    for algorithm in ["sliding_log", "sliding_window", "token_bucket", "sliding_counter", "fixed_window"] {
        let (layer, clock) = on_manual_clock(&format!("5/min {algorithm}"));
        let gate = Arc::new(Semaphore::new(0));
        let slow = {
            let gate = Arc::clone(&gate);
            layer.layer(service_fn(move |_: Request<()>| {
                let gate = Arc::clone(&gate);
                async move {
                    gate.acquire().await.unwrap().forget();
                    Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
                }
            }))
        };
        let mut held = Vec::new();
        for _ in 0..6 {
            for _ in 0..5 {
                held.push(tokio::spawn(slow.clone().oneshot(from("192.0.2.1", "/"))));
                tokio::task::yield_now().await;
            }
            clock.advance(Duration::from_secs(60));
        }
        let mut guesses = 0;
        for one in held {
            while statuses(&layer, calls(&["/401"])).await == [401] {
                guesses += 1;
            }
            gate.add_permits(1);
            one.await.unwrap().unwrap();
        }
        assert!(guesses <= 5, "{algorithm}: {guesses} guesses at once under 5/min");
    }
}
