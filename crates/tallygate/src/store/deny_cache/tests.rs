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
    let status = *denied[0].binding();
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
    let failed = denied.clone().with_failures(vec![(1, StoreError::unavailable("down"))]);
    for (verb, answer, kept) in [
        (Verb::Check, denied.clone(), 2),
        (Verb::Peek, denied.clone(), 0),
        (Verb::Check, denied.into_split(), 0),
        (Verb::Check, failed, 0),
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
