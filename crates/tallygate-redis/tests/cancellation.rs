//! Dropped calls, on one server and on a cluster: what was denied is not charged, and nothing is left half done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tallygate::call::Verb;
use tallygate::policy::Stores;
use tallygate::{Check, Key, Limit};
use tallygate_redis::RedisStore;
use tallygate_testkit::cancellation::{
    Case, Matrix, Scene, Stored, Then, every_key_expires, policies, refund_of_verdict, wait, ways,
};
use tallygate_testkit::wait::PATIENCE;
use tallygate_testkit::{Cluster, FaultProxy, Flavour, Mode, Server};
use tokio::runtime::Runtime;

use crate::support::{flavours, limit, within};

/// With worker threads besides the one that polls and drops.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A store with a long deadline: calls end only because they are dropped.
fn store(url: &str) -> RedisStore {
    wait(RedisStore::builder(url).deadline(PATIENCE).connect_timeout(PATIENCE).connect()).unwrap()
}

/// Drops calls of every verb at every poll, on every way to the store.
fn every_poll(url: &str, servers: &[Server], scenes: &[Arc<Scene>]) {
    let (store, set) = (store(url), policies(scenes));
    let mut matrix = Matrix::new(Stored(store.clone()));
    for (_, run) in ways() {
        matrix.every_poll(scenes, Verb::ALL, |case, polls, every| run(&store, &set, case, polls, every));
    }
    matrix.every_poll(scenes, &[Verb::Check], |case, polls, every| refund_of_verdict(&store, &set, case, polls, every));
    let summary = matrix.judge();
    assert!(summary.dropped > 50, "too few calls were dropped in flight: {summary:?}");
    assert!(every_key_expires(servers) > 100);
}

#[test]
fn on_one_server() {
    let runtime = runtime();
    let _entered = runtime.enter();
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        every_poll(&server.url(), std::slice::from_ref(&server), &Scene::generate(3, 20));
    }
}

#[test]
fn on_one_server_with_high_latency() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let server = Server::redis().start();
    let proxy = FaultProxy::start(server.addr());
    proxy.set(Mode::Delay(Duration::from_micros(300)));
    every_poll(&proxy.url(), std::slice::from_ref(&server), &Scene::generate(4, 2)[..10]);
}

#[test]
fn on_a_cluster() {
    let runtime = runtime();
    let _entered = runtime.enter();
    for flavour in flavours() {
        let cluster = Cluster::start(flavour, 3, 0);
        every_poll(&cluster.url(), cluster.nodes(), &Scene::generate(5, 30));
    }
}

/// While one master hangs, calls to its slots stay in flight.
#[test]
fn on_a_cluster_with_a_master_that_hangs() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let (store, scenes) = (store(&cluster.url()), Scene::generate(6, 60));
    let set = policies(&scenes);
    let scenes: Vec<_> = scenes.iter().filter(|scene| scene.has_several_subjects()).collect();
    let mut matrix = Matrix::new(Stored(store.clone()));
    for master in cluster.nodes() {
        for (way, run) in ways() {
            let drop_it = |case: &Case| run(&store, &set, case, 5, Duration::from_micros(200)).0;
            let drop_all: Vec<(&Arc<Scene>, Verb)> =
                scenes.iter().flat_map(|scene| Verb::ALL.iter().map(move |verb| (*scene, *verb))).collect();
            let hang = || master.stop();
            matrix.together(&drop_all, &format!("{way} while {} hangs", master.addr()), hang, drop_it);
            master.cont();
        }
    }
    let summary = matrix.judge();
    assert!(summary.dropped > 50, "too few calls were dropped in flight: {summary:?}");
    assert!(every_key_expires(cluster.nodes()) > 100);
}

/// Refunds of more limits than one call can have take several calls.
#[test]
fn refunds_of_more_limits_than_one_call_has() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let server = Server::redis().start();
    let (store, scenes) = (store(&server.url()), [Scene::large()]);
    let set = policies(&scenes);
    let [.., (_, evaluate)] = ways();
    let mut matrix = Matrix::new(Stored(store.clone()));
    let give_back = &[Verb::Refund, Verb::Reset];
    matrix.every_poll(&scenes, give_back, |case, polls, every| evaluate(&store, &set, case, polls, every));
    matrix
        .every_poll(&scenes, &[Verb::Check], |case, polls, every| refund_of_verdict(&store, &set, case, polls, every));
    matrix.judge();
}

/// Calls that one slot denies, and whose deadline passes before another slot has answered.
#[test]
fn on_a_cluster_with_short_deadlines() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let (store, scenes) = (store(&cluster.url()), Scene::generate(7, 10));
    let (set, stores) = (policies(&scenes), Stores::new(store.clone()));
    let denied = scenes.iter().filter(|scene| scene.has_several_subjects() && !scene.allows());
    let denied: Vec<_> = denied.map(|scene| (scene, Verb::Check)).collect();
    let give_up = |case: &Case, deadline: Duration| {
        let evaluation = set.domain(case.scene().domain()).unwrap().evaluate(&[case.ask()]);
        wait(evaluation.decide(&stores, Some(Instant::now() + deadline)));
        Then::Either
    };
    let mut matrix = Matrix::new(Stored(store.clone()));
    for micros in (20..1000).step_by(20) {
        let run = |case: &Case| give_up(case, Duration::from_micros(micros));
        matrix.together(&denied, &format!("given up after {micros} us"), || (), run);
    }
    for master in cluster.nodes() {
        let how = format!("given up while {} hangs", master.addr());
        matrix.together(&denied, &how, || master.stop(), |case| give_up(case, Duration::from_millis(2)));
        master.cont();
    }
    matrix.judge();
}

/// Denied calls whose callers leave while one of the shards that they ask dies: the healthy ones are given back all the same.
#[test]
fn on_a_cluster_with_a_master_that_dies() {
    let runtime = runtime();
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).ok();
    }
    let limits: [Limit; 3] = ["1000000/h fixed_window", "1000000/h fixed_window", "1/h fixed_window"].map(limit);
    let subject_on = |node: usize| {
        let served = |subject: &String| {
            let key = Key::new("p", subject).unwrap().encode("tallygate", limits[0].algorithm().kind());
            cluster.node_of(cluster.slot_of(key.as_bytes())) == node
        };
        (0..).map(|number| format!("s{number}")).find(served).unwrap()
    };
    let subjects = [0, 1, 2].map(subject_on);
    let [healthy, _, spent] = [0, 1, 2].map(|at| Check::new(Key::new("p", &subjects[at]).unwrap(), &limits[at]));
    runtime.block_on(async {
        let limiter = within(&cluster.url(), Duration::from_millis(50)).await;
        assert!(limiter.check(spent).await.unwrap().allowed());
        let mut callers = tokio::task::JoinSet::new();
        for call in 0..300_u64 {
            let (limiter, subjects, limits) = (limiter.clone(), subjects.clone(), limits.clone());
            callers.spawn(async move {
                let checks = [0, 1, 2].map(|at| Check::new(Key::new("p", &subjects[at]).unwrap(), &limits[at]));
                let patience = Duration::from_micros(call * 37 % 3000);
                let answer = tokio::time::timeout(patience, limiter.check_all(&checks)).await;
                assert!(!matches!(answer, Ok(Ok(decision)) if decision.allowed()), "one of its limits is used up");
            });
            if call == 100 {
                cluster.nodes()[1].kill();
            }
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
        callers.join_all().await;
        let began = Instant::now();
        while limiter.peek(healthy).await.unwrap().binding().remaining() < 1_000_000 {
            assert!(began.elapsed() < PATIENCE, "what was denied stays charged");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}
