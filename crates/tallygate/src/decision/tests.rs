use std::time::Duration;

use super::*;

fn limit() -> Limit {
    "9/s".parse().unwrap()
}

/// Its numbers: limit, remaining, units, `retry_after` and `reset_after` in microseconds.
fn numbers(status: Status) -> (bool, u64, u64, u64, Option<u64>, u64) {
    let micros = |wait: Duration| u64::try_from(wait.as_micros()).unwrap();
    let (retry_after, reset_after) = (status.retry_after().map(micros), micros(status.reset_after()));
    (status.allowed(), status.limit(), status.remaining(), status.units(), retry_after, reset_after)
}

#[test]
fn a_refund_raises_what_is_left_up_to_the_limit() {
    let charged = Status::from_parts(&limit(), true, 5, 0, 700).with_units(4);
    assert_eq!(charged.with_refund(0), charged);
    assert_eq!(numbers(charged.with_refund(1)), (true, 9, 6, 3, Some(0), 700));
    assert_eq!(numbers(charged.with_refund(4)), (true, 9, 9, 0, Some(0), 0));
    assert_eq!(numbers(charged.with_refund(7)), (true, 9, 9, 0, Some(0), 0));
    let one = Status::from_parts(&limit(), true, 8, 0, 700).with_units(1);
    assert_eq!(numbers(one.with_refund(1)), (true, 9, 9, 0, Some(0), 0));
    // A store may say that it takes time until nothing is left of a state, though all units are there.
    let full = Status::from_parts(&limit(), true, 9, 0, 700);
    assert_eq!(full.with_refund(0), full);
}

#[test]
fn waits_count_down_and_a_denied_check_never_waits_for_nothing() {
    let denied = Status::from_parts(&limit(), false, 2, 300, 700);
    for (passed, retry_after, reset_after) in [(0, 300, 700), (299, 1, 401), (300, 1, 400), (701, 1, 0)] {
        assert_eq!(numbers(denied.after(passed)), (false, 9, 2, 0, Some(retry_after), reset_after));
    }
    let allowed = Status::from_parts(&limit(), true, 2, 0, 700);
    assert_eq!(numbers(allowed.after(5)), (true, 9, 2, 0, Some(0), 695));
    assert_eq!(numbers(denied.into_never().after(5)), (false, 9, 2, 0, None, 695));
}

#[test]
fn statuses_without_a_store_claim_nothing_of_one() {
    let most = u64::from(u32::MAX);
    assert_eq!(numbers(Status::unlimited()), (true, most >> 1, most, 0, Some(0), 0));
    assert_eq!(numbers(Status::untouched(&limit())), (true, 9, 9, 0, Some(0), 0));
    assert_eq!(numbers(Status::never(&limit())), (false, 9, 0, 0, None, 0));
}

/// The denied check with the longest wait, then the allowed one with the least left.
#[test]
fn the_binding_check_is_the_tightest_wherever_it_is() {
    let allowed = |remaining| Status::from_parts(&limit(), true, remaining, 0, 9);
    let denied = |retry_after| Status::from_parts(&limit(), false, 9, retry_after, 9);
    let looser_first = [allowed(8), allowed(2), denied(3), denied(5), Status::never(&limit())];
    for tightest in 0..looser_first.len() {
        for place in 0..=tightest {
            let mut statuses = looser_first[..=tightest].to_vec();
            statuses.swap(place, tightest);
            let decision = Decision::new(false, statuses, Source::Store, NOT_ASKED);
            assert_eq!((decision.binding_index(), decision.binding()), (place, looser_first[tightest]));
        }
    }
}

#[test]
fn each_source_says_what_its_answer_is_worth() {
    let with = |is: fn(Source) -> bool| Source::ALL.iter().copied().filter(|&source| is(source)).collect::<Vec<_>>();
    use Source::{NotHeld, OnErrorAllow, OnErrorDeny, OnErrorLocal, OnlyReserved, Shed, TooMany};
    assert_eq!(with(Source::is_on_error), [OnErrorAllow, OnErrorDeny, OnErrorLocal, Shed]);
    assert_eq!(with(Source::is_without_numbers), [OnErrorAllow, OnErrorDeny, Shed, OnlyReserved, TooMany, NotHeld]);
    assert_eq!(with(Source::is_unavailable), [OnErrorDeny, Shed]);
}
