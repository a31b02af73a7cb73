//! The store a server works with, before real servers that come late, hang, crash and refuse.

use std::time::Duration;

use tallygate::call::{Call, Verb};
use tallygate::counter::{CounterName, CounterOp, CounterValue, Counters};
use tallygate::store::StoreErrorKind;
use tallygate::{Check, Decision, Key, Limit, MemoryStore, Store, StoreError};
use tallygate_redis::ConnectError;
use tallygate_server::store::{Condition, ServedStore, StartError, StoreSpec};
use tallygate_testkit::Server;
use tokio::time::{Instant, timeout};

/// Generous: test machines are small and busy.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longer than that of production, so that a busy test machine is not taken for a failing store.
const DEADLINE: Duration = Duration::from_millis(100);

fn limit() -> Limit {
    "1000/h fixed_window".parse().expect("a limit")
}

fn serve(server: &Server) -> ServedStore {
    ServedStore::start(StoreSpec { deadline: DEADLINE, audit_every: Duration::ZERO, ..StoreSpec::new(&server.url()) })
        .expect("a sound URL")
}

/// Waits for a condition of the store.
async fn wait_for(store: &ServedStore, what: &str, wanted: impl FnMut(&Condition) -> bool) -> Duration {
    let began = Instant::now();
    let mut changes = store.subscribe();
    let seen = timeout(PATIENCE, changes.wait_for(wanted)).await;
    assert!(seen.is_ok(), "waited {PATIENCE:?} until {what}; now {:?}", store.condition());
    began.elapsed()
}

async fn up(store: &ServedStore) -> Duration {
    wait_for(store, "it is up", Result::is_ok).await
}

async fn down(store: &ServedStore) -> Duration {
    wait_for(store, "it is down", |condition| condition.is_err()).await
}

/// A call about someone, by the caller's deadline if it has one.
async fn call(store: &ServedStore, verb: Verb, deadline: Option<Instant>) -> Result<Decision, StoreError> {
    let limit = limit();
    let checks = [Check::new(Key::new("api", "someone").expect("a short key"), &limit)];
    let call = Call::new(verb, &checks).expect("a cost of one fits");
    store.call(&call.by(deadline.map(Instant::into_std))).await
}

async fn check_by(store: &ServedStore, deadline: Option<Instant>) -> Result<u64, StoreError> {
    call(store, Verb::Check, deadline).await.map(|decision| decision.binding().remaining())
}

async fn check(store: &ServedStore) -> Result<u64, StoreError> {
    check_by(store, None).await
}

fn errors(store: &ServedStore, kind: &str) -> u64 {
    store.stats().errors().find(|(name, _)| *name == kind).map_or(0, |(_, count)| count)
}

fn timed(store: &ServedStore, op: &str) -> u64 {
    store.stats().durations().find(|(name, _)| *name == op).map_or(0, |(_, took)| took.snapshot().2)
}

#[tokio::test]
async fn it_starts_before_its_server_and_works_once_that_is_there() {
    let server = Server::redis().start();
    server.kill();
    let store = serve(&server);
    assert!(store.condition().is_err());
    let began = Instant::now();
    assert!(check(&store).await.is_err_and(|error| error.kind() == StoreErrorKind::Unavailable));
    assert!(began.elapsed() < DEADLINE, "nobody waits for a connection: {:?}", began.elapsed());
    wait_for(
        &store,
        "the reason is known",
        |condition| matches!(condition, Err(because) if because.to_string().contains(&server.addr().to_string())),
    )
    .await;

    server.restart();
    up(&store).await;
    assert_eq!(check(&store).await, Ok(999));
    assert!(errors(&store, "unavailable") >= 1);
    assert_eq!(timed(&store, "check"), 1, "what was never sent is not timed");
}

#[tokio::test]
async fn a_url_or_prefix_that_cannot_be_right_is_an_error_at_once() {
    let start = |spec| ServedStore::start(spec).map(|_| ());
    assert!(matches!(start(StoreSpec::new("http://h")), Err(StartError::Connect(ConnectError::Url(_)))));
    assert!(matches!(
        start(StoreSpec { prefix: "a b".to_owned(), ..StoreSpec::new("redis://h") }),
        Err(StartError::Connect(ConnectError::Prefix { .. }))
    ));
    assert!(matches!(
        start(StoreSpec { prefix: "".to_owned(), ..StoreSpec::new("memory") }),
        Err(StartError::Connect(ConnectError::Prefix { .. }))
    ));
}

#[tokio::test]
async fn a_wrong_password_is_told_with_its_remedy_until_it_is_right() {
    let server = Server::redis().password("right").start();
    let url = server.url().replace("right", "hunter2");
    let store = ServedStore::start(StoreSpec { deadline: DEADLINE, ..StoreSpec::new(&url) }).unwrap();
    let refused = |because: &StoreError| because.kind() == StoreErrorKind::Refused;
    wait_for(&store, "it is refused", |condition| matches!(condition, Err(because) if refused(because))).await;
    let error = check(&store).await.expect_err("the password is wrong");
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    assert!(error.reason().contains("check the user and password in the store URL"), "{error}");
    assert!(error.reason().contains("percent-encode `@`, `/`, `#` and `%`"), "{error}");
    assert!(!format!("{error} {store:?}").contains("hunter2"), "{error} {store:?}");
    assert_eq!(errors(&store, "refused"), 1);

    server.command(&["CONFIG", "SET", "requirepass", "hunter2"]);
    up(&store).await;
    assert_eq!(check(&store).await, Ok(999));
}

#[tokio::test]
async fn a_password_that_is_changed_later_is_told_too() {
    let server = Server::redis().password("right").start();
    let store = serve(&server);
    up(&store).await;
    let mut control = server.connect().unwrap();
    assert!(!control.call(&["CONFIG", "SET", "requirepass", "other"]).unwrap().is_error());
    assert!(!control.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap().is_error());
    wait_for(&store, "it is refused", |condition| {
        condition.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Refused)
    })
    .await;
    assert!((check(&store).await).is_err_and(|error| error.kind() == StoreErrorKind::Refused));
    assert!(!control.call(&["CONFIG", "SET", "requirepass", "right"]).unwrap().is_error());
    up(&store).await;
    assert_eq!(check(&store).await, Ok(999));
}

#[tokio::test]
async fn a_crash_is_noticed_within_a_second_and_so_is_the_return() {
    let server = Server::redis().start();
    let store = serve(&server);
    up(&store).await;
    assert_eq!(check(&store).await, Ok(999));
    server.kill();
    let noticed = down(&store).await;
    assert!(noticed < Duration::from_millis(1500), "without a single call: {noticed:?}");
    assert_eq!(store.served(), 0.0);
    assert!((check(&store).await).is_err_and(|error| error.kind() == StoreErrorKind::Unavailable));

    server.restart();
    let back = up(&store).await;
    assert!(back < Duration::from_secs(2), "{back:?}");
    assert_eq!(store.served(), 1.0);
    assert_eq!(check(&store).await, Ok(999), "a server without a disk has forgotten");
}

#[tokio::test]
async fn a_hung_server_costs_a_deadline_each_until_it_is_down_and_nothing_then() {
    let server = Server::redis().start();
    let store = serve(&server);
    up(&store).await;
    assert_eq!(check(&store).await, Ok(999));
    server.stop();
    let hung = Instant::now();
    let mut waited = 0;
    loop {
        let began = Instant::now();
        let error = check(&store).await.expect_err("it hangs");
        let took = began.elapsed();
        assert!(took < DEADLINE + Duration::from_millis(100), "{took:?}");
        if error.kind() == StoreErrorKind::Unavailable {
            break;
        }
        assert_eq!(error.kind(), StoreErrorKind::Ambiguous, "{error}");
        waited += 1;
    }
    // An outage takes 200 ms, and a deadline is 100.
    assert!((1..10).contains(&waited), "{waited} callers in a row found out for themselves");

    let began = Instant::now();
    for _ in 0..1000 {
        let error = check(&store).await.expect_err("it hangs");
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        assert!(error.reason().contains(&server.addr().to_string()), "{error}");
    }
    let each = began.elapsed() / 1000;
    assert!(each < Duration::from_micros(100), "{each:?} for a call that goes nowhere");
    down(&store).await;
    assert!(hung.elapsed() < Duration::from_secs(2), "{:?}", hung.elapsed());

    server.cont();
    up(&store).await;
    let left = check(&store).await.unwrap();
    // What was sent into the silence ran when the server went on: too much may be charged, never too little.
    assert!((998 - waited..=998).contains(&left), "{left} left after {waited} unanswered calls");
    assert!(errors(&store, "unavailable") >= 1000 && errors(&store, "ambiguous") == waited);
}

#[tokio::test]
async fn an_idle_server_that_hangs_is_noticed_within_about_a_second() {
    let server = Server::redis().start();
    let store = serve(&server);
    up(&store).await;
    server.stop();
    let noticed = down(&store).await;
    assert!(noticed < Duration::from_millis(1500), "{noticed:?}");
    let error = check(&store).await.expect_err("it hangs");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "nobody has to find out for himself: {error}");
    server.cont();
    up(&store).await;
}

#[tokio::test]
async fn a_callers_deadline_is_kept_and_cuts_off_nobody_else() {
    let server = Server::redis().start();
    let spec =
        StoreSpec { deadline: Duration::from_secs(3), audit_every: Duration::ZERO, ..StoreSpec::new(&server.url()) };
    let store = ServedStore::start(spec).unwrap();
    up(&store).await;
    let past = Instant::now();
    assert!(
        check_by(&store, Some(past)).await.is_err_and(|error| error.kind() == StoreErrorKind::Overloaded),
        "nothing was sent, and the store is not to blame"
    );
    assert_eq!(check_by(&store, Some(Instant::now() + PATIENCE)).await, Ok(999));

    server.stop();
    for _ in 0..20 {
        let began = Instant::now();
        let answer = check_by(&store, Some(began + Duration::from_millis(20))).await;
        let took = began.elapsed();
        let error = answer.expect_err("it hangs");
        assert_eq!(error.kind(), StoreErrorKind::Ambiguous, "{error}");
        assert!(took < Duration::from_millis(120), "{took:?}");
    }
    assert_eq!(errors(&store, "ambiguous"), 20);
    assert!(store.condition().is_ok(), "twenty hurried callers prove nothing about the store");
    server.cont();
    let left = check(&store).await.expect("it answers again");
    assert!((978..=998).contains(&left), "each was sent at most once: {left}");
}

#[tokio::test]
async fn every_call_passes_through_and_is_timed() {
    let server = Server::redis().start();
    let store = serve(&server);
    up(&store).await;
    assert_eq!(check(&store).await, Ok(999));
    assert_eq!(call(&store, Verb::Peek, None).await.unwrap().binding().remaining(), 999);
    assert_eq!(call(&store, Verb::Refund, None).await.unwrap().binding().units(), 1);
    assert_eq!(call(&store, Verb::Reset, None).await.unwrap().binding().units(), 1, "there was a state");
    let name = CounterName::new("visits").unwrap();
    let add = |delta| CounterOp::Add { delta, ttl: None };
    assert_eq!(store.count(&name, add(i64::MAX)).await, Ok(CounterValue::Integer(i64::MAX)));
    assert!(store.count(&name, add(1)).await.is_err(), "an overflow is an answer");
    let counts = store.stats().durations().map(|(op, histogram)| (op, histogram.snapshot().2));
    assert_eq!(
        counts.collect::<Vec<_>>(),
        [("check", 1), ("peek", 1), ("refund", 1), ("reset", 1), ("reserve", 0), ("resolve", 0), ("count", 2)]
    );
    assert!(store.stats().errors().all(|(_, count)| count == 0), "and no error of the store");
}

#[tokio::test]
async fn an_audit_counts_the_keys_and_those_without_an_end() {
    let server = Server::redis().start();
    let spec =
        StoreSpec { deadline: DEADLINE, audit_every: Duration::from_millis(50), ..StoreSpec::new(&server.url()) };
    let store = ServedStore::start(spec).unwrap();
    up(&store).await;
    check(&store).await.unwrap();
    audited(&store, (1, 0)).await;
    server.command(&["SET", "tallygate:{a}:api:tb", "x"]);
    audited(&store, (2, 1)).await;
    let first = store.audit().unwrap();
    server.kill();
    down(&store).await;
    let kept = store.audit().unwrap();
    assert_eq!(
        (kept.keys, kept.keys_without_ttl),
        (first.keys, first.keys_without_ttl),
        "errors leave the last figures"
    );
}

/// An audit stopped at 100,000 keys, and did not say so.
#[tokio::test]
async fn an_audit_sees_all_of_250_000_orphans() {
    let server = Server::redis().start();
    let fill = "for i = 1, 250000 do redis.call('SET', 'tallygate:{' .. i .. '}:api:tb', 'x') end";
    server.command(&["EVAL", fill, "0"]).ok();
    let spec = StoreSpec { deadline: DEADLINE, audit_every: Duration::from_secs(1), ..StoreSpec::new(&server.url()) };
    let store = ServedStore::start(spec).unwrap();
    let audited = timeout(Duration::from_secs(300), async {
        while store.audit().is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    audited.await.unwrap();
    let figures = store.audit().unwrap();
    assert_eq!(figures.keys_without_ttl, 250_000, "{figures:?}");
    assert!((250_000..=250_001).contains(&figures.keys), "one may be a charge of the watch: {figures:?}");
}

/// Waits until an audit has found these keys, and so many without a TTL.
async fn audited(store: &ServedStore, wanted: (u64, u64)) {
    let found = timeout(PATIENCE, async {
        while store.audit().map(|found| (found.keys, found.keys_without_ttl)) != Some(wanted) {
            tokio::task::yield_now().await;
        }
    });
    assert!(found.await.is_ok(), "{:?} is not {wanted:?}", store.audit());
}

#[test]
fn the_embedded_store_needs_nothing_and_is_always_up() {
    let store = ServedStore::from(MemoryStore::new());
    assert!(store.condition().is_ok() && store.served() == 1.0);
    assert_eq!(store.place(), "memory");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(check(&store)), Ok(999), "not even a timer");
    assert_eq!(store.audit().map(|figures| (figures.keys, figures.keys_without_ttl)), Some((1, 0)));
    assert_eq!(timed(&store, "check"), 0);
}
