//! A store that answers for some of the checks of a call only, as a cluster does with a shard that is down.

use std::sync::Mutex;
use std::time::Instant;

use super::*;
use tallygate::{Check, Decision, Status, Store, StoreError};

/// Fails for the checks of some policies. Remembers the deadlines of refunds, which may be left to wait for ever.
struct Partial {
    store: MemoryStore,
    fails: Vec<(&'static str, StoreError)>,
    refunds_wait: bool,
    refunds: Mutex<Vec<Option<Instant>>>,
}

impl Store for Partial {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        if call.verb() == Verb::Refund {
            self.refunds.lock().unwrap().push(call.deadline());
            let answer = self.store.call(call).await;
            if self.refunds_wait {
                std::future::pending::<()>().await;
            }
            return answer;
        }
        assert!(call.takes_partial_answers(), "an evaluation knows what to do about the others");
        let error = |check: &Check<'_>| {
            let found = self.fails.iter().find(|(policy, _)| check.key.policy().ends_with(policy));
            found.map(|(_, error)| error.clone())
        };
        let failures =
            call.checks().iter().enumerate().filter_map(|(place, check)| Some((place, error(check)?))).collect();
        // What fails is not charged.
        let whole: Vec<Check<'_>> = call.checks().iter().filter(|check| error(check).is_none()).copied().collect();
        let known = match &whole[..] {
            [] => None,
            whole => Some(self.store.call(&Call::new(call.verb(), whole).unwrap()).await?),
        };
        let mut statuses = known.iter().flat_map(Decision::statuses);
        let status = |check: &Check<'_>| match error(check) {
            Some(_) => Status::from_parts(check.limit, true, 0, 0, 0),
            None => *statuses.next().unwrap(),
        };
        let statuses = call.checks().iter().map(status).collect();
        let allowed = known.as_ref().is_none_or(Decision::allowed);
        Ok(Decision::new(allowed, statuses, Source::Store, Timestamp::from_micros(1_000_000_000))
            .with_failures(failures))
    }
}

fn stores(fails: Vec<(&'static str, StoreError)>, refunds_wait: bool) -> Stores<Partial> {
    let store = |now| MemoryStore::builder().clock(ManualClock::new(Timestamp::from_micros(now))).build();
    let partial = Partial { store: store(1_000_000_000), fails, refunds_wait, refunds: Mutex::default() };
    Stores::new(partial).with_local(Arc::new(store(5_000_000)))
}

fn down() -> StoreError {
    StoreError::unavailable("the shard is down".to_owned())
}

fn decide(policies: &[&Policy], verb: Verb, stores: &Stores<Partial>, deadline: Option<Instant>) -> Verdict {
    let found = policies.iter().map(|&policy| Match::new(Arc::new(policy.clone()), 0, Subject::new([])));
    ready(Evaluation::new(found, Action::new(verb, Cost::ONE)).decide(stores, deadline))
}

/// The share of a policy denied what a healthy shard had charged, and the caller waited for the refund beyond its deadline.
#[test]
#[allow(clippy::disallowed_methods, reason = "a deadline is an instant")]
fn nobody_waits_beyond_the_deadline_for_units_that_are_given_back() {
    let (healthy, failed) = (policy("healthy", "9/h"), policy("failed", "1/h"));
    let stores = stores(vec![("failed", down())], false);
    let deadline = Some(Instant::now() + Duration::from_secs(1));
    assert!(decide(&[&healthy, &failed], Verb::Check, &stores, deadline).allowed());
    assert!(!decide(&[&healthy, &failed], Verb::Check, &stores, deadline).allowed(), "the share is used up");
    assert_eq!(*stores.shared().refunds.lock().unwrap(), [deadline]);
    assert_eq!(decide(&[&healthy], Verb::Peek, &stores, None).rulings()[0].status().remaining(), 8);
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
    let left = decide(&[&healthy, &failed], Verb::Peek, &stores, None);
    let left: Vec<u64> = left.rulings().iter().map(|ruling| ruling.status().remaining()).collect();
    assert_eq!(left, [9, 2]);
}

/// Those that did not fit into the first call were begun only after its answer, which a caller need not wait for.
#[test]
fn the_first_poll_begins_everything_that_is_given_back() {
    let shadows: Vec<Policy> = (0..40).map(|at| policy(&format!("p{at}"), "9/h").with_mode(Mode::Shadow)).collect();
    let (shadows, stores): (Vec<&Policy>, _) = (shadows.iter().collect(), stores(vec![], true));
    let left = |verb| -> Vec<u64> {
        let verdict = decide(&shadows, verb, &stores, None);
        verdict.rulings().iter().map(|ruling| ruling.status().remaining()).collect()
    };
    assert_eq!(left(Verb::Check), [8; 40]);
    {
        let found = shadows.iter().map(|&policy| Match::new(Arc::new(policy.clone()), 0, Subject::new([])));
        let mut refund = pin!(Evaluation::new(found, Action::new(Verb::Refund, Cost::ONE)).decide(&stores, None));
        assert!(refund.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!(left(Verb::Peek), [9; 40]);
}

/// What a denied call takes on purpose is not given back because something else could not be decided.
#[test]
fn what_was_drained_stays_drained_next_to_a_shard_that_is_down() {
    let drains = policy("drains", "3/h").with_excess(Excess::Drain);
    let failed = policy("failed", "9/h").with_on_error(OnError::Allow);
    let stores = stores(vec![("failed", down())], false);
    let take = || {
        let found = [&drains, &failed].map(|policy| Match::new(Arc::new(policy.clone()), 0, Subject::new([])));
        ready(Evaluation::new(found, Action::new(Verb::Check, Cost::new(2).unwrap())).decide(&stores, None))
    };
    assert!(take().allowed());
    let denied = take();
    assert_eq!((denied.allowed(), denied.rulings()[0].charged()), (false, 1));
    assert_eq!(decide(&[&drains], Verb::Peek, &stores, None).rulings()[0].status().remaining(), 0);
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
