//! A store that is saved and restored is the one that it was.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tallygate::call::{Call, Verb};
use tallygate::clock::ManualClock;
use tallygate::counter::{CounterName, CounterOp, CounterValue, Counters};
use tallygate::hold::{Hold, HoldPage, HoldQuery, Holds, Resolution, Resolved, Work};
use tallygate::live::{Override, OverrideSet, Overrides as _, Target, change};
use tallygate::request::Request;
use tallygate::store::{RestoreError, SavedEntry, SavedKey, Secret};
use tallygate::{Algorithm, Check, Decision, Key, Limit, Limiter, MemoryStore, Store, StoreError};
use tallygate_testkit::traces::{Inspected, Stored, Trace};

use crate::START;

/// What a disk would have.
type Disk = BTreeMap<SavedKey, Vec<u8>>;

fn apply(disk: &mut Disk, entries: Vec<SavedEntry>) {
    for SavedEntry { key, value } in entries {
        match value {
            Some(value) => _ = disk.insert(key, value),
            None => _ = disk.remove(&key),
        }
    }
}

/// Takes back all that was saved.
fn restored(disk: &Disk, secret: &Secret, builder: tallygate::store::MemoryStoreBuilder) -> MemoryStore {
    let mut restoring = builder.restore(secret);
    for (key, value) in disk {
        restoring.take(key, value).unwrap();
    }
    restoring.finish()
}

/// A store that is saved after every few calls, and restored after every few more.
struct Restarting {
    clock: ManualClock,
    secret: Secret,
    parts: Mutex<(MemoryStore, Disk)>,
    calls: AtomicU64,
}

impl Restarting {
    fn new(clock: &ManualClock) -> Self {
        let secret = Secret::random();
        let store = restored(&Disk::new(), &secret, Self::builder(clock));
        Self { clock: clock.clone(), secret, parts: Mutex::new((store, Disk::new())), calls: AtomicU64::new(0) }
    }

    fn builder(clock: &ManualClock) -> tallygate::store::MemoryStoreBuilder {
        MemoryStore::builder().clock(clock.clone()).without_sweep()
    }

    fn with<T>(&self, act: impl FnOnce(&MemoryStore) -> T) -> T {
        let mut parts = self.parts.lock().unwrap();
        let (store, disk) = &mut *parts;
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if call.is_multiple_of(7) {
            apply(disk, store.changes().unwrap());
        }
        if call.is_multiple_of(97) {
            apply(disk, store.changes().unwrap());
            let mut all = Disk::new();
            apply(&mut all, store.everything());
            assert!(*disk == all, "something has changed that was not said");
            *store = restored(disk, &self.secret, Self::builder(&self.clock));
            assert_eq!(store.changes(), Some(Vec::new()));
            let mut again = Disk::new();
            apply(&mut again, store.everything());
            assert!(again == all, "what was restored is not what was saved");
        }
        act(store)
    }
}

impl Store for Restarting {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        self.with(|store| store.call_now(call).unwrap())
    }
}

impl Holds for Restarting {
    async fn resolve(&self, resolution: &Resolution<'_>) -> Result<Resolved, StoreError> {
        self.with(|store| now(store.resolve(resolution)))
    }

    fn cancel_soon(&self, hold: Hold) {
        self.with(|store| store.cancel_soon(hold));
    }

    fn finish(&self, work: Work) {
        self.with(|store| store.finish(work));
    }
}

/// The answer of a future that waits for nothing.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(answer) => answer,
        std::task::Poll::Pending => panic!("the embedded store never waits"),
    }
}

impl Inspected for Restarting {
    async fn inspect(&self, check: &Check<'_>) -> Option<Stored> {
        self.with(|store| now(store.inspect(check)))
    }

    async fn inspect_holds(&self, check: &Check<'_>) -> Option<Vec<(u64, Vec<u8>)>> {
        self.with(|store| now(store.inspect_holds(check)))
    }

    async fn inspect_answer(&self, request: &Request, first: &Check<'_>) -> Option<Option<Vec<u8>>> {
        self.with(|store| now(store.inspect_answer(request, first)))
    }
}

/// All verbs, holds, debts and remembered answers, on any clock, are those of a store that was never stopped.
#[tokio::test]
async fn a_store_that_is_restarted_again_and_again_answers_as_one_that_is_not() {
    for (seed, &algorithm) in (38_000..).zip(Algorithm::ALL) {
        for backward in [false, true] {
            let clock = ManualClock::new(START);
            let plain = Restarting::builder(&clock).build();
            let trace = Trace::new(algorithm, seed, 3000);
            let trace = if backward { trace.backward() } else { trace };
            trace.run((&Restarting::new(&clock), &clock), (&plain, &clock)).await.unwrap();
        }
    }
}

#[test]
fn counters_are_restored() {
    let clock = ManualClock::new(START);
    let builder = || MemoryStore::builder().clock(clock.clone());
    let secret = Secret::random();
    let store = builder().restore(&secret).finish();
    let name = |name: &str| CounterName::new(name).unwrap();
    let ttl = Some(Duration::from_secs(10));
    now(store.count(&name("whole"), CounterOp::Add { delta: i64::MIN, ttl: None })).unwrap();
    now(store.count(&name("part"), CounterOp::AddFloat { delta: 0.1, ttl })).unwrap();
    now(store.count(&name("gone"), CounterOp::Add { delta: 1, ttl })).unwrap();
    let mut disk = Disk::new();
    apply(&mut disk, store.changes().unwrap());
    assert_eq!(disk.len(), 3);
    now(store.count(&name("gone"), CounterOp::Delete)).unwrap();
    apply(&mut disk, store.changes().unwrap());
    let store = restored(&disk, &secret, builder());
    let read = |store: &MemoryStore, which: &str| now(store.count(&name(which), CounterOp::Get)).unwrap();
    assert_eq!(read(&store, "whole"), CounterValue::Integer(i64::MIN));
    assert_eq!(read(&store, "part"), CounterValue::Float(0.1));
    assert_eq!(disk.len(), 2);
    // What has expired is not taken back.
    clock.advance(Duration::from_secs(10));
    let mut restoring = builder().restore(&secret);
    let kept: Vec<bool> = disk.iter().map(|(key, value)| restoring.take(key, value).unwrap()).collect();
    assert_eq!(kept.into_iter().filter(|&kept| kept).count(), 1);
    assert_eq!(restoring.finish().len(), 1);
}

/// States that keys share because the store is full are those of their shard, and are taken back there.
#[test]
fn shared_states_are_restored() {
    let clock = ManualClock::new(START);
    let builder = || MemoryStore::builder().clock(clock.clone()).capacity(4096 * 4);
    let secret = Secret::random();
    let limiter = Limiter::new(builder().restore(&secret).finish());
    let limit: Limit = "50/min".parse().unwrap();
    let subjects: Vec<String> = (0..20_000).map(|subject| subject.to_string()).collect();
    let ask = |limiter: &Limiter<MemoryStore>, verb: Verb, subject: &str| {
        let check = Check::new(Key::new("p", subject).unwrap(), &limit);
        let decision = Call::new(verb, &[check]).unwrap().ask_now(limiter.store()).unwrap().unwrap();
        (decision.source(), decision.binding().remaining())
    };
    subjects.iter().for_each(|subject| _ = ask(&limiter, Verb::Check, subject));
    let mut disk = Disk::new();
    apply(&mut disk, limiter.store().changes().unwrap());
    let again = Limiter::new(restored(&disk, &secret, builder()));
    assert_eq!(limiter.store().len(), again.store().len());
    for subject in &subjects {
        assert_eq!(ask(&limiter, Verb::Peek, subject), ask(&again, Verb::Peek, subject));
    }
}

/// Another number of shards, because the capacity was changed.
/// They are saved when they have changed, and with everything; and what was written to the disk is read, or refused.
#[tokio::test]
async fn overrides_are_restored() {
    let secret = Secret::random();
    let store = restored(&Disk::new(), &secret, MemoryStore::builder());
    let mut disk = Disk::new();
    apply(&mut disk, store.changes().unwrap());
    assert_eq!(disk.len(), 0, "there are none");
    let target = Target::new("api", "per-user", [("user".to_owned(), "1".to_owned())]);
    let one = Override::new(target, Some("9/min".parse().unwrap())).because("a test").by("ada");
    let set = change(&store, None, |set, now| set.put(one.clone(), None, now)).await.unwrap();
    apply(&mut disk, store.changes().unwrap());
    assert_eq!((disk.len(), store.changes().unwrap().len()), (1, 0), "once");
    for disk in [&disk, &store.everything().into_iter().map(|entry| (entry.key, entry.value.unwrap())).collect()] {
        let again = restored(disk, &secret, MemoryStore::builder());
        assert_eq!(OverrideSet::of_reading(&again.read_overrides(None).await.unwrap()).unwrap(), set);
        assert_eq!(again.changes().unwrap().len(), 0);
    }
    let (key, value) = disk.first_key_value().unwrap();
    let taken = |value: &[u8]| MemoryStore::builder().restore(&secret).take(key, value);
    let newer = [&[2], &value[1..]].concat();
    assert_eq!(taken(&newer), Err(RestoreError::Newer { found: 2 }));
    for damaged in [&value[..0], &value[..5], &[&[0], &value[1..]].concat()] {
        assert_eq!(taken(damaged), Err(RestoreError::Damaged { key: *key }));
    }
}

#[test]
fn a_larger_store_takes_back_what_a_smaller_one_has_saved() {
    let clock = ManualClock::new(START);
    let builder = |keys: usize| MemoryStore::builder().clock(clock.clone()).capacity(keys);
    let (limit, secret): (Limit, Secret) = ("5/min".parse().unwrap(), Secret::random());
    for (before, after) in [(4096, 1 << 20), (1 << 20, 4096)] {
        let store = builder(before).restore(&secret).finish();
        let check = |subject: &str| Check::new(Key::new("p", subject.to_owned().leak()).unwrap(), &limit);
        let checks = [check("a"), check("b")];
        let call = Call::new(Verb::Check, &checks).unwrap();
        assert!(call.ask_now(&store).unwrap().unwrap().allowed());
        let mut disk = Disk::new();
        apply(&mut disk, store.changes().unwrap());
        let again = restored(&disk, &secret, builder(after));
        for check in &checks {
            assert_eq!(again.encoded_state(check), store.encoded_state(check));
        }
    }
}

/// Calls that touch several shards are saved whole or not at all, whenever the changes are taken.
#[test]
fn changes_are_taken_as_of_one_instant() {
    let secret = Secret::random();
    let store = MemoryStore::builder().restore(&secret).finish();
    let limit: Limit = "1000000000/day fixed_window".parse().unwrap();
    let subjects: Vec<String> = (0..8).map(|subject| format!("subject {subject}")).collect();
    let checks: Vec<Check<'_>> =
        subjects.iter().map(|subject| Check::new(Key::new("p", subject).unwrap(), &limit)).collect();
    let done = std::sync::atomic::AtomicBool::new(false);
    let mut disk = Disk::new();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let call = Call::new(Verb::Check, &checks).unwrap();
                    assert!(call.ask_now(&store).unwrap().unwrap().allowed());
                }
            });
        }
        for _ in 0..300 {
            apply(&mut disk, store.changes().unwrap());
            let again = restored(&disk, &secret, MemoryStore::builder());
            let states: Vec<_> = checks.iter().map(|check| again.encoded_state(check)).collect();
            assert!(states.iter().all(|state| *state == states[0]), "a call was saved in part");
        }
        done.store(true, Ordering::Relaxed);
    });
    apply(&mut disk, store.changes().unwrap());
    let again = restored(&disk, &secret, MemoryStore::builder());
    assert_eq!(again.encoded_state(&checks[0]), store.encoded_state(&checks[0]));
}

/// Nobody takes the notes: they do not grow without bound, and the store says that they are incomplete.
#[test]
fn changes_that_nobody_takes_are_given_up() {
    let clock = ManualClock::new(START);
    let store = MemoryStore::builder().clock(clock.clone()).restore(&Secret::random()).finish();
    let limit: Limit = "1/s".parse().unwrap();
    assert_eq!(store.changes(), Some(Vec::new()));
    for subject in 0..2_000_000_u64 {
        if subject.is_multiple_of(1000) {
            clock.advance(Duration::from_secs(2));
        }
        let subject = subject.to_string();
        let check = [Check::new(Key::new("p", &subject).unwrap(), &limit)];
        Call::new(Verb::Check, &check).unwrap().ask_now(&store).unwrap().unwrap();
    }
    assert_eq!(store.changes(), None);
    let (mut all, mut later) = (Disk::new(), Disk::new());
    apply(&mut all, store.everything());
    assert_eq!(store.changes(), Some(Vec::new()));
    apply(&mut later, store.everything());
    assert_eq!(all, later);
    store.forget_changes();
    assert_eq!(store.changes(), None);
    assert_eq!(MemoryStore::new().changes(), None);
}

/// Whatever the bytes are, they are refused or read, and never crash.
#[tokio::test]
async fn damaged_entries_are_refused() {
    let clock = ManualClock::new(START);
    let secret = Secret::random();
    let store = MemoryStore::builder().clock(clock.clone()).restore(&secret).finish();
    let limiter = Limiter::new(store);
    for &algorithm in Algorithm::OVER_TIME {
        let limit = Limit::per_minute(50).algorithm(algorithm).build().unwrap();
        let checks = [Check::new(Key::new("p", "s").unwrap(), &limit), Check::new(Key::new("q", "t").unwrap(), &limit)];
        limiter.check_all(&checks[..1]).await.unwrap();
        let id = tallygate::request::RequestId::new(algorithm.name()).unwrap();
        assert!(limiter.once(id).check_all(&checks).await.unwrap().allowed());
        limiter.reserve(&checks, Duration::from_secs(5)).await.unwrap().hold.unwrap().into_hold();
    }
    let mut disk = Disk::new();
    apply(&mut disk, limiter.store().changes().unwrap());
    assert!(disk.len() > 4 * Algorithm::OVER_TIME.len());
    let builder = || MemoryStore::builder().clock(clock.clone());
    for (key, value) in &disk {
        let take = |value: &[u8]| builder().restore(&secret).take(key, value);
        assert_eq!(take(value), Ok(true));
        let newer = [&[value[0] + 1], &value[1..]].concat();
        assert_eq!(take(&newer), Err(RestoreError::Newer { found: value[0] + 1 }));
        for length in 0..value.len() {
            assert!(
                take(&value[..length]).is_err() || [*b"ssl", *b"ssw"].contains(&[key[0], key[1], key[2]]),
                "{length} bytes of {key:?}"
            );
        }
        for place in 0..value.len() {
            let mut damaged = value.clone();
            damaged[place] ^= 0x55;
            let _ = take(&damaged);
        }
    }
}

/// The list by age is not saved: it is made again of the holds that are.
#[tokio::test]
async fn open_holds_are_listed_after_a_restart_as_before() {
    let (clock, secret) = (ManualClock::new(START), Secret::random());
    let limiter = Limiter::new(restored(&Disk::new(), &secret, Restarting::builder(&clock)));
    let limit: Limit = "1000/h".parse().unwrap();
    for number in 0..60_u64 {
        let subject = format!("s{number}");
        let checks = [Check::new(Key::new("tokens", &subject).unwrap(), &limit)];
        let hold = limiter.reserve(&checks, Duration::from_secs(60)).await.unwrap().hold.unwrap().into_hold();
        if number.is_multiple_of(3) {
            limiter.cancel(&hold).await.unwrap();
        }
    }
    let before = limiter.store().open_holds(&HoldQuery::new());
    let mut disk = Disk::new();
    apply(&mut disk, limiter.store().everything());
    let after = restored(&disk, &secret, Restarting::builder(&clock)).open_holds(&HoldQuery::new());
    let listed = |page: HoldPage| {
        let mut subjects: Vec<String> = page.holds.into_iter().map(|hold| hold.parts[0].subject.clone()).collect();
        subjects.sort();
        subjects
    };
    let (before, after) = (listed(before), listed(after));
    assert_eq!((before.len(), &before), (40, &after));
}
