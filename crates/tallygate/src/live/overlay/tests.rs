use proptest::prelude::*;

use super::*;
use crate::call::Verb;
use crate::clock::ManualClock;
use crate::live::{ChangeError, OverrideError, Overrides, Target, change};
use crate::policy::{Action, Ask, Mode, OnError, Rule, Stores, Verdict};
use crate::{Cost, MemoryStore};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const SECOND: u64 = 1_000_000;

fn done<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("the embedded store does not wait"),
    }
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(1_000 * SECOND + seconds * SECOND)
}

fn files(limit: &str) -> PolicySet {
    let pro = vec![("plan".to_owned(), crate::policy::Want::one_of(["pro"]))];
    let rule = Rule::new().partition("user").override_limit(pro, "50/min").unwrap();
    let policy = Policy::new("per-user", "api", limit).unwrap().with_on_error(OnError::Deny);
    PolicySet::new(vec![Domain::new("api", [(policy, rule)]).unwrap()]).unwrap()
}

fn target(entries: &[(&str, &str)]) -> Target {
    Target::new("api", "per-user", entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
}

fn asked(entries: &[(&str, &str)], limit: &str) -> Override {
    let limit = (limit != "unlimited").then(|| limit.parse().unwrap());
    Override::new(target(entries), limit).because("a test").by("ada")
}

fn user(id: &str, plan: &str) -> Descriptor {
    Descriptor::new().with("user", id).with("plan", plan)
}

/// The limit as files and overrides say it, at an instant.
fn limit_at(set: &OverrideSet, now: Timestamp, caller: &Descriptor) -> Option<String> {
    let policies = files("10/min").with_overrides(set, now);
    let found = policies.domain("api").unwrap().matcher().find(&[caller]).remove(0);
    found.policy.limit_of(&found.limit).map(ToString::to_string)
}

#[test]
fn an_override_goes_before_the_files_from_its_beginning_until_its_end() {
    let mut set = OverrideSet::default();
    set.put(asked(&[("plan", "pro")], "70/min"), Some(Duration::from_secs(60)), at(0)).unwrap();
    let seen = |seconds| limit_at(&set, at(seconds), &user("1", "pro")).unwrap();
    assert_eq!([0, 1, 59, 60].map(seen), ["50/min", "70/min", "70/min", "50/min"]);
    assert_eq!(limit_at(&set, at(1), &user("1", "free")).unwrap(), "10/min");
}

#[test]
fn one_for_a_subject_goes_before_one_for_a_plan_and_more_entries_before_fewer() {
    let mut set = OverrideSet::default();
    let mut put = |entries: &[(&str, &str)], limit: &str| set.put(asked(entries, limit), None, at(0)).unwrap();
    put(&[("user", "1")], "1/min");
    put(&[("plan", "pro"), ("region", "eu")], "2/min");
    put(&[("plan", "pro")], "3/min");
    put(&[], "4/min");
    put(&[("region", "eu")], "5/min");
    let seen = |caller: Descriptor| limit_at(&set, at(9), &caller).unwrap();
    assert_eq!(seen(user("1", "pro").with("region", "eu")), "1/min");
    assert_eq!(seen(user("2", "pro").with("region", "eu")), "2/min");
    assert_eq!(seen(user("2", "pro")), "3/min");
    assert_eq!(seen(user("2", "free")), "4/min");
    assert_eq!(seen(user("2", "free").with("region", "eu")), "5/min");
}

#[test]
fn a_removed_override_leaves_what_is_below_it() {
    let mut set = OverrideSet::default();
    set.put(asked(&[("user", "1")], "unlimited"), None, at(0)).unwrap();
    set.put(asked(&[("user", "1")], "0/s"), None, at(2)).unwrap();
    set.remove(&target(&[("user", "1")]), at(4)).unwrap();
    let seen = |seconds| limit_at(&set, at(seconds), &user("1", "free"));
    assert_eq!(seen(0).as_deref(), Some("10/min"));
    assert_eq!(seen(2), None);
    assert_eq!(seen(3).as_deref(), Some("0/s"));
    assert_eq!(seen(5).as_deref(), Some("10/min"));
    assert_eq!(set.listed(at(4)).len(), 1, "until it has ended");
    assert_eq!(set.listed(at(5)).len(), 0);
    assert!(matches!(set.remove(&target(&[("user", "1")]), at(5)), Err(OverrideError::NotFound(_))));
}

/// A reload gave the policy another algorithm, and its override stayed in force: every check was denied, or nothing was limited.
#[test]
fn an_override_of_an_algorithm_that_the_policy_no_longer_has_is_not_used() {
    let mut set = OverrideSet::default();
    set.put(asked(&[("user", "1")], "70/min"), None, at(0)).unwrap();
    let seen = |file: &str| {
        let policies = files(file).with_overrides(&set, at(9));
        let found = policies.domain("api").unwrap().matcher().find(&[&user("1", "free")]).remove(0);
        found.policy.limit_of(&found.limit).map(ToString::to_string).unwrap()
    };
    assert_eq!(
        ["10/min", "20 concurrent", "9/min fixed_window"].map(seen),
        ["70/min", "20 concurrent", "9/min fixed_window"]
    );
    let in_flight = asked(&[("user", "1")], "5 concurrent");
    let unlimited = Policy::unlimited("per-user", "api").unwrap();
    let unlimited = PolicySet::new(vec![Domain::new("api", [(unlimited, Rule::new())]).unwrap()]).unwrap();
    assert!(matches!(OverrideSet::check(&in_flight, &unlimited), Err(OverrideError::OtherAlgorithm { .. })));
}

#[test]
fn what_cannot_be_set_is_refused_with_the_remedy() {
    let refused = |one: Override| {
        let mut set = OverrideSet::default();
        let checked = OverrideSet::check(&one, &files("10/min"));
        let error = checked.and_then(|()| set.put(one, None, at(0))).unwrap_err();
        assert_eq!(set, OverrideSet::default());
        error.to_string()
    };
    let good = || asked(&[("user", "1")], "9/min");
    let mut other = good();
    other.target.policy = "per-usr".to_owned();
    assert!(refused(other).contains("did you mean `per-user`?"));
    assert!(refused(asked(&[("user", "1")], "9/min sliding_log")).contains("in the policy file instead"));
    assert!(refused(good().because("")).contains("`reason` has 0 bytes: write 1 to 256"));
    assert!(refused(good().by("x".repeat(65))).contains("`author` has 65 bytes"));
    assert!(refused(asked(&[("user", "1"), ("user", "2")], "9/min")).contains("at most 4 keys once"));
    assert!(refused(asked(&[("user", "")], "9/min")).contains("`match`"));
    let mut set = OverrideSet::default();
    assert_eq!(set.put(good(), Some(Duration::from_millis(999)), at(0)), Err(OverrideError::TooShort));
    let many = (0..).map(|n| set.put(asked(&[(&n.to_string(), "1")], "9/min"), None, at(0)));
    let many = many.take_while(Result::is_ok).count();
    assert_eq!((many, set.overrides().len()), (OverrideSet::MOST_SHAPES, OverrideSet::MOST_SHAPES));
}

#[test]
fn there_is_an_end_to_how_many_there_are() {
    let mut set = OverrideSet::default();
    let some = (0..=OverrideSet::MOST).map(|n| asked(&[("user", &n.to_string())], "9/min"));
    set.overrides_mut().extend(some);
    assert!(matches!(set.encode(), Err(OverrideError::TooMany(..))));
    set.overrides_mut().pop();
    let record = set.encode().unwrap();
    assert_eq!(OverrideSet::of_reading(&crate::live::Reading::new(at(0), 0, Some(record))).unwrap(), set);
}

#[test]
fn a_set_says_when_policies_must_be_built_anew() {
    let mut set = OverrideSet::default();
    set.put(asked(&[("user", "1")], "9/min"), Some(Duration::from_secs(100)), at(0)).unwrap();
    assert!(!set.is_due(at(0), at(0)) && set.is_due(at(0), at(1)), "it begins");
    assert!(set.is_due(at(1), at(5)), "nobody needs to ask any more which limit it is");
    assert!(!set.is_due(at(50), at(89)) && set.is_due(at(50), at(91)), "it will end soon");
    assert!(set.is_due(at(99), at(100)), "it ends");
    assert!(set.is_due(at(50), at(49)), "the clock was set back");
}

/// Somebody else is faster, each time.
#[test]
fn two_writers_at_once_both_take_effect() {
    let clock = ManualClock::new(at(0));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let put = |id: &str| {
        let one = asked(&[("user", id)], "9/min");
        done(change(&store, None, |set, now| set.put(one.clone(), None, now)))
    };
    let mut raced = false;
    let set = done(change(&store, None, |set, now| {
        if !std::mem::replace(&mut raced, true) {
            put("2").unwrap();
        }
        set.put(asked(&[("user", "1")], "9/min"), None, now)
    }))
    .unwrap();
    assert_eq!(set.overrides().len(), 2);
    let stale = done(change(&store, Some(set.revision() - 1), |set, now| set.remove(&target(&[("user", "1")]), now)));
    assert!(matches!(stale, Err(ChangeError::Conflict { .. })), "{stale:?}");
    // One that would begin before the others have heard of it.
    let late = done(change(&store, None, |set, now| {
        clock.advance(Duration::from_secs(1));
        set.put(asked(&[("user", "3")], "9/min"), None, now)
    }));
    assert_eq!(late, Err(ChangeError::Contended(8)));
    assert_eq!(done(store.read_overrides(Some(set.revision()))).unwrap().record, None, "nothing was changed");
}

fn decide(policies: &PolicySet, stores: &Stores<MemoryStore>, cost: u64) -> Verdict {
    let ask = Ask::new(user("1", "free"), Action::new(Verb::Check, Cost::new(cost).unwrap()));
    done(policies.domain("api").unwrap().evaluate(&[ask]).decide(stores, None))
}

/// The limit of a ruling is that by which the store has decided, whatever this process took for the time.
#[test]
fn the_store_picks_the_limit_by_its_own_clock() {
    let clock = ManualClock::new(at(0));
    let stores = Stores::new(MemoryStore::builder().clock(clock.clone()).build());
    let mut set = OverrideSet::default();
    set.put(asked(&[("user", "1")], "20/min"), Some(Duration::from_secs(4)), at(0)).unwrap();
    let policies = files("10/min").with_overrides(&set, at(0));
    for (seconds, cost, amount, allowed) in
        [(0, 10, 10, true), (1, 10, 20, true), (3, 11, 20, false), (4, 11, 10, false)]
    {
        clock.set(at(seconds));
        let verdict = decide(&policies, &stores, cost);
        let ruling = &verdict.rulings()[0];
        assert_eq!((ruling.limit().unwrap().amount(), verdict.allowed()), (amount, allowed), "at {seconds} s");
        assert_eq!(ruling.status().limit(), amount);
        // More than the smaller limit ever has, and less than the larger one.
        assert_eq!(ruling.status().retry_after().is_none(), !allowed && cost > amount, "at {seconds} s");
    }
    assert_eq!(policies.policies().next().unwrap().mode(), Mode::Enforce);
}

proptest! {
    /// Two instances that last built their policies at different times are never decided by different limits for one instant,
    /// as long as both have read the set since it was changed.
    #[test]
    fn instances_that_have_read_the_set_agree(
        changes in prop::collection::vec((0_u64..30, 0..3_u8, 1_u64..9, prop::option::of(1_u64..20)), 1..8),
        steps in prop::collection::vec((0_u64..2_000, 0_u64..1_900, 0_u64..1_900), 1..40),
    ) {
        let mut set = OverrideSet::default();
        let mut changes = changes;
        changes.sort_unstable();
        for (second, whom, amount, lasts) in changes {
            let entries: &[(&str, &str)] = match whom { 0 => &[("user", "1")], 1 => &[("plan", "free")], _ => &[] };
            let one = asked(entries, &format!("{amount}/min"));
            set.put(one, lasts.map(Duration::from_secs), at(second)).unwrap();
        }
        let mut now = at(30).as_micros();
        for (step, early, late) in steps {
            now += step * 1_000;
            let seen = |built: u64| {
                let policies = files("10/min").with_overrides(&set, Timestamp::from_micros(built));
                let found = policies.domain("api").unwrap().matcher().find(&[&user("1", "free")]).remove(0);
                match found.limit {
                    CallerLimit::Changing(_, changes) => changes.limit_at(Timestamp::from_micros(now)).amount(),
                    other => found.policy.limit_of(&other).unwrap().amount(),
                }
            };
            prop_assert_eq!(seen(now - early * 1_000), seen(now + late * 1_000));
        }
    }
}

proptest! {
    #[test]
    fn a_record_is_read_as_it_was_written_and_anything_else_is_an_error(
        texts in prop::collection::vec(("\\PC{1,20}", "\\PC{1,20}", "[a-z]{1,5}", prop::option::of(1_u64..99)), 0..5),
        cut in any::<prop::sample::Index>(),
        noise in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut set = OverrideSet::default();
        for (reason, value, key, lasts) in texts {
            let one = asked(&[(&key, &value)], if lasts.is_some() { "5 per 2h sliding_log" } else { "unlimited" });
            set.put(one.because(reason), lasts.map(Duration::from_secs), at(0)).unwrap();
        }
        let record = set.encode().unwrap();
        let read = |record: &[u8]| OverrideSet::of_reading(&crate::live::Reading::new(at(0), 0, Some(record.to_vec())));
        prop_assert_eq!(read(&record).unwrap(), set.clone());
        if let Ok(other) = read(&record[..cut.index(record.len())]) {
            prop_assert!(other.overrides().len() < set.overrides().len().max(1));
        }
        let _ = read(&noise);
    }
}
