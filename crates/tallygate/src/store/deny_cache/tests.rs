use super::*;
use crate::call::Verb;
use crate::clock::ManualClock;
use crate::{Cost, Key, MemoryStore};

const START: u64 = 1_700_000_000_000_000;

fn limit() -> Limit {
    "3/h".parse().unwrap()
}

/// A known or a new entry of one key. Costs of zero were allowed.
fn entry(print: Print, limit: &str, denied_cost: u64, until: u64) -> Entry {
    let limit: Limit = limit.parse().unwrap();
    let status = Status::from_parts(&limit, denied_cost == 0, 1, 0, 0);
    Entry {
        print,
        limit,
        cost: denied_cost.max(1),
        status,
        answered_at: 0,
        until,
        decided_at: Timestamp::from_micros(0),
    }
}

#[test]
fn an_entry_is_replaced_unless_it_says_more() {
    let print = Factors::random().print(b"p", b"s");
    for (known, new, now, replaced) in [
        (("3/h", 1), ("3/h", 2), 9, false),
        (("3/h", 1), ("3/h", 2), 10, true), // it has ended
        (("3/h", 1), ("4/h", 2), 9, true),
        (("3/h", 2), ("3/h", 2), 9, true),
        (("3/h", 3), ("3/h", 2), 9, true),
        (("3/h", 3), ("3/h", 0), 9, false), // what is denied says more than what is allowed
        (("3/h", 0), ("3/h", 2), 9, true),
        (("3/h", 0), ("3/h", 0), 9, true),
    ] {
        let mut shard = Shard::default();
        shard.insert(entry(print, known.0, known.1, 10), 0, 1);
        shard.insert(entry(print, new.0, new.1, 20), now, 1);
        let kept: Vec<u64> = shard.entries.iter().map(|entry| entry.until).collect();
        assert_eq!(kept, [if replaced { 20 } else { 10 }], "{known:?} and {new:?}");
    }
}

#[test]
fn only_entries_that_have_ended_make_room() {
    let factors = Factors::random();
    let of = |subject: &str, until| entry(factors.print(b"p", subject.as_bytes()), "3/h", 1, until);
    for (now, kept) in [(9, [10, 11]), (10, [11, 20]), (11, [20, 20])] {
        let mut shard = Shard::default();
        for (subject, until) in [("a", 10), ("b", 11)] {
            shard.insert(of(subject, until), 0, 2);
        }
        shard.insert(of("c", 20), now, 2);
        shard.insert(of("d", 20), now, 2);
        let mut found: Vec<u64> = shard.entries.iter().map(|entry| entry.until).collect();
        found.sort_unstable();
        assert_eq!(found, kept, "at {now}");
    }
}

#[test]
fn the_capacity_is_divided_among_the_shards() {
    for (entries, each) in [(0, 1), (16, 1), (17, 2), (10_000, 625)] {
        assert_eq!(DenyCache::new(()).capacity(entries).capacity, each);
    }
    assert_eq!(DenyCache::new(()).capacity, 625);
}

fn check<'a>(subject: &'a str, limit: &'a Limit) -> Check<'a> {
    Check::new(Key::new("p", subject).unwrap(), limit).cost(Cost::new(limit.capacity()).unwrap())
}

fn ask<S: Store>(store: &S, subjects: &[&str]) -> Decision {
    let limit = limit();
    let checks: Vec<Check<'_>> = subjects.iter().map(|subject| check(subject, &limit)).collect();
    Call::new(Verb::Check, &checks).unwrap().ask_now(store).unwrap().unwrap()
}

#[test]
fn a_repeated_denial_is_the_answer_of_the_store_until_it_ends() {
    let clock = ManualClock::new(Timestamp::from_micros(START));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let cache = DenyCache::new(store).clock(clock.clone()).at_most(Duration::from_micros(2));
    assert!(cache.is_empty() && ask(&cache, &["a", "b"]).allowed());
    let denied = [ask(&cache, &["a"]), ask(&cache, &["a"])];
    assert_eq!(denied.each_ref().map(Decision::source), [Source::Store, Source::DenyCache]);
    let status = denied[0].binding();
    assert_eq!(denied[1], Decision::of_one(status, Source::DenyCache, Timestamp::from_micros(START)));
    // A call that is known to be denied may have other effects.
    let limit = limit();
    let known = Call::new(Verb::Check, &[check("a", &limit)]).unwrap().denied(true).ask_now(&cache).unwrap().unwrap();
    assert_eq!(known.source(), Source::Store);
    clock.advance(Duration::from_micros(1));
    ask(&cache, &["b"]);
    for subjects in [["a", "b"], ["b", "a"]] {
        let both = ask(&cache, &subjects);
        assert_eq!((both.source(), both.decided_at()), (Source::DenyCache, Some(Timestamp::from_micros(START + 1))));
    }
    assert_eq!((cache.len(), cache.is_empty()), (2, false));
    clock.advance(Duration::from_micros(1));
    assert_eq!(["a", "b"].map(|subject| ask(&cache, &[subject]).source()), [Source::Store, Source::DenyCache]);
}

/// One microsecond is the shortest time, and zero is never.
#[test]
fn nothing_is_kept_for_no_time() {
    for (micros, source) in [(0, Source::Store), (1, Source::DenyCache)] {
        let clock = ManualClock::new(Timestamp::from_micros(START));
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let cache = DenyCache::new(store).clock(clock).at_most(Duration::from_micros(micros));
        let last = [(); 3].map(|()| ask(&cache, &["a"]).source())[2];
        assert_eq!((last, cache.is_empty()), (source, micros == 0));
    }
}

/// Answers every call alike.
struct Fixed(Decision);

impl Store for Fixed {
    async fn call(&self, _: &Call<'_>) -> Result<Decision, StoreError> {
        Ok(self.0.clone())
    }

    fn call_now(&self, _: &Call<'_>) -> Option<Result<Decision, StoreError>> {
        Some(Ok(self.0.clone()))
    }
}

#[tokio::test]
async fn only_whole_denials_of_the_store_are_kept() {
    let limit = limit();
    let status = |allowed| Status::from_parts(&limit, allowed, 0, 5_000_000, 5_000_000);
    let decision = |allowed, source| {
        Decision::new(allowed, vec![status(false), status(true)], source, Timestamp::from_micros(START))
    };
    let denied = decision(false, Source::Store);
    let failed = |place| denied.clone().with_failures(vec![(place, StoreError::unavailable("down"))]);
    for (verb, answer, kept) in [
        (Verb::Check, denied.clone(), 2),
        (Verb::Peek, denied.clone(), 0),
        (Verb::Check, denied.clone().into_split(), 0),
        (Verb::Check, failed(0), 0),
        (Verb::Check, failed(1), 0),
        (Verb::Check, decision(false, Source::Overflow), 0),
        (Verb::Check, decision(true, Source::Store), 0),
    ] {
        let checks = [check("a", &limit), check("b", &limit)];
        let call = Call::new(verb, &checks).unwrap();
        let caches = [(); 2].map(|()| DenyCache::new(Fixed(answer.clone())));
        assert_eq!(call.ask(&caches[0]).await, Ok(answer.clone()));
        assert_eq!(call.ask_now(&caches[1]), Some(Ok(answer.clone())));
        assert_eq!(caches.each_ref().map(DenyCache::len), [kept; 2], "{verb:?} {answer:?}");
    }
}

/// A cache and a store on one clock. A check is a subject, a cost, and for how many milliseconds its denial may be repeated.
struct Scene {
    clock: ManualClock,
    cache: DenyCache<MemoryStore>,
    limit: Limit,
}

impl Scene {
    fn new(limit: &str) -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(START));
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let cache = DenyCache::new(store).clock(clock.clone());
        Self { clock, cache, limit: limit.parse().unwrap() }
    }

    fn check<'s>(&'s self, (subject, cost, millis): (&'s str, u64, u64)) -> Check<'s> {
        let check = Check::new(Key::new("p", subject).unwrap(), &self.limit).cost(Cost::new(cost).unwrap());
        check.within_capacity().with_cache_denials(Some(Duration::from_millis(millis)))
    }

    fn ask(&self, checks: &[(&str, u64, u64)]) -> Decision {
        let checks: Vec<Check<'_>> = checks.iter().map(|&one| self.check(one)).collect();
        Call::of_distinct(Verb::Check, &checks).ask_now(&self.cache).unwrap().unwrap()
    }

    /// Where the second of two answers comes from.
    fn repeated(&self, checks: &[(&str, u64, u64)]) -> Source {
        assert!(!self.ask(checks).allowed());
        self.ask(checks).source()
    }

    fn wait(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }
}

#[test]
fn each_denial_has_its_own_time_and_what_was_allowed_that_of_the_denial() {
    let scene = Scene::new("1/h");
    for subject in ["a", "b", "d"] {
        assert!(scene.ask(&[(subject, 1, 0)]).allowed());
    }
    assert_eq!(scene.ask(&[("a", 1, 1), ("b", 1, 3)]).source(), Source::Store);
    scene.wait(1);
    assert_eq!(scene.ask(&[("b", 1, 3)]).source(), Source::DenyCache);
    assert_eq!(scene.ask(&[("a", 1, 1)]).source(), Source::Store);
    assert_eq!(scene.ask(&[("a", 1, 1), ("free", 1, 9)]).source(), Source::Store, "what is left is not known");
    assert_eq!(scene.ask(&[("a", 1, 1), ("free", 1, 9)]).source(), Source::DenyCache);
    scene.wait(1);
    assert_eq!(scene.ask(&[("d", 1, 9)]).source(), Source::Store);
    assert_eq!(scene.ask(&[("d", 1, 9), ("free", 1, 9)]).source(), Source::Store, "it was known next to `a` only");
}

#[test]
fn what_may_not_be_repeated_denies_nothing() {
    let scene = Scene::new("1/h");
    assert!(scene.ask(&[("a", 1, 0)]).allowed() && scene.ask(&[("b", 1, 0)]).allowed());
    assert!(!scene.ask(&[("a", 1, 0), ("free", 1, 9)]).allowed());
    assert!(scene.cache.is_empty());
    // Each is known now, next to a denial that may be repeated.
    assert_eq!(scene.repeated(&[("a", 1, 0), ("b", 1, 9)]), Source::DenyCache);
    assert_eq!(scene.repeated(&[("b", 1, 9), ("free", 1, 9)]), Source::DenyCache);
    assert_eq!(scene.repeated(&[("a", 1, 0), ("free", 1, 9)]), Source::Store);
}

#[test]
fn what_was_allowed_is_known_for_its_cost_only() {
    let scene = Scene::new("3/h");
    assert!(scene.ask(&[("a", 3, 0)]).allowed());
    assert_eq!(scene.repeated(&[("a", 1, 9), ("free", 2, 9)]), Source::DenyCache);
    for cost in [1, 3] {
        assert_eq!(scene.ask(&[("a", 1, 9), ("free", cost, 9)]).source(), Source::Store, "{cost}");
    }
}

/// What the store is asked in between changes nothing, unless it is asked about another limit.
#[test]
fn a_denial_outlasts_a_smaller_cost_that_is_allowed() {
    let scene = Scene::new("3/h");
    assert!(scene.ask(&[("a", 1, 0)]).allowed());
    assert_eq!(scene.repeated(&[("a", 3, 9)]), Source::DenyCache);
    assert!(scene.ask(&[("a", 1, 9)]).allowed());
    assert_eq!(scene.ask(&[("a", 3, 9)]).source(), Source::DenyCache);
}

/// A cost that never fits says nothing about the largest that does.
#[test]
fn a_cost_above_the_capacity_is_known_by_itself() {
    let scene = Scene::new("3/h");
    assert_eq!(scene.repeated(&[("a", 4, 9)]), Source::DenyCache);
    assert!(scene.ask(&[("a", 3, 9)]).allowed());
}

#[test]
fn a_call_is_not_repeated_if_one_of_its_checks_drains() {
    let scene = Scene::new("1/h");
    assert!(scene.ask(&[("a", 1, 0)]).allowed() && scene.ask(&[("b", 1, 0)]).allowed());
    let drains = scene.check(("a", 1, 9)).with_excess(crate::policy::Excess::Drain);
    for checks in [[drains, scene.check(("b", 1, 9))], [scene.check(("b", 1, 9)), drains]] {
        let ask = || Call::of_distinct(Verb::Check, &checks).ask_now(&scene.cache).unwrap().unwrap().source();
        assert_eq!([ask(), ask()], [Source::Store; 2]);
    }
}

/// Its refunds take effect and are never answered.
struct Unanswered(MemoryStore);

impl Store for Unanswered {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        let answer = self.0.call(call).await;
        if call.verb() == Verb::Refund { std::future::pending().await } else { answer }
    }
}

#[tokio::test]
async fn a_refund_drops_the_denial_before_it_is_answered() {
    let cache = DenyCache::new(Unanswered(MemoryStore::new())).at_most(Duration::from_secs(60));
    let limit = limit();
    let checks = [check("a", &limit)];
    for source in [Source::Store, Source::Store, Source::DenyCache] {
        let answer = Call::new(Verb::Check, &checks).unwrap().ask(&cache).await.unwrap();
        assert_eq!(answer.source(), source);
    }
    let refund = Call::new(Verb::Refund, &checks).unwrap();
    tokio::select! {
        biased;
        _ = refund.ask(&cache) => panic!("it is never answered"),
        answer = async { Call::new(Verb::Check, &checks).unwrap().ask(&cache).await.unwrap() } => {
            assert!(answer.allowed());
        }
    }
}
