use std::time::Duration;

use proptest::prelude::*;

use super::bound::{Admitted, span};
use super::*;
use crate::clock::ManualClock;
use crate::limit::{Calendar, Period};
use crate::{Algorithm, Check, Key, Limit, Limiter, MemoryStore};

const START: u64 = 1_700_000_000_000_000;

fn any_limit() -> impl Strategy<Value = Limit> {
    let amount = prop_oneof![1..20_u64, Just(999_983), Just(1_000_000_000)];
    let millis = prop_oneof![1..2000_u64, Just(999_983), Just(86_400_000), Just(31_536_000_000)];
    let algorithm = prop::sample::select(Algorithm::OVER_TIME);
    (algorithm, amount, millis, prop::option::of(1..50_u64)).prop_map(|(algorithm, amount, millis, burst)| {
        // Half of the calendars are of a time zone, the others of fixed windows.
        if algorithm == Algorithm::CalendarWindow && amount % 2 == 0 {
            let period = if millis % 2 == 0 { Period::Day } else { Period::Month { day: 31 } };
            let calendar = Calendar::new(period, "Europe/Berlin").unwrap();
            return Limit::in_calendar(amount, calendar).build().unwrap();
        }
        let plain = Limit::builder(amount, Duration::from_millis(millis)).algorithm(algorithm);
        let burst = burst.filter(|_| algorithm == Algorithm::TokenBucket);
        let bursty = burst.and_then(|burst| plain.clone().burst(burst).build().ok());
        bursty.unwrap_or_else(|| plain.build().unwrap())
    })
}

/// Each step: how far to advance, as a share of the window, and how much to request, as a share of what is left.
fn any_steps() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let advance = prop_oneof![Just(0), Just(1), 1..100_u64, 1..1_500_000_u64];
    prop::collection::vec((advance, 1..=1000_u64), 1..60)
}

/// The answers of a correct limiter.
fn honest(limit: &Limit, steps: &[(u64, u64)]) -> Vec<Record> {
    let clock = ManualClock::new(Timestamp::from_micros(START));
    let limiter = Limiter::new(MemoryStore::builder().clock(clock.clone()).build());
    let check = Check::new(Key::new("p", "s").unwrap(), limit);
    let mut records = Vec::new();
    for &(millionths, thousandths) in steps {
        let micros = u128::from(limit.numbers().window) * u128::from(millionths) / 1_000_000;
        clock.advance(Duration::from_micros(u64::try_from(micros).unwrap()));
        let cost = Cost::new((limit.capacity() * thousandths / 1000).max(1)).unwrap();
        records.push(Record::new(cost, &limiter.check_now(check.cost(cost)).unwrap()));
    }
    records
}

/// The same bounds in the simplest form: all pairs, no running state.
fn plain_spans(limit: &Limit, calls: &[Admitted]) -> Vec<Span> {
    let n = limit.numbers();
    let sum = |from: u64, upto: usize| -> u64 {
        calls[..=upto].iter().filter(|call| call.at >= from).map(|call| call.units).sum()
    };
    let mut spans = Vec::new();
    for (j, call) in calls.iter().enumerate() {
        let since_a_window = call.at - (n.window - 1);
        match n.algorithm {
            Algorithm::Concurrency => unreachable!("it does not count over time"),
            Algorithm::TokenBucket => {
                let spans_to_here = (0..=j).map(|i| {
                    let elapsed = u128::from((call.at / n.tick - calls[i].at / n.tick) * n.tick);
                    let regained = u128::from(n.amount) * elapsed / u128::from(n.window);
                    let allowed = n.capacity + u64::try_from(regained).unwrap();
                    let admitted = calls[i..=j].iter().map(|call| call.units).sum();
                    span(calls[i].at, call.at, admitted, allowed, Rule::Refill)
                });
                spans.push(spans_to_here.max_by_key(Span::excess).unwrap());
            }
            Algorithm::FixedWindow => {
                let start = call.at / n.window * n.window;
                spans.push(span(start, call.at, sum(start, j), n.amount, Rule::OneWindow));
            }
            Algorithm::CalendarWindow => {
                let start = n.calendar.as_ref().unwrap().window_at(Timestamp::from_micros(call.at)).0.as_micros();
                spans.push(span(start, call.at, sum(start, j), n.amount, Rule::OneWindow));
            }
            Algorithm::FixedWindowFromFirstCall => {
                let mut start = calls[0].at;
                while let Some(next) = calls[..=j].iter().find(|call| call.at >= start + n.window) {
                    start = next.at;
                }
                spans.push(span(start, call.at, sum(start, j), n.amount, Rule::OneWindow));
            }
            Algorithm::SlidingWindow | Algorithm::SlidingLog => {
                spans.push(span(0, call.at, sum(since_a_window, j), n.amount, Rule::AnyWindow));
            }
            Algorithm::SlidingCounter => {
                let start = call.at / n.window * n.window;
                let current = sum(start, j);
                let previous = sum(start - n.window, j) - current;
                let left = n.window - (call.at - start) / n.tick * n.tick;
                let weighted = (u128::from(previous) * u128::from(left)).div_ceil(u128::from(n.window));
                let estimate = current + u64::try_from(weighted).unwrap();
                spans.push(span(0, call.at, estimate, n.amount, Rule::Estimate));
                spans.push(span(0, call.at, sum(since_a_window, j), 2 * n.amount - 1, Rule::UnderTwice));
            }
        }
    }
    spans
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn an_honest_history_passes(limit in any_limit(), steps in any_steps()) {
        let mut records = honest(&limit, &steps);
        records.reverse();
        let report = bound(&limit, &records);
        prop_assert!(report.holds(), "{limit}: {}", report.violations[0]);
        let wrong = replay(&limit, &records, Duration::ZERO);
        prop_assert!(wrong.is_empty(), "{limit}: {}", wrong[0]);
    }

    /// Valkey 9.1 steps its clock back by microseconds; sorted by time alone, right answers were found to be wrong.
    #[test]
    fn an_honest_history_on_a_clock_that_steps_back_passes(
        limit in any_limit(), steps in any_steps(), back in 1..20_000_u64, every in 2..20_usize
    ) {
        // If the limit regains a unit in the meantime, several orders give the same answers.
        let back = back.min((limit.numbers().window - 1) / limit.amount());
        let clock = ManualClock::new(Timestamp::from_micros(START));
        let limiter = Limiter::new(MemoryStore::builder().clock(clock.clone()).build());
        let check = Check::new(Key::new("p", "s").unwrap(), &limit);
        let (mut at, mut records) = (START, Vec::new());
        for (count, (advance, _)) in steps.iter().enumerate() {
            at += advance % 100;
            let late = if count % every == 0 { back } else { 0 };
            clock.set(Timestamp::from_micros(at - late));
            records.push(Record::new(Cost::ONE, &limiter.check_now(check).unwrap()));
        }
        let wrong = replay(&limit, &records, SERVER_STEP_BACK);
        prop_assert!(wrong.is_empty(), "{limit}: {}", wrong[0]);
    }

    /// One denied call is recorded as admitted: where the bound is tight, that alone breaks it.
    #[test]
    fn one_planted_admission_is_found(limit in any_limit(), steps in any_steps(), which in any::<prop::sample::Index>()) {
        let mut records = honest(&limit, &steps);
        let denied: Vec<usize> = (0..records.len()).filter(|&index| !records[index].allowed).collect();
        prop_assume!(!denied.is_empty());
        let planted = denied[which.index(denied.len())];
        // Nothing comes after it, so that its later effects play no part.
        records.truncate(planted + 1);
        records[planted].allowed = true;
        prop_assert!(!replay(&limit, &records, Duration::ZERO).is_empty());
        // Sub-windows deny early: a call that they deny need not break the bound.
        if limit.algorithm() != Algorithm::SlidingWindow {
            let report = bound(&limit, &records);
            prop_assert_eq!(report.violations.last().map(|span| span.to), Some(records[planted].decided_at));
            prop_assert!(report.worst.unwrap().excess() > 0);
        }
    }

    #[test]
    fn one_wrong_word_is_found(limit in any_limit(), steps in any_steps(), which in any::<prop::sample::Index>(), word in 0..3) {
        let mut records = honest(&limit, &steps);
        let index = which.index(records.len());
        let record = &mut records[index];
        // A denial with another `remaining` of the same instant can be right too.
        prop_assume!(record.allowed || word > 0);
        match word {
            0 => record.remaining = record.remaining.map(|remaining| remaining ^ 1),
            1 => record.retry_after = record.retry_after.map(|wait| wait + Duration::from_micros(1)),
            _ => record.reset_after = record.reset_after.map(|wait| wait + Duration::from_micros(1)),
        }
        prop_assert!(!replay(&limit, &records, Duration::ZERO).is_empty());
    }

    /// Over unlimited calls, so that both sides of each bound occur.
    #[test]
    fn the_fast_bound_is_the_plain_one(limit in any_limit(), steps in any_steps()) {
        let mut at = START;
        let calls = steps.iter().map(|&(millionths, thousandths)| {
            at += u64::try_from(u128::from(limit.numbers().window) * u128::from(millionths) / 1_000_000).unwrap();
            Admitted { at, units: (limit.capacity() * thousandths / 2500).max(1) }
        });
        let calls: Vec<Admitted> = calls.collect();
        let summary = |spans: Vec<Span>| {
            let mut summary: Vec<_> = spans.iter().map(|span| (span.to, span.excess(), format!("{:?}", span.rule))).collect();
            summary.sort_unstable();
            summary
        };
        prop_assert_eq!(summary(limit.algorithm().worst_spans(limit.numbers(), &calls)), summary(plain_spans(&limit, &calls)));
    }
}

fn admitted(millis_and_units: &[(u64, u64)]) -> Vec<Record> {
    let record = |&(millis, units)| Record::bare(Timestamp::from_micros(millis * 1000), units, true);
    millis_and_units.iter().map(record).collect()
}

/// The number of calls that break the bound of a limit.
fn broken(limit: &str, millis_and_units: &[(u64, u64)]) -> usize {
    let report = bound(&limit.parse().unwrap(), &admitted(millis_and_units));
    assert_eq!(report.holds(), report.violations.is_empty());
    report.violations.len()
}

#[test]
fn each_algorithm_can_be_broken() {
    assert_eq!(broken("10/s burst 5", &[(1000, 5), (1099, 1)]), 1);
    assert_eq!(broken("10/s burst 5", &[(1000, 5), (1100, 1)]), 0);
    assert_eq!(broken("10/s fixed_window", &[(1000, 10), (1999, 1), (2000, 10)]), 1);
    assert_eq!(broken("10/s fixed_window", &[(1000, 10), (2000, 10)]), 0);
    assert_eq!(broken("10/s fixed_window_from_first_call", &[(1500, 1), (2400, 9), (2499, 1)]), 1);
    assert_eq!(broken("10/s fixed_window_from_first_call", &[(1500, 1), (2400, 9), (2500, 10)]), 0);
    assert_eq!(broken("10/s sliding_window", &[(1500, 10), (2499, 1)]), 1);
    assert_eq!(broken("10/s sliding_window", &[(1500, 10), (2500, 10)]), 0);
    assert_eq!(broken("10/s sliding_log", &[(1500, 10), (2499, 1)]), 1);
    assert_eq!(broken("10/s sliding_log", &[(1500, 10), (2500, 10)]), 0);
    assert_eq!(broken("10/s sliding_counter", &[(1500, 10), (2499, 5)]), 1);
    assert_eq!(broken("10/s sliding_counter", &[(1500, 10), (2500, 5)]), 0);
    assert_eq!(broken("10/s sliding_counter", &[(500, 10)]), 0, "nothing came before 1970");
    assert_eq!(broken("10/s sliding_counter", &[(1999, 10), (2998, 10)]), 2, "the estimate, and twice the amount");
    assert_eq!(broken("0/s", &[(1, 1)]), 1);
    assert_eq!(broken("0/s sliding_counter", &[(1, 1)]), 2);
}

#[test]
fn the_worst_span_is_described_in_words() {
    let report = bound(&"10/s burst 5".parse().unwrap(), &admitted(&[(5000, 1), (1000, 5), (1099, 1)]));
    assert_eq!(report.admitted, 7);
    assert_eq!(
        report.worst.unwrap().to_string(),
        "6 admitted from 1.000000 to 1.099000, but the maximum is 5: the capacity plus what was regained"
    );
    assert_eq!(bound(&"10/s".parse().unwrap(), &[]), Bound { admitted: 0, worst: None, violations: Vec::new() });
}

#[test]
fn of_equal_spans_the_first_and_longest_is_the_worst() {
    let worst = |limit: &str, calls: &[(u64, u64)]| {
        let Span { from, to, .. } = bound(&limit.parse().unwrap(), &admitted(calls)).worst.unwrap();
        (from.as_micros() / 1000, to.as_micros() / 1000)
    };
    assert_eq!(worst("10/s fixed_window", &[(1000, 10), (2000, 10)]), (1000, 1000));
    // What the first call took was regained by the second.
    assert_eq!(worst("10/s burst 5", &[(1000, 1), (1100, 6)]), (1000, 1100));
}

/// The call of a limit of zero, which no store decides, is not admitted, whenever it was.
#[test]
fn a_decision_without_a_store_is_recorded_at_the_epoch() {
    let limit: Limit = "0/s".parse().unwrap();
    let check = Check::new(Key::new("p", "s").unwrap(), &limit);
    let record = Record::new(Cost::ONE, &Limiter::default().check_now(check).unwrap());
    assert_eq!((record.decided_at, record.allowed), (Timestamp::from_micros(0), false));
}

#[test]
fn bare_answers_are_judged_by_their_outcome_alone() {
    let limit: Limit = "2/s sliding_log".parse().unwrap();
    let at = |millis: u64, allowed: bool| Record::bare(Timestamp::from_micros(millis * 1000), 1, allowed);
    // At one instant, a denial may be recorded before the calls that caused it.
    let right = [at(5000, false), at(5000, true), at(5000, true), at(6000, true)];
    assert_eq!(replay(&limit, &right, Duration::ZERO), []);
    let wrong = [at(5000, true), at(5000, true), at(5000, true), at(6000, true)];
    assert_eq!(replay(&limit, &wrong, Duration::ZERO).len(), 1);
    let impossible = [Record::bare(Timestamp::from_micros(1), 3, true)];
    assert_eq!(replay(&limit, &impossible, Duration::ZERO)[0].expected, None);
}

/// The units left after calls of one unit, by their milliseconds.
fn left(millis_and_remaining: &[(u64, u64)]) -> Vec<Record> {
    let record = |&(millis, remaining)| Record {
        remaining: Some(remaining),
        ..Record::bare(Timestamp::from_micros(millis * 1000), 1, true)
    };
    millis_and_remaining.iter().map(record).collect()
}

#[test]
fn a_clock_may_step_back_by_less_than_it_is_allowed_to_until_an_answer_is_wrong() {
    let limit: Limit = "9/h fixed_window".parse().unwrap();
    let wrong = |millis_and_remaining: &[(u64, u64)]| -> Vec<usize> {
        let wrong = replay(&limit, &left(millis_and_remaining), Duration::from_millis(20));
        wrong.iter().map(|mismatch| mismatch.index).collect()
    };
    assert_eq!(wrong(&[(5019, 8), (5000, 7)]), [0_usize; 0]);
    assert_eq!(wrong(&[(5020, 8), (5000, 7)]), [1, 0]);
    assert_eq!(wrong(&[(5000, 3), (6019, 7), (6000, 6)]), [0, 2, 1]);
}
