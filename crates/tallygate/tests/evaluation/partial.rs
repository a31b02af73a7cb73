//! A store that answers for some of the checks of a call only, as a cluster does with a shard that is down.

use std::sync::Mutex;
use std::time::Instant;

use super::*;
use tallygate::call::{Effect, UpTo};
use tallygate::{Check, Decision, Status, Store, StoreError};

/// Fails for the checks of some policies. Remembers the deadlines of refunds, which may be left to wait for ever.
struct Partial {
    store: MemoryStore,
    fails: Mutex<Vec<(&'static str, StoreError)>>,
    refunds_wait: bool,
    refunds: Mutex<Vec<Option<Instant>>>,
}

impl Store for Partial {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        if call.verb().effect() == Effect::GivesBack {
            self.refunds.lock().unwrap().push(call.deadline());
            let answer = self.store.call(call).await;
            if self.refunds_wait {
                std::future::pending::<()>().await;
            }
            return answer;
        }
        assert!(call.takes_partial_answers(), "an evaluation knows what to do about the others");
        let fails = self.fails.lock().unwrap().clone();
        let error = |check: &Check<'_>| {
            let found = fails.iter().find(|(policy, _)| check.key.policy().ends_with(policy));
            found.map(|(_, error)| error.clone())
        };
        let failures =
            call.checks().iter().enumerate().filter_map(|(place, check)| Some((place, error(check)?))).collect();
        // What fails is not charged.
        let whole: Vec<Check<'_>> = call.checks().iter().filter(|check| error(check).is_none()).copied().collect();
        let known = match &whole[..] {
            [] => None,
            whole => Some(self.store.call(&again(call, whole)).await?),
        };
        let mut statuses = known.iter().flat_map(Decision::statuses);
        let status = |check: &Check<'_>| match error(check) {
            Some(_) => Status::from_parts(check.limit, true, 0, 0, 0),
            None => *statuses.next().unwrap(),
        };
        let statuses = call.checks().iter().map(status).collect();
        let allowed = known.as_ref().is_none_or(Decision::allowed);
        let decision = Decision::new(allowed, statuses, Source::Store, Timestamp::from_micros(1_000_000_000));
        let decision = decision.with_failures(failures);
        Ok(if call.checks().len() > 1 { decision.into_split() } else { decision })
    }
}

/// The same call about some of its checks.
fn again<'c>(call: &Call<'_>, checks: &'c [Check<'c>]) -> Call<'c> {
    let call = match call.takes_at_most() {
        Some(most) => Call::check_up_to(checks, UpTo::new(most).at_least(checks[0].cost).unwrap()),
        None => Call::new(call.verb(), checks),
    };
    call.unwrap()
}

fn stores(fails: Vec<(&'static str, StoreError)>, refunds_wait: bool) -> Stores<Partial> {
    let store = |now| MemoryStore::builder().clock(ManualClock::new(Timestamp::from_micros(now))).build();
    let fails = Mutex::new(fails);
    let partial = Partial { store: store(1_000_000_000), fails, refunds_wait, refunds: Mutex::default() };
    Stores::new(partial).with_local(Arc::new(store(5_000_000)))
}

fn down() -> StoreError {
    StoreError::unavailable("the shard is down".to_owned())
}

fn decide(policies: &[&Policy], verb: Verb, stores: &Stores<Partial>, deadline: Option<Instant>) -> Verdict {
    decide_for(1, policies, verb, stores, deadline)
}

fn decide_for(
    cost: u64,
    policies: &[&Policy],
    verb: Verb,
    stores: &Stores<Partial>,
    deadline: Option<Instant>,
) -> Verdict {
    let found = policies.iter().map(|&policy| Match::new(Arc::new(policy.clone()), 0, Subject::new([])));
    ready(Evaluation::new(found, Action::new(verb, Cost::new(cost).unwrap())).decide(stores, deadline))
}

fn left(policies: &[&Policy], stores: &Stores<Partial>) -> Vec<u64> {
    let verdict = decide(policies, Verb::Peek, stores, None);
    verdict.rulings().iter().map(|ruling| ruling.status().remaining()).collect()
}

/// The share of a policy denied what a healthy shard had charged, and the caller waited for the refund beyond its deadline.
#[test]
#[allow(clippy::disallowed_methods, reason = "a deadline is an instant")]
fn nobody_waits_beyond_the_deadline_for_units_that_are_given_back() {
    let (healthy, failed) = (policy("healthy", "9/h"), policy("failed", "1/h"));
    let stores = stores(vec![("failed", down())], false);
    let deadline = Some(Instant::now() + Duration::from_secs(1));
    assert!(decide(&[&healthy, &failed], Verb::Check, &stores, deadline).allowed());
    let denied = decide(&[&healthy, &failed], Verb::Check, &stores, deadline);
    assert!(!denied.allowed(), "the share is used up");
    assert_eq!(denied.rulings()[0].charged(), 0);
    assert_eq!(*stores.shared().refunds.lock().unwrap(), [deadline]);
    assert_eq!(left(&[&healthy], &stores), [8]);
}

/// What one store gives back is followed by the other, and what was not charged there is not given back.
#[test]
fn only_what_the_store_has_charged_is_given_back() {
    let quota = |name, limit| policy(name, limit).with_mode(Mode::Quota);
    let (full, healthy) = (quota("full", "3/h"), quota("healthy", "9/h"));
    let drains = policy("drains", "3/h").with_excess(Excess::Drain);
    let (policies, stores) = ([&full, &healthy, &drains], stores(vec![], false));
    assert!(decide(&policies, Verb::Check, &stores, None).allowed());
    assert_eq!(left(&policies, &stores), [2, 8, 2]);
    *stores.shared().fails.lock().unwrap() = vec![("drains", down())];
    // The first quota has too little left to be charged, and so has the share of the third: that is taken, and the call denied.
    let denied = decide_for(3, &policies, Verb::Check, &stores, None);
    assert_eq!(denied.rulings().iter().map(Ruling::charged).collect::<Vec<_>>(), [0, 0, 2]);
    *stores.shared().fails.lock().unwrap() = vec![];
    assert_eq!(left(&policies, &stores), [2, 8, 2]);
    *stores.shared().fails.lock().unwrap() = vec![("full", down()), ("healthy", down()), ("drains", down())];
    assert_eq!(left(&policies, &stores), [2, 8, 0]);
}

/// A share that grants less than a healthy shard has charged: the difference is given back.
#[test]
fn what_a_share_does_not_grant_is_given_back() {
    let (healthy, failed) = (policy("healthy", "9/h"), policy("failed", "4/h"));
    let stores = stores(vec![("failed", down())], false);
    let take = || {
        let found = [&healthy, &failed].map(|policy| Match::new(Arc::new(policy.clone()), 0, Subject::new([])));
        let evaluation = Evaluation::new(found, Action::new(Verb::Check, Cost::ONE));
        ready(evaluation.up_to(UpTo::new(Cost::new(7).unwrap())).decide(&stores, None))
    };
    let granted = take();
    assert_eq!(granted.granted(), Some(4));
    assert_eq!(granted.rulings().iter().map(Ruling::charged).collect::<Vec<_>>(), [4, 4]);
    assert_eq!(left(&[&healthy], &stores), [5]);
    assert_eq!((take().granted(), left(&[&healthy], &stores)), (Some(0), vec![5]), "the share is used up");
}

/// A healthy shard allowed the call, and was said to bind it.
#[test]
fn what_denies_on_error_binds_next_to_what_is_allowed() {
    let (healthy, failed) = (policy("healthy", "9/h"), policy("failed", "9/h").with_on_error(OnError::Deny));
    let verdict = decide(&[&healthy, &failed], Verb::Check, &stores(vec![("failed", down())], false), None);
    assert_eq!((verdict.outcome(), verdict.split()), (Outcome::Unavailable, true));
    assert_eq!(verdict.binding().unwrap().policy().name(), "failed");
}

/// What the local store had charged stayed charged if the caller left while the shared one was asked.
#[test]
fn a_dropped_refund_gives_back_what_was_charged_locally() {
    let (healthy, failed) = (policy("healthy", "9/h"), policy("failed", "2/h"));
    let stores = stores(vec![("failed", down())], true);
    let verdict = decide(&[&healthy, &failed], Verb::Check, &stores, None);
    let sources: Vec<Source> = verdict.rulings().iter().map(Ruling::source).collect();
    assert_eq!(sources, [Source::Store, Source::OnErrorLocal]);
    {
        let mut refund = pin!(verdict.refund(&stores));
        assert!(refund.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!(left(&[&healthy, &failed], &stores), [9, 2]);
}

/// Those that did not fit into the first call were begun only after its answer, which a caller need not wait for.
#[test]
fn the_first_poll_begins_everything_that_is_given_back() {
    let shadows: Vec<Policy> = (0..40).map(|at| policy(&format!("p{at}"), "9/h").with_mode(Mode::Shadow)).collect();
    let (shadows, stores): (Vec<&Policy>, _) = (shadows.iter().collect(), stores(vec![], true));
    decide(&shadows, Verb::Check, &stores, None);
    assert_eq!(left(&shadows, &stores), [8; 40]);
    {
        let found = shadows.iter().map(|&policy| Match::new(Arc::new(policy.clone()), 0, Subject::new([])));
        let mut refund = pin!(Evaluation::new(found, Action::new(Verb::Refund, Cost::ONE)).decide(&stores, None));
        assert!(refund.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!(left(&shadows, &stores), [9; 40]);
}

/// The reset was begun only after the answer to the refund.
#[test]
fn the_first_poll_begins_refunds_and_resets() {
    let (refunded, reset) = (policy("refunded", "9/h"), policy("reset", "9/h"));
    let stores = stores(vec![], true);
    decide(&[&refunded, &reset], Verb::Check, &stores, None);
    assert_eq!(left(&[&refunded, &reset], &stores), [8, 8]);
    {
        let by = |name: &str| Descriptor::new().with("by", name);
        let rule = |name: &str| Rule::new().when("by", Want::one_of([name]));
        let policies = [&refunded, &reset].map(|policy| (policy.clone(), rule(policy.name())));
        let domain = Domain::new("d", policies).unwrap();
        let asks = [(Verb::Refund, "refunded"), (Verb::Reset, "reset")];
        let asks = asks.map(|(verb, name)| Ask::new(by(name), Action::new(verb, Cost::ONE)));
        let mut given = pin!(domain.evaluate(&asks).decide(&stores, None));
        assert!(given.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!(left(&[&refunded, &reset], &stores), [9, 9]);
}

/// What a denied call takes on purpose is not given back because something else could not be decided.
#[test]
fn what_was_drained_stays_drained_next_to_a_shard_that_is_down() {
    let drains = policy("drains", "3/h").with_excess(Excess::Drain);
    let failed = policy("failed", "9/h").with_on_error(OnError::Allow);
    let stores = stores(vec![("failed", down())], false);
    let take = || decide_for(2, &[&drains, &failed], Verb::Check, &stores, None);
    assert!(take().allowed());
    let denied = take();
    assert_eq!((denied.allowed(), denied.rulings()[0].charged()), (false, 1));
    assert_eq!(left(&[&drains], &stores), [0]);
    assert!(stores.shared().refunds.lock().unwrap().is_empty());
}

/// Next to a shard that is down, a check that was only late counted as one of a store that is down, and was allowed.
#[test]
fn each_check_is_judged_by_its_own_error() {
    let with = |name| policy(name, "9/h").with_on_error(OnError::Allow);
    let late = StoreError::ambiguous("no answer in time").late();
    for fails in [vec![("down", down()), ("late", late.clone())], vec![("late", late.clone()), ("down", down())]] {
        let stores = stores(fails, false);
        let verdict = decide(&[&with("down"), &with("late")], Verb::Peek, &stores, None);
        let sources: Vec<Source> = verdict.rulings().iter().map(Ruling::source).collect();
        assert_eq!(sources, [Source::OnErrorAllow, Source::Shed]);
        assert!(!verdict.allowed());
        assert!(stores.shared().refunds.lock().unwrap().is_empty(), "nothing was charged");
    }
}

/// Remembers which checks fail closed, and cannot answer.
#[derive(Default)]
struct Closed(Mutex<Vec<bool>>);

impl Store for Closed {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        *self.0.lock().unwrap() = call.checks().iter().map(Check::fails_closed).collect();
        Err(down())
    }
}

/// A store that knows only a part of the answer must not charge that part, if the rest denies.
#[test]
fn a_store_is_told_which_checks_fail_closed() {
    let stores = Stores::new(Closed::default());
    let found = [OnError::Allow, OnError::Deny, OnError::Local].map(|on_error| {
        let policy = policy(on_error.name(), "9/h").with_on_error(on_error);
        Match::new(Arc::new(policy), 0, Subject::new([]))
    });
    ready(Evaluation::new(found, Action::new(Verb::Check, Cost::ONE)).decide(&stores, None));
    assert_eq!(*stores.shared().0.lock().unwrap(), [false, true, false]);
}
