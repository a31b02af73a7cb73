//! Costs with several payers, on the embedded store.

use proptest::prelude::*;
use tallygate::call::{InvalidCheck, UpTo};
use tallygate::check::Receipt;
use tallygate::clock::ManualClock;
use tallygate::policy::{Excess, Mode};
use tallygate::request::RequestId;
use tallygate::{Check, CheckError, Cost, Decision, Key, Limit, Limiter, MemoryStore};

use crate::START;

const NAMES: [&str; 3] = ["plan", "credits", "overage"];

fn limiter() -> (Limiter<MemoryStore>, ManualClock) {
    let clock = ManualClock::new(START);
    (Limiter::new(MemoryStore::builder().clock(clock.clone()).build()), clock)
}

fn units(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

fn limits(texts: [&str; 3]) -> [Limit; 3] {
    texts.map(|text| text.parse().unwrap())
}

/// Ten units of a plan a minute, then five credits a year, then three units of overage a day.
fn usual() -> [Limit; 3] {
    limits(["10/min fixed_window", "5/365d fixed_window", "3/day in UTC"])
}

fn fund(limits: &[Limit; 3], cost: u64) -> Vec<Check<'_>> {
    let check = |(at, limit)| {
        let check = Check::new(Key::new(NAMES[at], "alice").unwrap(), limit).cost(units(cost));
        if at > 0 { check.paying_rest() } else { check }
    };
    limits.iter().enumerate().map(check).collect()
}

fn paid(decision: &Decision) -> Vec<u64> {
    decision.statuses().iter().map(|status| status.units()).collect()
}

async fn left(limiter: &Limiter<MemoryStore>, limits: &[Limit; 3]) -> Vec<u64> {
    let seen = limiter.peek_all(&fund(limits, 1)).await.unwrap();
    seen.statuses().iter().map(|status| status.remaining()).collect()
}

#[tokio::test]
async fn each_payer_pays_what_those_before_it_cannot() {
    let ((limiter, _), limits) = (limiter(), usual());
    for (cost, expected, rest) in [(7, [7, 0, 0], 11), (7, [3, 4, 0], 4), (2, [0, 1, 1], 2), (2, [0, 0, 2], 0)] {
        let decision = limiter.check_all(&fund(&limits, cost)).await.unwrap();
        assert!(decision.allowed());
        assert_eq!((paid(&decision), decision.binding().remaining()), (expected.to_vec(), rest));
        assert_eq!((decision.binding().units(), decision.binding().limit()), (cost, 18));
    }
    let denied = limiter.check_all(&fund(&limits, 1)).await.unwrap();
    assert_eq!((denied.allowed(), paid(&denied)), (false, vec![0; 3]));
}

#[tokio::test]
async fn a_cost_that_they_cannot_pay_together_charges_none_of_them() {
    let ((limiter, _), limits, other) = (limiter(), usual(), "1/h".parse::<Limit>().unwrap());
    let with_other =
        |cost| [fund(&limits, cost), vec![Check::new(Key::new("other", "alice").unwrap(), &other)]].concat();
    assert!(limiter.check_all(&with_other(4)).await.unwrap().allowed());
    // The other limit denies.
    let denied = limiter.check_all(&with_other(4)).await.unwrap();
    assert_eq!((denied.allowed(), denied.binding_index()), (false, 3));
    assert_eq!(left(&limiter, &limits).await, [6, 5, 3]);
    // They have 14.
    let denied = limiter.check_all(&fund(&limits, 15)).await.unwrap();
    assert_eq!((denied.allowed(), left(&limiter, &limits).await), (false, vec![6, 5, 3]));
    assert_eq!(denied.statuses()[2].retry_after(), denied.binding().retry_after());
}

#[tokio::test]
async fn what_is_given_back_goes_to_the_last_payer_first() {
    let ((limiter, _), limits) = (limiter(), usual());
    let checks = fund(&limits, 17);
    let decision = limiter.check_all(&checks).await.unwrap();
    assert_eq!(paid(&decision), [10, 5, 2]);
    let receipts = decision.receipts(&checks);
    assert_eq!(limiter.refund(&Receipt::last_first(&receipts, units(4))).await.unwrap(), [2, 2]);
    assert_eq!(left(&limiter, &limits).await, [0, 2, 3]);
    // Without receipts: to all that have used any, the last payer first.
    let refund = tallygate::call::Call::new(tallygate::call::Verb::Refund, &checks).unwrap();
    let given = refund.ask(&**limiter.store()).await.unwrap();
    assert_eq!((paid(&given), left(&limiter, &limits).await), (vec![10, 3, 0], vec![10, 5, 3]));
    // No payer gets more than it has paid.
    let decision = limiter.check_all(&fund(&limits, 12)).await.unwrap();
    let receipts = decision.receipts(&checks);
    let units: Vec<u64> = Receipt::last_first(&receipts, units(100)).iter().map(|part| part.units().get()).collect();
    assert_eq!(units, [2, 10]);
}

#[tokio::test]
async fn what_is_left_is_taken_from_all_of_them() {
    let ((limiter, _), limits) = (limiter(), usual());
    let up_to = UpTo::new(units(12)).at_least(units(5)).unwrap();
    let first = limiter.check_up_to(&fund(&limits, 1), up_to).await.unwrap();
    assert_eq!((first.granted(), paid(&first)), (Some(12), vec![10, 2, 0]));
    let second = limiter.check_up_to(&fund(&limits, 1), up_to).await.unwrap();
    assert_eq!((second.granted(), paid(&second)), (Some(6), vec![0, 3, 3]));
    assert!(!limiter.check_up_to(&fund(&limits, 1), up_to).await.unwrap().allowed());
}

#[tokio::test]
async fn a_cost_that_drains_takes_what_all_of_them_have() {
    let ((limiter, _), limits) = (limiter(), usual());
    let drains =
        |cost| fund(&limits, cost).into_iter().map(|check| check.with_excess(Excess::Drain)).collect::<Vec<_>>();
    assert!(limiter.check_all(&drains(14)).await.unwrap().allowed());
    let drained = limiter.check_all(&drains(9)).await.unwrap();
    assert_eq!((drained.allowed(), paid(&drained), drained.binding().remaining()), (false, vec![0, 1, 3], 0));
}

#[tokio::test]
async fn quotas_and_shadows_have_payers_too() {
    let ((limiter, _), limits) = (limiter(), usual());
    let of = |cost, mode| fund(&limits, cost).into_iter().map(|check| check.with_mode(mode)).collect::<Vec<_>>();
    assert_eq!(paid(&limiter.check_all(&of(12, Mode::Quota)).await.unwrap()), [10, 2, 0]);
    assert!(!limiter.check_all(&of(7, Mode::Quota)).await.unwrap().allowed());
    let shadow = limiter.check_all(&of(7, Mode::Shadow)).await.unwrap();
    assert_eq!((shadow.allowed(), paid(&shadow)), (true, vec![0; 3]));
    assert_eq!(paid(&limiter.check_all(&of(6, Mode::Shadow)).await.unwrap()), [0, 3, 3]);
}

#[tokio::test]
async fn a_repeat_is_answered_with_the_same_payers() {
    let ((limiter, _), limits) = (limiter(), usual());
    let checks = fund(&limits, 12);
    let call = || tallygate::call::Call::new(tallygate::call::Verb::Check, &checks).unwrap();
    let ask =
        async || call().with_request_id(Some(RequestId::new("one").unwrap())).ask(&**limiter.store()).await.unwrap();
    let (first, again) = (ask().await, ask().await);
    assert_eq!((first.replayed(), again.replayed()), (false, true));
    assert_eq!((first.statuses(), paid(&again)), (again.statuses(), vec![10, 2, 0]));
    assert_eq!(left(&limiter, &limits).await, [0, 3, 3]);
}

#[tokio::test]
async fn payers_that_do_not_belong_together_are_refused_with_the_remedy() {
    let ((limiter, _), limits) = (limiter(), usual());
    let said = async |checks: &[Check<'_>]| match limiter.check_all(checks).await {
        Err(CheckError::Invalid(invalid)) => invalid.to_string(),
        other => panic!("{other:?}"),
    };
    let mut checks = fund(&limits, 2);
    assert!(said(&checks[1..]).await.contains("name the first payer first"));
    assert!(matches!(limiter.check(checks[1]).await, Err(CheckError::Invalid(InvalidCheck::NoFirstPayer { .. }))));
    let bob = Check::new(Key::new("credits", "bob").unwrap(), &limits[1]).cost(units(2)).paying_rest();
    assert!(said(&[checks[0], bob]).await.contains("limits of one subject"));
    assert!(said(&[checks[0], checks[1].cost(units(3))]).await.contains("another cost, mode or excess"));
    assert!(said(&[checks[0], checks[1].with_mode(Mode::Shadow)]).await.contains("another cost, mode or excess"));
    let (zero, huge) = ("0/h".parse::<Limit>().unwrap(), "1000000000/h".parse::<Limit>().unwrap());
    for limit in [&zero, &huge] {
        let other = Check::new(Key::new("credits", "alice").unwrap(), limit).cost(units(2)).paying_rest();
        assert!(said(&[checks[0], other]).await.contains("together at most 1000000000"));
    }
    assert!(said(&fund(&limits, 19)).await.contains("holds at most 18"));
    checks.push(checks[1]);
    assert!(said(&checks).await.contains("same subject"));
    let reserved = limiter.reserve(&fund(&limits, 2), std::time::Duration::from_secs(1)).await.unwrap_err();
    assert!(reserved.to_string().contains("check and refund instead"), "{reserved}");
    assert_eq!(left(&limiter, &limits).await, [10, 5, 3], "nothing was charged");
}

/// What the payers say, by asking each of them alone in another store.
struct Model {
    limiter: Limiter<MemoryStore>,
    clock: ManualClock,
}

impl Model {
    fn left(&self, check: &Check<'_>) -> u64 {
        let alone = Check::new(check.key, check.limit);
        let seen = tallygate::call::Call::new(tallygate::call::Verb::Peek, std::slice::from_ref(&alone)).unwrap();
        seen.ask_now(&**self.limiter.store()).unwrap().unwrap().binding().remaining()
    }

    fn take(&self, checks: &[Check<'_>]) -> Option<Vec<u64>> {
        let mut rest = checks[0].cost.get();
        let parts: Vec<u64> = checks
            .iter()
            .map(|check| {
                let part = rest.min(self.left(check));
                rest -= part;
                part
            })
            .collect();
        if rest > 0 {
            return None;
        }
        for (check, &part) in checks.iter().zip(&parts).filter(|(_, part)| **part > 0) {
            let alone = Check::new(check.key, check.limit).cost(units(part));
            assert!(self.limiter.check_now(alone).unwrap().allowed());
        }
        Some(parts)
    }
}

fn any_limit() -> impl Strategy<Value = Limit> {
    let algorithms =
        ["", " fixed_window", " sliding_window", " sliding_counter", " sliding_log", " fixed_window_from_first_call"];
    (1_u64..12, 1_u64..8, prop::sample::select(algorithms.to_vec()))
        .prop_map(|(amount, seconds, algorithm)| format!("{amount}/{seconds}s{algorithm}").parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// All answers of random calls are those of the payers asked one by one; a call that is denied is allowed after its wait, and if only
    /// one unit is short, or windows end, not earlier.
    #[test]
    fn every_answer_is_that_of_the_payers_one_by_one(
        limits in prop::collection::vec(any_limit(), 3),
        calls in prop::collection::vec((0_u64..3000, 1_u64..20, prop::bool::weighted(0.2)), 1..40),
    ) {
        let limits: [Limit; 3] = limits.try_into().unwrap();
        let (limiter, clock) = limiter();
        let model = { let (limiter, clock) = super::funds::limiter(); Model { limiter, clock } };
        let capacity: u64 = limits.iter().map(Limit::capacity).sum();
        let windows = limits.iter().all(|limit| limit.algorithm().name().starts_with("fixed"));
        for (millis, cost, gives_back) in calls {
            let wait = std::time::Duration::from_millis(millis);
            clock.advance(wait);
            model.clock.advance(wait);
            let checks = fund(&limits, cost.min(capacity));
            let call = tallygate::call::Call::new(tallygate::call::Verb::Check, &checks).unwrap();
            let decision = call.ask_now(&**limiter.store()).unwrap().unwrap();
            let parts = model.take(&checks);
            prop_assert_eq!(decision.allowed(), parts.is_some());
            prop_assert_eq!(paid(&decision), parts.clone().unwrap_or(vec![0; 3]));
            let left: Vec<u64> = checks.iter().map(|check| model.left(check)).collect();
            let remaining: Vec<u64> = decision.statuses().iter().map(|status| status.remaining()).collect();
            prop_assert_eq!(&remaining, &left);
            prop_assert_eq!(decision.binding().remaining(), left.iter().sum::<u64>());
            if !decision.allowed() {
                let copy = clock.now();
                let after = decision.binding().retry_after().unwrap();
                let peek = |at| {
                    clock.set(at);
                    let call = tallygate::call::Call::new(tallygate::call::Verb::Peek, &checks).unwrap();
                    call.ask_now(&**limiter.store()).unwrap().unwrap().allowed()
                };
                let at = |micros: u64| tallygate::clock::Timestamp::from_micros(copy.as_micros() + micros);
                let micros = u64::try_from(after.as_micros()).unwrap();
                prop_assert!(peek(at(micros)), "denied after {:?}", after);
                let short = checks[0].cost.get() - left.iter().sum::<u64>();
                prop_assert!(!(short == 1 || windows) || !peek(at(micros - 1)), "allowed before {:?}", after);
                clock.set(copy);
            } else if gives_back {
                let receipts = decision.receipts(&checks);
                let back = Receipt::last_first(&receipts, units(checks[0].cost.get().div_ceil(2)));
                for receipt in &back {
                    let refund = |limiter: &Limiter<MemoryStore>| {
                        let checks = [receipt.check()];
                        let call = tallygate::call::Call::new(tallygate::call::Verb::Refund, &checks).unwrap();
                        call.ask_now(&**limiter.store()).unwrap().unwrap().binding().units()
                    };
                    prop_assert_eq!(refund(&limiter), refund(&model.limiter));
                }
            }
        }
    }
}
