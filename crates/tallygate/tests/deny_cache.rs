//! The deny cache next to the store that it wraps: the same decisions, as long as nobody else gives back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use proptest::prelude::*;
use tallygate::call::{Call, Verb};
use tallygate::check::Receipt;
use tallygate::clock::ManualClock;
use tallygate::decision::Source;
use tallygate::policy::Mode;
use tallygate::store::DenyCache;
use tallygate::{Algorithm, Check, Cost, Decision, Key, Limit, Limiter, MemoryStore, Store, StoreError};

use crate::START;

const SECOND: Duration = Duration::from_secs(1);

struct Pair {
    clock: ManualClock,
    cached: DenyCache<Arc<MemoryStore>>,
    plain: MemoryStore,
}

impl Pair {
    fn new() -> Self {
        let clock = ManualClock::new(START);
        let store = || MemoryStore::builder().clock(clock.clone()).build();
        let cached = DenyCache::new(Arc::new(store())).clock(clock.clone());
        Self { cached, plain: store(), clock }
    }
}

fn now<S: Store>(store: &S, verb: Verb, checks: &[Check<'_>]) -> Decision {
    Call::new(verb, checks).unwrap().ask_now(store).unwrap().unwrap()
}

fn check<'a>(subject: &'a str, limit: &'a Limit, cost: u64) -> Check<'a> {
    Check::new(Key::new("p", subject).unwrap(), limit).cost(Cost::new(cost).unwrap())
}

#[derive(Debug, Clone)]
enum Event {
    Ask {
        peek: bool,
        subjects: Vec<usize>,
        cost: u64,
        limit: usize,
    },
    Refund {
        subject: usize,
        cost: u64,
    },
    Reset {
        subject: usize,
    },
    /// By another process.
    Refunded {
        subject: usize,
    },
    Wait(u64),
}

const SUBJECTS: [&str; 3] = ["a", "b", "c"];

fn event() -> impl Strategy<Value = Event> {
    let subject = || 0..SUBJECTS.len();
    let subjects = prop::sample::subsequence(vec![0, 1, 2], 1..=3);
    let ask = (any::<bool>(), subjects, 1..4_u64, prop_oneof![9 => Just(0), 1 => Just(1_usize)]);
    prop_oneof![
        12 => ask.prop_map(|(peek, subjects, cost, limit)| Event::Ask { peek, subjects, cost, limit }),
        1 => (subject(), 1..4_u64).prop_map(|(subject, cost)| Event::Refund { subject, cost }),
        1 => subject().prop_map(|subject| Event::Reset { subject }),
        1 => subject().prop_map(|subject| Event::Refunded { subject }),
        4 => (1..700_000_u64).prop_map(Event::Wait),
    ]
}

/// The modes of the subjects: the last is a shadow, and a call may have two quotas.
fn mode(subject: usize, quotas: bool) -> Mode {
    match subject {
        2 => Mode::Shadow,
        _ if quotas => Mode::Quota,
        _ => Mode::Enforce,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Without other processes, every decision is the one of the plain store: nothing more is admitted, and nothing more is
    /// denied. What is repeated counts down exactly.
    #[test]
    fn decisions_are_those_of_the_store(
        events in prop::collection::vec(event(), 1..80), algorithm in prop::sample::select(Algorithm::OVER_TIME),
        amount in 3..6_u64, quotas in any::<bool>(),
    ) {
        let pair = Pair::new();
        let limits = [amount, amount + 2].map(|amount| {
            Limit::builder(amount, 2 * SECOND).algorithm(algorithm).build().unwrap()
        });
        for event in events.into_iter().filter(|event| !matches!(event, Event::Refunded { .. })) {
            match event {
                Event::Ask { peek, subjects, cost, limit } => {
                    let asked = |&at: &usize| check(SUBJECTS[at], &limits[limit], cost).with_mode(mode(at, quotas));
                    let checks: Vec<Check<'_>> = subjects.iter().map(asked).collect();
                    let verb = if peek { Verb::Peek } else { Verb::Check };
                    let (cached, plain) = (now(&pair.cached, verb, &checks), now(&pair.plain, verb, &checks));
                    prop_assert_eq!(cached.allowed(), plain.allowed());
                    prop_assert!(cached.source() == Source::Store || !cached.allowed());
                    for (cached, plain) in cached.statuses().iter().zip(plain.statuses()) {
                        prop_assert_eq!(cached.units(), plain.units());
                        // Exact for the cost that was denied, and a lower bound for more.
                        if !cached.allowed() {
                            prop_assert!(!plain.allowed());
                            prop_assert!(cached.retry_after() <= plain.retry_after());
                        }
                    }
                }
                Event::Refund { subject, cost } => {
                    let checks = [check(SUBJECTS[subject], &limits[0], cost)];
                    let receipt = [Receipt::new(checks[0], checks[0].cost, None).check()];
                    let units = |decision: Decision| decision.statuses()[0].units();
                    let given = units(now(&pair.cached, Verb::Refund, &receipt));
                    prop_assert_eq!(given, units(now(&pair.plain, Verb::Refund, &receipt)));
                }
                Event::Reset { subject } => {
                    let checks = [check(SUBJECTS[subject], &limits[0], 1)];
                    now(&pair.cached, Verb::Reset, &checks);
                    now(&pair.plain, Verb::Reset, &checks);
                }
                Event::Refunded { .. } => {}
                Event::Wait(micros) => pair.clock.advance(Duration::from_micros(micros)),
            }
        }
    }

    /// With other processes that refund: a denial is repeated at most a second longer than the store would give it.
    #[test]
    fn what_others_give_back_is_seen_within_a_second(
        events in prop::collection::vec(event(), 1..80), algorithm in prop::sample::select(Algorithm::OVER_TIME),
    ) {
        let pair = Pair::new();
        let limit = Limit::builder(3, 20 * SECOND).algorithm(algorithm).build().unwrap();
        let mut refunded_at = [None; SUBJECTS.len()];
        for event in events {
            match event {
                Event::Ask { peek, subjects, cost, .. } => {
                    let at = subjects[0];
                    let checks = [check(SUBJECTS[at], &limit, cost)];
                    let truth = now(&**pair.cached.store(), Verb::Peek, &checks).allowed();
                    let cached = now(&pair.cached, if peek { Verb::Peek } else { Verb::Check }, &checks);
                    let recent = |at: tallygate::clock::Timestamp| pair.clock.now().as_micros() - at.as_micros() < 1_000_000;
                    let stale = !cached.allowed() && truth;
                    prop_assert!(cached.allowed() == truth || stale && refunded_at[at].is_some_and(recent));
                }
                Event::Refunded { subject } => {
                    let receipt = [check(SUBJECTS[subject], &limit, 1)];
                    now(&**pair.cached.store(), Verb::Refund, &receipt);
                    refunded_at[subject] = Some(pair.clock.now());
                }
                Event::Wait(micros) => pair.clock.advance(Duration::from_micros(micros)),
                _ => {}
            }
        }
    }
}

#[test]
fn a_hot_denied_key_is_asked_about_once_a_second() {
    let pair = Pair::new();
    let limit: Limit = "1/h".parse().unwrap();
    let checks = [check("hot", &limit, 1)];
    let mut asked = 0;
    for _ in 0..10_000 {
        asked += u64::from(now(&pair.cached, Verb::Check, &checks).source() == Source::Store);
        pair.clock.advance(Duration::from_millis(1));
    }
    assert_eq!(asked, 11);
    let denied = now(&pair.cached, Verb::Check, &checks);
    assert_eq!(denied.statuses()[0].retry_after(), Some(3590 * SECOND));
}

#[test]
fn a_check_chooses_how_long_and_what_drains_is_never_repeated() {
    let pair = Pair::new();
    let limit: Limit = "1/h".parse().unwrap();
    let sources = |subject, check: &dyn Fn(Check<'static>) -> Check<'static>| {
        let limit: &'static Limit = Box::leak(Box::new(limit.clone()));
        let check = [check(self::check(subject, limit, 1))];
        [0, 300, 300].map(|millis| {
            pair.clock.advance(Duration::from_millis(millis));
            let first = now(&pair.cached, Verb::Check, &check).source();
            now(&pair.cached, Verb::Check, &check);
            first
        })
    };
    let (store, cache) = (Source::Store, Source::DenyCache);
    assert_eq!(sources("default", &|check| check), [store, cache, cache]);
    let half = |check: Check<'static>| check.with_cache_denials(Some(Duration::from_millis(500)));
    assert_eq!(sources("half", &half), [store, cache, store]);
    assert_eq!(sources("never", &|check| check.with_cache_denials(Some(Duration::ZERO))), [store; 3]);
    assert_eq!(sources("drains", &|check| check.with_excess(tallygate::policy::Excess::Drain)), [store; 3]);
}

/// A denial that may not be repeated must not decide, and one that may is repeated in its company.
#[test]
fn one_policy_with_a_cache_is_enough_to_deny_a_call() {
    let pair = Pair::new();
    let limit: Limit = "1/h".parse().unwrap();
    let never = |subject| check(subject, &limit, 1).with_cache_denials(Some(Duration::ZERO));
    let both = [check("cached", &limit, 1), never("exact")];
    assert!(now(&pair.cached, Verb::Check, &both).allowed());
    assert_eq!(now(&pair.cached, Verb::Check, &both).source(), Source::Store);
    assert_eq!(now(&pair.cached, Verb::Check, &both).source(), Source::DenyCache);
    // The entry of the other one says only what was left.
    assert_eq!(now(&pair.cached, Verb::Check, &[never("exact")]).source(), Source::Store);
    let mixed = [check("new", &limit, 1), never("exact")];
    now(&pair.cached, Verb::Check, &mixed);
    assert_eq!(now(&pair.cached, Verb::Check, &mixed).source(), Source::Store);
}

#[test]
fn memory_is_bounded_whatever_keys_are_sent() {
    let store = MemoryStore::builder().clock(ManualClock::new(START)).build();
    let cached = DenyCache::new(store).clock(ManualClock::new(START)).capacity(100);
    let limit: Limit = "1/h".parse().unwrap();
    for number in 0..20_000 {
        let subject = number.to_string();
        for _ in 0..2 {
            now(&cached, Verb::Check, &[check(&subject, &limit, 1)]);
        }
    }
    assert!(cached.len() <= 112, "{}", cached.len());
}

/// A store whose answers arrive only when the test says so.
struct Held {
    store: MemoryStore,
    hold: AtomicBool,
    calls: AtomicU64,
}

impl Store for Held {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        self.calls.fetch_add(1, SeqCst);
        let answer = self.store.call(call).await;
        while call.verb() == Verb::Check && self.hold.load(SeqCst) {
            tokio::task::yield_now().await;
        }
        answer
    }
}

/// An answer from before a refund, which arrived after it, denied what the refund had made free.
#[tokio::test]
async fn a_denial_that_a_refund_overtook_is_not_kept() {
    let held = Held { store: MemoryStore::new(), hold: AtomicBool::new(false), calls: AtomicU64::new(0) };
    let limiter = Limiter::new(DenyCache::new(held));
    let limit: Limit = "1/h".parse().unwrap();
    let asked = check("a", &limit, 1);
    let charged = limiter.check(asked).await.unwrap();
    let store = limiter.store().store();
    store.hold.store(true, SeqCst);
    let denied = async { limiter.check(asked).await.unwrap() };
    let refund = async {
        while store.calls.load(SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(limiter.refund(&charged.receipts(&[asked])).await.unwrap(), [1]);
        store.hold.store(false, SeqCst);
    };
    let (denied, ()) = tokio::join!(denied, refund);
    assert!(!denied.allowed());
    assert!(limiter.check(asked).await.unwrap().allowed());
}

/// Many threads check, and some give back: a denial that is repeated after a refund has returned would be seen here.
#[test]
fn threads_that_refund_are_never_denied_what_they_gave_back() {
    let cached = DenyCache::new(MemoryStore::new());
    let limit: Limit = "1/h fixed_window".parse().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (cached, limit) = (&cached, &limit);
            scope.spawn(move || {
                let subject = (thread % 2).to_string();
                let mine = format!("own {thread}");
                for _ in 0..3000 {
                    // Shared with another thread: its denials are kept and dropped all the time.
                    let shared = check(&subject, limit, 1);
                    let decision = now(cached, Verb::Check, &[shared]);
                    let own = check(&mine, limit, 1);
                    let taken = now(cached, Verb::Check, &[own]);
                    assert!(taken.allowed());
                    assert!(!now(cached, Verb::Check, &[own]).allowed());
                    for (decision, check) in [(decision, shared), (taken, own)] {
                        let receipts = decision.receipts(&[check]);
                        if !receipts.is_empty() {
                            let checks: Vec<Check<'_>> = receipts.iter().map(Receipt::check).collect();
                            now(cached, Verb::Refund, &checks);
                        }
                    }
                }
            });
        }
    });
    for subject in ["0", "1"] {
        assert!(now(&cached, Verb::Check, &[check(subject, &limit, 1)]).allowed());
    }
}

/// A store whose states are in different slots, so that a call about two of them is charged separately.
struct Slots(MemoryStore, AtomicBool);

impl Store for Slots {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        if call.checks().len() > 1 && self.1.load(SeqCst) {
            return Err(StoreError::unavailable("a slot does not answer".to_owned()));
        }
        let decision = self.0.call(call).await?;
        Ok(if call.checks().len() > 1 { decision.into_split() } else { decision })
    }
}

/// Another call was denied by units that a split call held for a moment. That denial was repeated after they had been given back.
#[tokio::test]
async fn a_denial_does_not_outlast_the_units_of_a_split_call() {
    for fails in [false, true] {
        outlasts(fails).await;
    }
}

async fn outlasts(fails: bool) {
    let clock = ManualClock::new(START);
    let cached = DenyCache::new(Slots(MemoryStore::builder().clock(clock.clone()).build(), fails.into())).clock(clock);
    let limit: Limit = "1/h".parse().unwrap();
    let (shared, spent) = (check("shared", &limit, 1), check("spent", &limit, 1));
    let ask = async |checks: &[Check<'_>]| cached.call(&Call::new(Verb::Check, checks).unwrap()).await.unwrap();
    assert!(ask(&[spent]).await.allowed());
    // What the split call holds while it is decided.
    let held = now(&cached.store().0, Verb::Check, &[shared]);
    assert!(!ask(&[shared]).await.allowed());
    assert_eq!(ask(&[shared]).await.source(), Source::DenyCache);
    assert!(held.allowed() && now(&cached.store().0, Verb::Refund, &[shared]).statuses()[0].units() == 1);
    let split = cached.call(&Call::new(Verb::Check, &[shared, spent]).unwrap()).await;
    assert!(if fails { split.is_err() } else { !split.unwrap().allowed() });
    let after = ask(&[shared]).await;
    assert_eq!((after.allowed(), after.source()), (true, Source::Store));
}

/// A cost above the capacity got a wait, because a smaller one had been denied.
#[test]
fn a_cost_that_can_never_fit_has_no_wait() {
    let pair = Pair::new();
    let limit: Limit = "2/h".parse().unwrap();
    assert!(now(&pair.cached, Verb::Check, &[check("s", &limit, 2)]).allowed());
    assert!(!now(&pair.cached, Verb::Check, &[check("s", &limit, 1)]).allowed());
    let never = now(&pair.cached, Verb::Check, &[check("s", &limit, 50).within_capacity()]);
    assert_eq!((never.source(), never.binding().retry_after()), (Source::DenyCache, None));
}
