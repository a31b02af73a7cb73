//! Callers that leave: the future of a response is dropped after every number of polls, while it is decided, while the service is
//! at work, and while units are given back.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tallygate::call::Verb;
use tallygate::policy::{Descriptor, PolicySet};
use tallygate::{MemoryStore, Store};
use tallygate_redis::RedisStore;
use tallygate_testkit::cancellation::{
    Case, Matrix, Scene, Stored, Then, drop_after, every_key_expires, policies, wait,
};
use tallygate_testkit::wait::PATIENCE;
use tallygate_testkit::{Cluster, Flavour, Server};
use tallygate_tower::RateLimit;
use tower::{Layer, Service, service_fn};

/// Answers after it was polled twice.
async fn serve(_: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut waited = false;
    poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    Ok(Response::new(Full::default()))
}

/// Sends the request of a case, whose descriptor it carries.
fn send<S: Store + 'static>(layer: RateLimit<S>, case: &Case) -> impl Future<Output = bool> {
    let cost = case.cost();
    let request = Request::builder().extension(case.descriptor()).body(()).unwrap();
    let response = layer.cost(move |_| cost).layer(service_fn(serve)).call(request);
    async move { response.await.unwrap().status().is_success() }
}

fn layer<S: Store>(store: S, set: &Arc<PolicySet>, case: &Case) -> RateLimit<S> {
    let layer = RateLimit::new().policies(Arc::clone(set), case.scene().domain(), |parts| {
        parts.extensions.get::<Descriptor>().cloned().unwrap_or_default()
    });
    layer.store(store)
}

/// Drops requests at every poll. `waits` says whether the store is asked by the first poll, and not before.
fn every_poll<S: Store + Clone + 'static>(store: &S, scenes: &[Arc<Scene>], waits: bool) -> Matrix<Stored<S>> {
    let set = Arc::new(policies(scenes));
    let mut matrix = Matrix::new(Stored(store.clone()));
    let answered_well = |case: &Case, answer: Option<bool>| {
        answer.iter().for_each(|allowed| assert_eq!(*allowed, case.allowed(), "{case:?}"));
        answer.is_some()
    };
    matrix.every_poll(scenes, &[Verb::Check], |case, polls, every| {
        let answered = answered_well(case, drop_after(send(layer(store.clone(), &set, case), case), polls, every));
        let then = match polls {
            0 if !waits => Then::After,
            _ => Then::polled(Verb::Check, polls, answered),
        };
        (then, answered)
    });
    // Nothing counts: what was charged is given back once the service has answered.
    matrix.every_poll(scenes, &[Verb::Check], |case, polls, every| {
        let refunding = Arc::new(AtomicBool::new(false));
        let begun = Arc::clone(&refunding);
        let layer = layer(store.clone(), &set, case).count_if(move |_| {
            begun.store(true, Ordering::SeqCst);
            false
        });
        let answered = answered_well(case, drop_after(send(layer, case), polls, every));
        let then = match polls {
            _ if refunding.load(Ordering::SeqCst) => Then::Before,
            0 if !waits => Then::After,
            _ => Then::polled(Verb::Check, polls, answered),
        };
        (then, answered)
    });
    matrix
}

/// The same on a real server, or several.
fn on_servers(url: &str, servers: &[Server], scenes: &[Arc<Scene>]) {
    let store = wait(RedisStore::builder(url).deadline(PATIENCE).connect_timeout(PATIENCE).connect()).unwrap();
    let summary = every_poll(&store, scenes, true).judge();
    assert!(summary.dropped > 20, "too few requests were dropped under way: {summary:?}");
    assert!(every_key_expires(servers) > 100);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn in_memory() {
    every_poll(&Arc::new(MemoryStore::new()), &Scene::generate(11, 100), false).judge();
}

#[test]
fn on_one_server() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let server = Server::redis().start();
    on_servers(&server.url(), std::slice::from_ref(&server), &Scene::generate(12, 30));
}

#[test]
fn on_a_cluster() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    on_servers(&cluster.url(), cluster.nodes(), &Scene::generate(13, 50));
}

/// While one master hangs, requests are under way for as long as it takes.
#[test]
fn on_a_cluster_with_a_master_that_hangs() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let store =
        wait(RedisStore::builder(&cluster.url()).deadline(PATIENCE).connect_timeout(PATIENCE).connect()).unwrap();
    let scenes = Scene::generate(14, 60);
    let set = Arc::new(policies(&scenes));
    let calls: Vec<_> = scenes.iter().map(|scene| (scene, Verb::Check)).collect();
    let mut matrix = Matrix::new(Stored(store.clone()));
    for master in cluster.nodes() {
        let how = format!("{} hangs", master.addr());
        matrix.together(
            &calls,
            &how,
            || master.stop(),
            |case| {
                let answer = drop_after(send(layer(store.clone(), &set, case), case), 5, Duration::from_micros(200));
                Then::polled(Verb::Check, 5, answer.is_some())
            },
        );
        master.cont();
    }
    let summary = matrix.judge();
    assert!(summary.dropped > 20, "too few requests were dropped under way: {summary:?}");
    assert!(every_key_expires(cluster.nodes()) > 100);
}
