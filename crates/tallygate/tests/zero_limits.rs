//! Limits of zero are answered without the store, beside limits that it answers for, in part or not at all.

use std::time::Duration;

use tallygate::call::{Call, Verb};
use tallygate::decision::Source;
use tallygate::policy::Mode;
use tallygate::{Check, Decision, Key, Limit, Status, Store, StoreError};

use crate::START;

/// Answers every call alike.
struct Fixed(Result<Decision, StoreError>);

impl Store for Fixed {
    async fn call(&self, _: &Call<'_>) -> Result<Decision, StoreError> {
        self.0.clone()
    }

    fn call_now(&self, _: &Call<'_>) -> Option<Result<Decision, StoreError>> {
        Some(self.0.clone())
    }
}

fn limits() -> [Limit; 3] {
    ["9/s", "0/s", "5/s"].map(|text| text.parse().unwrap())
}

/// What is answered to a call of the three limits, in whichever way the store is asked.
async fn ask(verb: Verb, zero: Mode, answer: Result<Decision, StoreError>) -> Result<Decision, StoreError> {
    let limits = limits();
    let keys = ["a", "zero", "b"].map(|policy| Key::new(policy, "s").unwrap());
    let check = |at: usize| Check::new(keys[at], &limits[at]);
    let checks = [check(0), check(1).with_mode(zero), check(2)];
    let (call, store) = (Call::new(verb, &checks).unwrap(), Fixed(answer));
    let answer = call.ask(&store).await;
    assert_eq!(call.ask_now(&store), Some(answer.clone()));
    answer
}

fn down() -> StoreError {
    StoreError::unavailable("switched off")
}

#[tokio::test]
async fn a_limit_of_zero_denies_though_the_store_cannot_answer() {
    let [nine, zero, five] = limits();
    let never = |limit: &Limit| Status::from_parts(limit, false, 0, u64::MAX, 0);
    for verb in [Verb::Check, Verb::Peek] {
        let decision = ask(verb, Mode::Enforce, Err(down())).await.unwrap();
        assert_eq!(decision.statuses(), [&nine, &zero, &five].map(never));
        let failed = [0, 1, 2].map(|place| decision.failure(place).is_some());
        assert_eq!(failed, [true, false, true]);
        assert!(!decision.allowed() && !decision.split() && decision.decided_at().is_none());
        assert_eq!(decision.source(), Source::ZeroLimit);
        assert_eq!(ask(verb, Mode::Shadow, Err(down())).await, Err(down()));
    }
}

#[tokio::test]
async fn what_the_store_says_of_the_others_is_passed_on() {
    let [nine, zero, five] = limits();
    let answers = [Status::from_parts(&nine, true, 4, 0, 700), Status::from_parts(&five, true, 0, 0, 0)];
    for (verb, allowed, retry_after) in [(Verb::Check, false, u64::MAX), (Verb::Refund, true, 0)] {
        let decision = Decision::new(true, answers.to_vec(), Source::Store, START);
        let answer = decision.into_split().with_failures(vec![(1, down())]);
        let decision = ask(verb, Mode::Enforce, Ok(answer)).await.unwrap();
        let of_zero = Status::from_parts(&zero, allowed, 0, retry_after, 0);
        assert_eq!(decision.statuses(), [answers[0], of_zero, answers[1]]);
        assert_eq!([0, 1, 2].map(|place| decision.failure(place).is_some()), [false, false, true]);
        assert_eq!((decision.allowed(), decision.split(), decision.decided_at()), (allowed, true, Some(START)));
    }
}

/// A shadow of zero leaves the outcome to the store, and what decides without it has nobody to ask.
#[tokio::test]
async fn the_outcome_is_that_of_the_limits_that_decide() {
    let [nine, _, five] = limits();
    for allowed in [true, false] {
        let answers = [&nine, &five].map(|limit| Status::from_parts(limit, allowed, 0, 5, 9));
        let answer = Decision::new(allowed, answers.to_vec(), Source::Store, START);
        let decision = ask(Verb::Check, Mode::Shadow, Ok(answer)).await.unwrap();
        assert_eq!((decision.allowed(), decision.split()), (allowed, false));
        assert_eq!(decision.statuses()[1].retry_after(), None::<Duration>);
    }
}
