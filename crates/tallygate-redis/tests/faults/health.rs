//! What counts as an outage: what a server owes, never what this process is too busy for. And whose outage it is.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tallygate::call::Verb;
use tallygate::decision::Source;
use tallygate::policy::{Action, Evaluation, Match, OnError, Policy, Stores, Subject};
use tallygate::store::StoreErrorKind;
use tallygate::{Algorithm, Check, CheckError, Cost, Decision, Key, Limit, Limiter};
use tallygate_redis::RedisStore;
use tallygate_testkit::wait::PATIENCE;
use tallygate_testkit::{Cluster, Flavour, Server};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::{RedisLimiter, every_key_expires, patient, used, within, yearly};

const DEADLINE: Duration = Duration::from_millis(50);

async fn ask(limiter: &RedisLimiter, subject: &str) -> Result<Decision, StoreErrorKind> {
    let limit = yearly(Algorithm::FixedWindow, 1_000_000);
    let key = Key::new("health", subject).unwrap();
    limiter.check(Check::new(key, &limit)).await.map_err(|error| match error {
        CheckError::Store(error) => error.kind(),
        other => panic!("{other}"),
    })
}

/// The task that looks whether a server is back ended with its runtime, and the server stayed down for ever.
#[test]
fn a_server_that_another_runtime_found_down_is_used_again() {
    let server = Server::redis().start();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (stays, ends) = (runtime(), runtime());
    let limiter = stays.block_on(within(&server.url(), DEADLINE));
    let until = async |serves: bool| {
        let start = Instant::now();
        while (limiter.store().health().served() == 1.0) != serves {
            assert!(start.elapsed() < PATIENCE, "served: {}", limiter.store().health().served());
            let _ = ask(&limiter, "s").await;
            sleep(Duration::from_millis(1)).await;
        }
    };
    server.stop();
    ends.block_on(until(false));
    drop(ends);
    server.cont();
    stays.block_on(until(true));
    assert!(stays.block_on(ask(&limiter, "s")).is_ok());
}

/// A3: the reply had arrived long before the deadline, and this process read it too late. That was called an outage.
#[tokio::test(flavor = "current_thread")]
async fn a_process_that_is_too_busy_does_not_blame_its_server() {
    let server = Server::redis().start();
    let limiter = within(&server.url(), DEADLINE).await;
    for round in 0..5 {
        let mut calls = JoinSet::new();
        for caller in 0..20 {
            let limiter = limiter.clone();
            calls.spawn(async move { ask(&limiter, &format!("busy {caller}")).await });
        }
        // Until everything is written. Then the only thread does something else for longer than the deadline.
        sleep(Duration::from_millis(5)).await;
        let mut more = JoinSet::new();
        for caller in 0..20 {
            let limiter = limiter.clone();
            more.spawn(async move { ask(&limiter, &format!("busier {caller}")).await });
        }
        tokio::task::yield_now().await;
        std::thread::sleep(3 * DEADLINE);
        for answer in calls.join_all().await.into_iter().chain(more.join_all().await) {
            match answer {
                Ok(_) => {}
                Err(StoreErrorKind::Overloaded) => {}
                Err(kind) => panic!("round {round}: the store is healthy, and a call ended as {kind:?}"),
            }
        }
        assert!(limiter.store().health().served() == 1.0, "round {round}: a healthy server is down");
    }
    every_key_expires(&server);
}

/// A3 again: the connection had been closed, and this process was too busy to open another in time. That was called an outage
/// too, and the first calls of a flood passed.
#[tokio::test(flavor = "current_thread")]
async fn a_process_that_is_too_busy_to_connect_does_not_blame_its_server() {
    let server = Server::redis().start();
    let limiter = within(&server.url(), DEADLINE).await;
    let limit = yearly(Algorithm::FixedWindow, 1_000_000);
    for round in 0..5 {
        // An open connection, and not one whose handshake is cut: that is the server's doing.
        while ask(&limiter, "ready").await.is_err() {
            sleep(DEADLINE).await;
        }
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        sleep(Duration::from_millis(5)).await;
        let mut calls = JoinSet::new();
        for caller in 0..20 {
            let (limiter, limit) = (limiter.clone(), limit.clone());
            calls.spawn(async move {
                let subject = format!("busy {caller}");
                let key = Key::new("health", &subject).unwrap();
                limiter.check(Check::new(key, &limit)).await.map(drop)
            });
        }
        tokio::task::yield_now().await;
        std::thread::sleep(3 * DEADLINE);
        for answer in calls.join_all().await {
            match answer {
                Ok(()) => {}
                Err(CheckError::Store(error)) if error.is_late() || error.kind() == StoreErrorKind::Overloaded => {}
                Err(error) => panic!("round {round}: the store is healthy, and a call ended with: {error}"),
            }
        }
    }
    every_key_expires(&server);
}

/// A2: a shard that hangs held the places in flight of all shards, until it was known to be down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_shard_holds_no_places_of_the_others() {
    const IN_FLIGHT: usize = 64;
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let store = RedisStore::builder(&cluster.url()).deadline(Duration::from_secs(3)).in_flight(IN_FLIGHT);
    let limiter = Limiter::new(store.connect().await.unwrap());
    let kind = Algorithm::FixedWindow.kind();
    let node_of = |subject: &str| {
        let key = Key::new("health", subject).unwrap().encode("tallygate", kind);
        cluster.node_of(cluster.slot_of(key.as_bytes()))
    };
    let hung = node_of("user 0");
    let (lost, served): (Vec<String>, Vec<String>) =
        (0..10 * IN_FLIGHT).map(|user| format!("user {user}")).partition(|subject| node_of(subject) == hung);
    assert!(lost.len() > IN_FLIGHT);
    for subject in &served {
        ask(&limiter, subject).await.unwrap();
    }
    cluster.nodes()[hung].stop();
    let mut calls = JoinSet::new();
    for subject in lost {
        let limiter = limiter.clone();
        calls.spawn(async move { ask(&limiter, &subject).await.is_ok() });
    }
    // Until all places are taken.
    sleep(Duration::from_millis(300)).await;
    for subject in &served {
        assert!(ask(&limiter, subject).await.is_ok(), "{subject} is on a healthy shard");
    }
    cluster.nodes()[hung].cont();
    calls.join_all().await;
}

/// A2: one breaker and one probe for the whole store took all shards with the one that died, or none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_dead_shard_costs_exactly_its_own_keys() {
    for (fault, revive) in [
        (Server::stop as fn(&Server), Server::cont as fn(&Server)),
        (Server::kill, |server| {
            server.restart();
        }),
    ] {
        let cluster = Cluster::start(Flavour::Redis, 3, 0);
        // Otherwise the others refuse to serve: that is the cluster's decision, not ours.
        for node in cluster.nodes() {
            node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
        }
        let limiter = within(&cluster.url(), DEADLINE).await;
        let subjects: Vec<String> = (0..60).map(|number| format!("user {number}")).collect();
        let limit = yearly(Algorithm::FixedWindow, 1_000_000);
        let node_of = |subject: &String| {
            let key = Key::new("health", subject).unwrap().encode("tallygate", limit.algorithm().kind());
            cluster.node_of(cluster.slot_of(key.as_bytes()))
        };
        let owners: Vec<usize> = subjects.iter().map(node_of).collect();
        for dead in 0..3 {
            fault(&cluster.nodes()[dead]);
            // Found out by the first calls.
            let began = Instant::now();
            while limiter.store().health().served() > 0.9 {
                for subject in &subjects {
                    let _ = ask(&limiter, subject).await;
                }
                assert!(began.elapsed() < PATIENCE, "nobody noticed");
            }
            for round in 0..5 {
                for (subject, owner) in subjects.iter().zip(&owners) {
                    let began = Instant::now();
                    match ask(&limiter, subject).await {
                        Ok(_) => assert_ne!(*owner, dead, "it is dead"),
                        Err(kind) if *owner == dead => assert_eq!(kind, StoreErrorKind::Unavailable),
                        Err(kind) => panic!("round {round}: {subject} is on node {owner}, not on {dead}: {kind:?}"),
                    }
                    assert!(*owner != dead || began.elapsed() < DEADLINE, "calls to a dead shard fail at once");
                }
            }
            let health = limiter.store().health();
            assert_eq!(health.servers.iter().filter(|server| server.error.is_some()).count(), 1, "{health:?}");
            assert!((0.6..0.7).contains(&health.served()), "{health:?}");
            assert!(health.any().is_ok());
            revive(&cluster.nodes()[dead]);
            cluster.wait_ok();
            let began = Instant::now();
            while limiter.store().health().served() < 1.0 {
                assert!(began.elapsed() < PATIENCE, "{:?}", limiter.store().health());
                sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

/// A server that says itself that it cannot serve was taken for late, because it answers, and `on_error: allow` denied; or for
/// healthy, because it answers what it is asked about the cluster, and each call waited for its deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_says_that_it_is_not_ready_is_down_and_not_late() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let limiter = within(&cluster.url(), DEADLINE).await;
    let node_of = |subject: &String| {
        let key = Key::new("health", subject).unwrap().encode("tallygate", "fw");
        cluster.node_of(cluster.slot_of(key.as_bytes()))
    };
    let subject = (0..).map(|number| format!("user {number}")).find(|subject| node_of(subject) == 1).unwrap();
    let (address, limit) = (cluster.nodes()[1].addr().to_string(), yearly(Algorithm::FixedWindow, 1_000_000));
    // With `cluster-require-full-coverage`, the others refuse to serve.
    cluster.nodes()[0].kill();
    let (mut refused, began) = (0, Instant::now());
    while refused < 200 {
        let check = Check::new(Key::new("health", &subject).unwrap(), &limit);
        let health = limiter.store().health();
        let down = health.servers.iter().any(|server| server.address == address && server.error.is_some());
        match limiter.check(check).await {
            Err(CheckError::Store(error)) if error.to_string().contains("CLUSTERDOWN") => {
                assert!(!error.is_late(), "{error}");
                // The first calls wait for their deadlines, to no avail.
                assert!(down || refused < 5, "the server is still called");
                refused += 1;
            }
            other => assert!(refused == 0 && began.elapsed() < PATIENCE, "{other:?}"),
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// A2, A5: a call over several shards failed as a whole if one was dead, so the limits on the others were not enforced either.
/// What was decided counts; `on_error` answers for the rest only; and if it denies, nothing stays charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_over_a_dead_shard_still_obeys_the_others() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let store = RedisStore::builder(&cluster.url()).deadline(DEADLINE).connect().await.unwrap();
    let node_of = |policy: &str, subject: &str| {
        let key = Key::new(policy, subject).unwrap().encode("tallygate", "fw");
        cluster.node_of(cluster.slot_of(key.as_bytes()))
    };
    let dead = node_of("api/tenant", "tenant=acme");
    let mut users =
        (0..).map(|number| number.to_string()).filter(|user| node_of("api/user", &format!("user={user}")) != dead);
    let limit = yearly(Algorithm::FixedWindow, 5);
    for (on_error, admitted) in [(OnError::Allow, 5), (OnError::Deny, 0), (OnError::Local, 3)] {
        let policy = |name: &str, limit: &Limit| {
            Arc::new(Policy::new(name, "api", limit.clone()).unwrap().with_on_error(on_error))
        };
        let (per_user, per_tenant) = (policy("user", &limit), policy("tenant", &yearly(Algorithm::FixedWindow, 3)));
        let stores = Stores::new(store.clone());
        let user = users.next().unwrap();
        cluster.nodes()[dead].stop();
        // Late is not down: until the outage is known, such a call is taken back as a whole.
        let (began, limiter) = (Instant::now(), Limiter::new(store.clone()));
        while store.health().served() > 0.9 {
            let check = Check::new(Key::new("api/tenant", "tenant=acme").unwrap(), &limit);
            assert!(limiter.peek(check).await.is_err() && began.elapsed() < PATIENCE);
        }
        let evaluate = |user: &str| {
            let matches = [
                Match::new(Arc::clone(&per_user), 0, Subject::new([("user", user)])),
                Match::new(Arc::clone(&per_tenant), 0, Subject::new([("tenant", "acme")])),
            ];
            Evaluation::new(matches, Action::new(Verb::Check, Cost::ONE)).decide(&stores, None)
        };
        let mut allowed = 0;
        for _ in 0..20 {
            let verdict = evaluate(&user).await;
            allowed += u64::from(verdict.allowed());
            let sources: Vec<Source> = verdict.rulings().iter().map(|ruling| ruling.source()).collect();
            assert_eq!(sources[0], Source::Store, "{on_error:?}: its shard is healthy: {sources:?}");
            assert_ne!(sources[1], Source::Store, "{on_error:?}: its shard is dead: {sources:?}");
        }
        // A caller that leaves when the answer was sent, and before it is received, left the healthy shard charged.
        let gone = users.next().unwrap();
        let mut call = Box::pin(evaluate(&gone));
        let polled = std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
        assert!(polled.is_pending());
        sleep(2 * DEADLINE).await;
        drop(call);
        cluster.nodes()[dead].cont();
        assert_eq!(allowed, admitted, "{on_error:?}");
        let began = Instant::now();
        while store.health().served() < 1.0 {
            assert!(began.elapsed() < PATIENCE);
            sleep(Duration::from_millis(5)).await;
        }
        let judge = patient(&cluster.url()).await;
        // Given back without the caller, so perhaps a moment later.
        for (user, units) in [(user, admitted), (gone, 0)] {
            while used(&judge, "api/user", format!("user={user}").as_bytes(), &limit).await != units {
                assert!(began.elapsed() < PATIENCE, "{on_error:?}: a call that was denied, or left, was charged");
                sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

/// A10: a dropped call gave its place back while its request was still on the way to a server that hung, so more calls
/// than `in_flight` could be charged for nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_dropped_keep_their_place_until_the_server_answers() {
    const IN_FLIGHT: usize = 16;
    let server = Server::redis().start();
    let judge = patient(&server.url()).await;
    let store = RedisStore::builder(&server.url()).deadline(PATIENCE).in_flight(IN_FLIGHT).connect().await.unwrap();
    let limiter = Limiter::new(store);
    let limit = Arc::new(yearly(Algorithm::FixedWindow, 1_000_000));
    ask(&limiter, "first").await.unwrap();
    server.stop();
    let mut calls = JoinSet::new();
    for _ in 0..500 {
        let (limiter, limit) = (limiter.clone(), Arc::clone(&limit));
        calls.spawn(async move {
            let check = Check::new(Key::new("health", "dropped").unwrap(), &limit);
            let _ = tokio::time::timeout(Duration::from_millis(3), limiter.check(check)).await;
        });
    }
    calls.join_all().await;
    server.cont();
    ask(&limiter, "last").await.unwrap();
    let used = used(&judge, "health", b"dropped", &limit).await;
    assert!(used <= IN_FLIGHT as u64, "{used} charged for nobody");
    // Each is counted when its run has been answered, which the task of the run may notice after this one.
    let began = Instant::now();
    while limiter.store().abandoned_calls() != used {
        assert!(began.elapsed() < PATIENCE, "{} of {used} are counted", limiter.store().abandoned_calls());
        sleep(Duration::from_millis(1)).await;
    }
}

/// A stall is over when it is over: no probe has to come round first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stalled_is_used_again_as_soon_as_it_goes_on() {
    let server = Server::redis().start();
    let limiter = within(&server.url(), DEADLINE).await;
    for round in 0..10 {
        ask(&limiter, "stalls").await.unwrap();
        server.stop();
        while limiter.store().health().any().is_ok() {
            assert!(ask(&limiter, "stalls").await.is_err());
        }
        server.cont();
        let began = Instant::now();
        while ask(&limiter, "stalls").await.is_err() {
            assert!(began.elapsed() < PATIENCE, "round {round}");
            sleep(Duration::from_millis(1)).await;
        }
    }
}
