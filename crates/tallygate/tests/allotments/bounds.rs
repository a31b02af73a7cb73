//! The published bounds, over random histories.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use tallygate::clock::Timestamp;
use tallygate::decision::Source;
use tallygate::history::{self, Record};
use tallygate::policy::Mode;
use tallygate::{Algorithm, Decision};

use super::*;

#[derive(Debug, Clone)]
enum Event {
    /// Calls that are answered at once.
    Burst {
        by: usize,
        calls: usize,
        cost: u64,
    },
    Begin {
        by: usize,
        cost: u64,
    },
    Poll {
        which: usize,
    },
    /// A caller that hangs up.
    Leave {
        which: usize,
    },
    GiveBack {
        by: usize,
    },
    Wait(u64),
    /// In thousandths of what is left of the window.
    ToEnd(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let cost = || prop_oneof![6 => Just(1_u64), 1 => 2..6_u64];
    let by = || 0..3_usize;
    prop_oneof![
        6 => (by(), 1..60_usize, cost()).prop_map(|(by, calls, cost)| Event::Burst { by, calls, cost }),
        6 => (by(), cost()).prop_map(|(by, cost)| Event::Begin { by, cost }),
        12 => (0..100_usize).prop_map(|which| Event::Poll { which }),
        2 => (0..100_usize).prop_map(|which| Event::Leave { which }),
        1 => by().prop_map(|by| Event::GiveBack { by }),
        6 => prop_oneof![0..3000_u64, 0..200_000_u64].prop_map(Event::Wait),
        2 => prop_oneof![Just(1000), Just(999), 900..1001_u64].prop_map(Event::ToEnd),
    ]
}

/// A unit that was spent: when, by the store's clock, and when the state of its key is reset.
struct Admitted {
    at: u64,
    until: u64,
    units: u64,
}

/// Runs a history in three processes. The clock of each is a little faster or slower than that of the store.
fn run(limit: &Limit, events: &[Event], polls: (usize, usize)) -> Vec<Admitted> {
    let clock = start();
    let store = Slow::new(&clock, polls);
    let clocks = [start(), start(), start()];
    let processes = clocks.clone().map(|clock| Allotments::new(Arc::clone(&store)).clock(clock));
    let advance = |micros: u64| {
        clock.advance(Duration::from_micros(micros));
        for (clock, drift) in clocks.iter().zip([-1, 0, 1]) {
            clock.advance(Duration::from_micros(
                micros.saturating_add_signed(drift * i64::try_from(micros).unwrap() / 1000),
            ));
        }
    };
    let mut admitted = Vec::new();
    let mut count = |cost: u64, answer: Result<Decision, StoreError>| {
        let decision = answer.unwrap();
        if !decision.allowed() {
            assert_eq!(decision.source(), Source::Store);
            return;
        }
        assert_eq!(decision.binding().units(), cost);
        let (at, until) = match decision.source() {
            Source::Allotment => {
                let seen = store.store.call_now(&Call::new(Verb::Peek, &[hot(limit, 1)]).unwrap()).unwrap().unwrap();
                let now = clock.now().as_micros();
                (now, now + u64::try_from(seen.binding().reset_after().as_micros()).unwrap())
            }
            _ => {
                let at = decision.decided_at().unwrap().as_micros();
                let decided = store.decided.lock();
                *decided.iter().rev().find(|(decided_at, _)| *decided_at == at).unwrap()
            }
        };
        admitted.push(Admitted { at, until, units: cost });
    };
    let mut pending: Vec<(u64, Asked<'_>)> = Vec::new();
    for event in events {
        match *event {
            Event::Burst { by, calls, cost } => {
                (0..calls).for_each(|_| count(cost, wait(ask(&processes[by], limit, cost))));
            }
            Event::Begin { by, cost } => pending.push((cost, ask(&processes[by], limit, cost))),
            Event::Poll { which } if !pending.is_empty() => {
                let which = which % pending.len();
                if let Some(answer) = poll(&mut pending[which].1) {
                    count(pending.swap_remove(which).0, answer);
                }
            }
            Event::Leave { which } if !pending.is_empty() => drop(pending.swap_remove(which % pending.len())),
            Event::Poll { .. } | Event::Leave { .. } => {}
            Event::GiveBack { by } => {
                let process = &processes[by];
                wait(Box::pin(process.give_back()));
            }
            Event::Wait(micros) => advance(micros),
            Event::ToEnd(thousandths) => {
                let seen = store.store.call_now(&Call::new(Verb::Peek, &[hot(limit, 1)]).unwrap()).unwrap().unwrap();
                advance(u64::try_from(seen.binding().reset_after().as_micros()).unwrap() * thousandths / 1000);
            }
        }
        for process in &processes {
            assert!(process.units() <= limit.capacity() / 8, "{} of {limit}", process.units());
        }
    }
    admitted
}

fn limit(algorithm: Algorithm, amount: u64, millis: u64) -> Limit {
    Limit::builder(amount, Duration::from_millis(millis)).algorithm(algorithm).build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    /// Whatever is answered late, abandoned, given back, or asked at the end of a window.
    #[test]
    fn a_window_that_ends_admits_the_limit_and_no_more(
        events in prop::collection::vec(event(), 1..150), first_call in any::<bool>(), amount in 40..600_u64,
        millis in prop_oneof![Just(20_u64), 50..2000_u64], polls in (0..3_usize, 0..3_usize),
    ) {
        let algorithm = if first_call { Algorithm::FixedWindowFromFirstCall } else { Algorithm::FixedWindow };
        let mut windows = HashMap::new();
        for Admitted { at, until, units } in run(&limit(algorithm, amount, millis), &events, polls) {
            prop_assert!(until > at, "a unit was spent outside of its window");
            *windows.entry(until).or_insert(0) += units;
        }
        for (_, admitted) in windows {
            prop_assert!(admitted <= amount, "{admitted} of {amount}");
        }
    }

    /// What each of three processes may hold is an eighth of the limit, so this is how much a span can have too much.
    #[test]
    fn any_span_admits_its_bound_and_what_is_held_and_no_more(
        events in prop::collection::vec(event(), 1..150), at in 0..4_usize, amount in 40..600_u64,
        millis in prop_oneof![Just(20_u64), 50..2000_u64], polls in (0..3_usize, 0..3_usize),
    ) {
        use Algorithm::{SlidingCounter, SlidingLog, SlidingWindow, TokenBucket};
        let algorithm = [TokenBucket, SlidingWindow, SlidingLog, SlidingCounter][at];
        let limit = limit(algorithm, amount, millis);
        let admitted = run(&limit, &events, polls);
        let held = 3 * (limit.capacity() / 8);
        let wider = match algorithm {
            TokenBucket => Limit::builder(amount, limit.window()).burst(amount + held).build().unwrap(),
            // Admits up to the amount in every span as long as the window: the bound that is published for a counter.
            SlidingCounter => self::limit(SlidingLog, 2 * amount - 1 + held, millis),
            _ => self::limit(algorithm, amount + held, millis),
        };
        let record = |admitted: &Admitted| Record::bare(Timestamp::from_micros(admitted.at), admitted.units, true);
        let records: Vec<Record> = admitted.iter().map(record).collect();
        let bound = history::bound(&wider, &records);
        prop_assert!(bound.holds(), "{}", bound.violations[0]);
    }
}

/// Two processes that both want all of it: together they get exactly the limit, in every window.
#[test]
fn exactly_the_limit_is_admitted_under_demand() {
    for algorithm in
        [Algorithm::FixedWindow, Algorithm::FixedWindowFromFirstCall, Algorithm::SlidingLog, Algorithm::TokenBucket]
    {
        let clock = start();
        let (store, processes) = two(&clock, (1, 1));
        let limit = limit(algorithm, 5000, 3_600_000);
        let mut admitted = 0;
        for round in 0..6000 {
            for process in &processes {
                admitted += u64::from(wait(ask(process, &limit, 1)).unwrap().allowed());
            }
            if round % 10 == 0 {
                clock.advance(Duration::from_micros(20));
            }
        }
        let units = processes.iter().map(Allotments::units).sum::<u64>();
        assert_eq!((admitted, units), (5000, 0), "{algorithm}");
        // A third of the calls of the first half, at most, and all that were denied.
        assert!(store.calls() < 7000 + 1700, "{algorithm}: {}", store.calls());
    }
}

/// As one that calls ends, the other gets what it has given back.
#[test]
fn what_one_process_does_not_spend_the_other_gets() {
    let clock = start();
    let (_, [one, other]) = two(&clock, (0, 0));
    let limit = limit(Algorithm::FixedWindow, 4000, 3_600_000);
    let mut admitted = (0..1000).filter(|_| wait(ask(&one, &limit, 1)).unwrap().allowed()).count();
    let held = one.units();
    assert!(held > 0 && held <= 500, "{held}");
    clock.advance(Duration::from_millis(1001));
    assert_eq!(wait(Box::pin(one.give_back())), held);
    admitted += (0..4000).filter(|_| wait(ask(&other, &limit, 1)).unwrap().allowed()).count();
    assert_eq!((admitted, one.units(), one.dropped(), other.dropped()), (4000, 0, 0, 0));
}

/// A key that is asked about less often gets less, and the rest of a large allotment does not lie there.
#[test]
fn the_size_follows_the_rate() {
    let clock = start();
    let (_, [process, _]) = two(&clock, (0, 0));
    let limit = limit(Algorithm::FixedWindow, 1_000_000, 3_600_000);
    let mut most = Vec::new();
    for pause in [20, 1000, 100, 20_000] {
        let mut held = 0;
        for at in 0..200_000 / pause * 25 {
            assert!(wait(ask(&process, &limit, 1)).unwrap().allowed());
            clock.advance(Duration::from_micros(pause));
            // The second half: the size has settled.
            if at > 200_000 / pause * 12 {
                held = held.max(process.units());
            }
        }
        most.push(held);
    }
    // A tenth of a second of 50,000, 1,000, 10,000 and 50 calls a second; the first of them spends one.
    for (held, rate) in most.iter().zip([5000, 100, 1000, 5]) {
        assert!((rate / 2..=2 * rate).contains(held), "{most:?}");
    }
}

/// The first of the checks is answered from a pool, the others by the store: all or none.
#[test]
fn a_call_of_several_limits_takes_all_or_none() {
    let clock = start();
    let (store, [process, _]) = two(&clock, (1, 1));
    let (wide, tight) =
        (limit(Algorithm::FixedWindow, 4000, 3_600_000), limit(Algorithm::FixedWindow, 1500, 3_600_000));
    let shadow = Check::new(Key::new("shadow", "s").unwrap(), &tight).with_mode(Mode::Shadow);
    let checks = [hot(&wide, 1), Check::new(Key::new("tight", "s").unwrap(), &tight), shadow];
    let mut admitted = 0;
    for at in 0..2000 {
        let count = if at < 1000 { 2 } else { 3 };
        let call = Call::new(Verb::Check, &checks[..count]).unwrap();
        let decision = wait(Box::pin(process.call(&call))).unwrap();
        assert_eq!(decision.statuses().len(), count);
        let units = decision.statuses()[..2].iter().map(|status| status.units()).sum::<u64>();
        assert_eq!(units, if decision.allowed() { 2 } else { 0 });
        admitted += u64::from(decision.allowed());
        // A caller that leaves takes nothing with it but what is charged for it already.
        let mut left = Box::pin(process.call(&call)) as Asked<'_>;
        assert!(poll(&mut left).is_none());
    }
    assert_eq!(admitted, 1500);
    let peek = |check: Check<'_>| store.store.call_now(&Call::new(Verb::Peek, &[check]).unwrap()).unwrap().unwrap();
    assert_eq!(4000 - peek(checks[0]).binding().remaining(), 1500 + process.units());
    assert_eq!(peek(shadow).binding().remaining(), 1000);
    // A shadow that is left to the store alone, and denies, decides nothing.
    let full = limit(Algorithm::FixedWindow, 1, 3_600_000);
    let beside = Check::new(Key::new("full", "s").unwrap(), &full).with_mode(Mode::Shadow);
    for _ in 0..20 {
        let both = [hot(&wide, 1), beside];
        assert!(wait(Box::pin(process.call(&Call::new(Verb::Check, &both).unwrap()))).unwrap().allowed());
    }
}
