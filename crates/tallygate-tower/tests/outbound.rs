//! Throttled calls to a third party.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tallygate::MemoryStore;
use tallygate_redis::RedisStore;
use tallygate_testkit::Server;
use tallygate_tower::Cost;
use tallygate_tower::outbound::{NotReady, Throttle, ThrottleError};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt, service_fn};

async fn shared(redis: &Server) -> RedisStore {
    RedisStore::builder(&redis.url()).deadline(Duration::from_secs(5)).connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_on_one_redis_never_exceed_the_limit_together() {
    let redis = Server::redis().start();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let started = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..3 {
        // Each with a connection of its own, as a process would.
        let throttle = Throttle::new("bank", "50/s burst 4", tokio::time::sleep).unwrap();
        let throttle = throttle.store(shared(&redis).await).patience(Duration::from_secs(60));
        let calls = Arc::clone(&calls);
        let mut service = throttle.layer(service_fn(move |asked: Instant| {
            calls.lock().unwrap().push((asked, Instant::now()));
            std::future::ready(Ok::<Instant, Infallible>(asked))
        }));
        tasks.push(tokio::spawn(async move {
            for _ in 0..20 {
                let asked = Instant::now();
                assert_eq!(service.ready().await.unwrap().call(asked).await.unwrap(), asked);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let calls = std::mem::take(&mut *calls.lock().unwrap());
    assert_eq!(calls.len(), 60);
    // A call was decided after it was asked for, and before it was made. However late this thread saw it, those that lie
    // within a span were decided within it. A millisecond more, because the two clocks differ.
    let spans = calls.iter().map(|(asked, _)| *asked).chain([started]);
    for (from, until) in spans.flat_map(|from| calls.iter().map(move |(_, made)| (from, *made))) {
        let within = calls.iter().filter(|(asked, made)| *asked >= from && *made <= until).count();
        let span = until.saturating_duration_since(from) + Duration::from_millis(1);
        let most = 4 + span.as_millis() / 20;
        assert!(within as u128 <= most, "{within} in {span:?}");
    }
}

#[tokio::test]
async fn a_call_that_would_wait_too_long_fails_at_once_and_is_not_charged() {
    let sleep = |_| -> std::future::Ready<()> { unreachable!("there is nothing to wait for") };
    let throttle = Throttle::new("bank", "1/h", sleep).unwrap();
    let called = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&called);
    let mut service = throttle.patience(Duration::from_secs(5)).layer(service_fn(move |(): ()| {
        *counted.lock().unwrap() += 1;
        std::future::ready(Ok::<(), Infallible>(()))
    }));
    service.ready().await.unwrap().call(()).await.unwrap();
    for _ in 0..3 {
        let error = service.ready().await.unwrap().call(()).await.unwrap_err();
        let ThrottleError::NotReady(NotReady::TooLate { wait }) = &error else { panic!("{error:?}") };
        // Had one of them been charged, the wait would be longer than that of one call.
        assert!((Duration::from_secs(3590)..=Duration::from_secs(3600)).contains(wait), "{wait:?}");
        assert!(error.to_string().contains("exceeds the time allowed for waiting"), "{error}");
    }
    assert_eq!(*called.lock().unwrap(), 1);
}

#[tokio::test]
async fn errors_of_the_service_pass_through_and_any_request_will_do() {
    let throttle = Throttle::new("bank", "1000000/s", tokio::time::sleep).unwrap();
    let texts = throttle.layer(service_fn(|text: &'static str| async move { text.parse::<u64>() }));
    assert_eq!(texts.clone().oneshot("42").await.unwrap(), 42);
    let error = texts.oneshot("many").await.unwrap_err();
    assert!(matches!(error, ThrottleError::Service(_)), "{error:?}");
}

#[tokio::test]
async fn accounts_and_costs_are_counted_apart() {
    let redis = Server::redis().start();
    let served = || service_fn(|(): ()| std::future::ready(Ok::<(), Infallible>(())));
    let limit = || Throttle::new("bank", "10/h", tokio::time::sleep).unwrap().patience(Duration::ZERO);
    let ours = limit().cost(Cost::new(6).unwrap()).store(shared(&redis).await);
    let ours_again = limit().cost(Cost::new(6).unwrap()).store(shared(&redis).await);
    let theirs = limit().account("theirs").cost(Cost::new(10).unwrap()).store(shared(&redis).await);
    ours.layer(served()).oneshot(()).await.unwrap();
    let late = ours_again.layer(served()).oneshot(()).await.unwrap_err();
    assert!(matches!(late, ThrottleError::NotReady(NotReady::TooLate { .. })), "{late:?}");
    theirs.layer(served()).oneshot(()).await.unwrap();
    for account in [String::new(), "long".repeat(10_000)] {
        limit().account(account).layer(served()).oneshot(()).await.unwrap();
    }
}

#[tokio::test]
async fn what_can_never_be_is_an_error_and_no_wait() {
    let served = || service_fn(|(): ()| std::future::ready(Ok::<(), Infallible>(())));
    let zero = Throttle::new("bank", "0/h", tokio::time::sleep).unwrap().layer(served()).oneshot(()).await;
    assert!(matches!(zero, Err(ThrottleError::NotReady(NotReady::Never))), "{zero:?}");
    let dear = Throttle::new("bank", "5/h", tokio::time::sleep).unwrap().cost(Cost::new(6).unwrap());
    let dear = dear.layer(served()).oneshot(()).await;
    assert!(matches!(dear, Err(ThrottleError::NotReady(NotReady::Check(_)))), "{dear:?}");
}

#[tokio::test]
async fn without_the_store_no_call_is_made() {
    let redis = Server::redis().start();
    let store = RedisStore::builder(&redis.url()).deadline(Duration::from_millis(300)).connect().await.unwrap();
    let throttle = Throttle::new("bank", "5/h", tokio::time::sleep).unwrap().store(store);
    redis.kill();
    let service = throttle.layer(service_fn(|(): ()| -> std::future::Ready<Result<(), Infallible>> {
        unreachable!("nobody allowed it")
    }));
    let error = service.oneshot(()).await.unwrap_err();
    assert!(matches!(error, ThrottleError::NotReady(NotReady::Check(_))), "{error:?}");
}

/// All names that were too long for a key were one and the same quota.
#[tokio::test]
async fn long_names_are_counted_apart() {
    let served = || service_fn(|(): ()| std::future::ready(Ok::<(), Infallible>(())));
    let store = Arc::new(MemoryStore::new());
    let call = |name: String| {
        let throttle = Throttle::new(name, "1/h", tokio::time::sleep).unwrap().patience(Duration::ZERO);
        throttle.store(Arc::clone(&store)).layer(served()).oneshot(())
    };
    let long = "name".repeat(100);
    call(long.clone()).await.unwrap();
    call(long.clone() + "r").await.unwrap();
    assert!(call(long).await.is_err());
}
