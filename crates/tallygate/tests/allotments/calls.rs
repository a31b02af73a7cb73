//! What a pool does with calls of every kind, errors, and callers that leave.

use std::time::Duration;

use tallygate::Algorithm;
use tallygate::call::UpTo;
use tallygate::decision::Source;
use tallygate::policy::{Action, Excess, Match, Mode, Policy, Stores, Subject};
use tallygate::policy::{CallerLimit, Evaluation};
use tokio::time::Instant;

use super::*;

const HOUR: &str = "4000/h fixed_window";

fn peek(store: &Slow, limit: &Limit) -> u64 {
    let call = [hot(limit, 1)];
    let seen = store.store.call_now(&Call::new(Verb::Peek, &call).unwrap()).unwrap().unwrap();
    seen.binding().remaining()
}

fn call<S: Store>(store: &S, verb: Verb, check: Check<'_>) -> Decision {
    let checks = [check];
    wait(Box::pin(store.call(&Call::new(verb, &checks).unwrap()))).unwrap()
}

/// Asks until units are held, and then until none are: the next call begins a refill.
fn empty(process: &Allotments<Arc<Slow>>, limit: &Limit) -> u64 {
    let mut admitted = 0;
    while process.units() == 0 || admitted < 100 {
        admitted += u64::from(wait(ask(process, limit, 1)).unwrap().allowed());
    }
    while process.units() > 0 {
        admitted += u64::from(wait(ask(process, limit, 1)).unwrap().allowed());
    }
    admitted
}

/// The units of a refill that its caller did not wait for were lost, and the next caller would have begun another.
#[test]
fn a_caller_that_leaves_a_refill_loses_nothing_and_holds_up_nobody() {
    let limit: Limit = HOUR.parse().unwrap();
    for polls in 1..=5 {
        let (store, [process, _]) = two(&start(), (2, 2));
        let mut admitted = empty(&process, &limit);
        let asked = store.calls();
        let mut leaving: Vec<Asked<'_>> = (0..3).map(|_| ask(&process, &limit, 1)).collect();
        for _ in 0..polls {
            leaving.retain_mut(|asked| {
                let answer = poll(asked);
                admitted += u64::from(answer.is_some());
                answer.is_none()
            });
        }
        drop(leaving);
        let next = wait(ask(&process, &limit, 1)).unwrap();
        admitted += 1;
        assert_eq!((next.source(), store.calls()), (Source::Allotment, asked + 1), "{polls}");
        // Nothing is missing.
        assert_eq!(4000 - peek(&store, &limit), admitted + process.units(), "{polls}");
    }
}

#[test]
fn a_refill_that_nobody_waits_for_any_more_is_finished_and_given_back() {
    let (limit, clock) = (HOUR.parse().unwrap(), start());
    let (store, [process, _]) = two(&clock, (1, 1));
    let admitted = empty(&process, &limit);
    let mut leaving = ask(&process, &limit, 1);
    assert!((0..2).all(|_| poll(&mut leaving).is_none()));
    drop(leaving);
    let held = 4000 - admitted - peek(&store, &limit);
    assert!(held > 0);
    clock.advance(Duration::from_secs(2));
    assert_eq!(wait(Box::pin(process.give_back())), held);
    assert_eq!((peek(&store, &limit), process.dropped()), (4000 - admitted, 0));
    // A key that nobody asks about any more has no pool.
    clock.advance(Duration::from_secs(10));
    wait(Box::pin(process.give_back()));
    assert!(process.is_empty());
}

/// A call with little time does not wait for one with more, and is asked on its own.
#[test]
fn a_call_waits_only_for_a_refill_that_ends_in_its_time() {
    let limit: Limit = HOUR.parse().unwrap();
    let now = Instant::now().into_std();
    let (soon, late) = (Some(now + Duration::from_secs(1)), Some(now + Duration::from_secs(2)));
    for (of_refill, own, waits) in [
        (None, None, true),
        (soon, None, true),
        (soon, late, true),
        (late, late, true),
        (late, soon, false),
        (None, soon, false),
    ] {
        let (store, [process, _]) = two(&start(), (1, 1));
        empty(&process, &limit);
        let asked = store.calls();
        let ask = |deadline| {
            let (process, limit) = (&process, &limit);
            Box::pin(async move {
                let checks = [hot(limit, 1)];
                process.call(&Call::new(Verb::Check, &checks).unwrap().by(deadline)).await
            }) as Asked<'_>
        };
        let mut refill = ask(of_refill);
        assert!(poll(&mut refill).is_none());
        let source = wait(ask(own)).unwrap().source();
        wait(refill).unwrap();
        assert_eq!((source, store.calls() - asked), if waits { (Source::Allotment, 1) } else { (Source::Store, 2) });
    }
}

#[test]
fn units_are_spent_while_the_store_fails_and_its_error_is_returned_then() {
    let (limit, clock) = (HOUR.parse().unwrap(), start());
    let (store, [process, _]) = two(&clock, (1, 0));
    while process.units() < 20 {
        wait(ask(&process, &limit, 1)).unwrap();
    }
    let held = process.units();
    store.fails.store(true, SeqCst);
    for _ in 0..held {
        assert_eq!(wait(ask(&process, &limit, 1)).unwrap().source(), Source::Allotment);
    }
    // A refill and the call, and then the call alone.
    for calls in [2, 1, 1] {
        let asked = store.calls();
        assert!(wait(ask(&process, &limit, 1)).is_err());
        assert_eq!(store.calls() - asked, calls);
    }
    store.fails.store(false, SeqCst);
    while process.units() < 20 {
        wait(ask(&process, &limit, 1)).unwrap();
    }
    // No longer than a second.
    store.fails.store(true, SeqCst);
    clock.advance(Duration::from_secs(1));
    assert!(wait(ask(&process, &limit, 1)).is_err());
}

/// What was admitted without the store counts towards the share of the limit for when it is unreachable.
#[test]
fn the_local_share_knows_what_was_spent() {
    let (store, [process, _]) = two(&start(), (1, 0));
    let policy = Arc::new(Policy::new("p", "d", "4000/h fixed_window").unwrap().with_allotment(true));
    let stores = Stores::new(Arc::new(process));
    let decide = || {
        let found = Match::new(Arc::clone(&policy), 0, Subject::new([("user", "u")])).with_limit(CallerLimit::OfPolicy);
        let verdict = Evaluation::new([found], Action::new(Verb::Check, Cost::ONE)).decide(&stores, None);
        let verdict = wait(Box::pin(verdict));
        (verdict.allowed(), verdict.rulings()[0].source())
    };
    let sources: Vec<_> = (0..3000).map(|_| decide()).collect();
    assert!(sources.iter().filter(|decided| **decided == (true, Source::Allotment)).count() > 2000);
    store.fails.store(true, SeqCst);
    let rest = (0..2000).filter(|_| decide().0).count();
    assert_eq!(rest, 1000);
}

/// In what a store says was left there is nothing of what was taken from it: that is added.
#[test]
fn what_is_held_counts_as_left() {
    let (limit, clock) = (HOUR.parse().unwrap(), start());
    let (_, [process, other]) = two(&clock, (0, 0));
    let mut used = 0;
    while process.units() < 20 {
        let decision = call(&process, Verb::Check, hot(&limit, 1));
        used += 1;
        let status = decision.binding();
        assert_eq!((status.remaining(), status.limit(), status.units()), (4000 - used, 4000, 1));
        assert_eq!(status.retry_after(), Some(Duration::ZERO));
        assert_eq!(
            status.reset_after(),
            Duration::from_micros(3_600_000_000 - clock.now().as_micros() % 3_600_000_000)
        );
        clock.advance(Duration::from_micros(100));
    }
    assert_eq!(call(&process, Verb::Peek, hot(&limit, 1)).binding().remaining(), 4000 - used);
    // The other takes all that the store has.
    let (held, left) = (process.units(), call(&other, Verb::Peek, hot(&limit, 1)).binding().remaining());
    assert!(call(&other, Verb::Check, hot(&limit, left)).allowed());
    for (cost, allowed) in [(1, true), (held, true), (held + 1, false)] {
        let seen = call(&process, Verb::Peek, hot(&limit, cost));
        assert_eq!((seen.allowed(), seen.binding().allowed(), seen.binding().remaining()), (allowed, allowed, held));
        assert_eq!(seen.binding().retry_after().unwrap().is_zero(), allowed);
    }
    let denied = call(&process, Verb::Check, hot(&limit, held + 1));
    assert_eq!((denied.allowed(), denied.source(), denied.binding().remaining()), (false, Source::Store, held));
    assert!((0..held).all(|_| call(&process, Verb::Check, hot(&limit, 1)).allowed()));
    assert!(!call(&process, Verb::Check, hot(&limit, 1)).allowed());
}

#[test]
fn what_was_spent_here_is_refunded_to_the_store() {
    let (limit, clock) = (HOUR.parse().unwrap(), start());
    let (store, [process, _]) = two(&clock, (0, 0));
    let spent = loop {
        let decision = call(&process, Verb::Check, hot(&limit, 1));
        if decision.source() == Source::Allotment {
            break decision;
        }
    };
    clock.advance(Duration::from_micros(700));
    let (before, held) = (peek(&store, &limit), process.units());
    let receipts = spent.receipts(&[hot(&limit, 1)]);
    // Charged when the units were taken: a refund in a later window gives nothing back.
    assert!(receipts[0].check().charged_at().unwrap() < clock.now());
    assert_eq!(call(&process, Verb::Refund, receipts[0].check()).binding().units(), 1);
    assert_eq!((peek(&store, &limit), process.units()), (before + 1, held));
}

#[test]
fn nothing_from_before_a_reset_or_another_limit_is_spent() {
    let (limit, other): (Limit, Limit) = (HOUR.parse().unwrap(), "5000/h fixed_window".parse().unwrap());
    let (store, [process, _]) = two(&start(), (1, 1));
    let fill = || {
        while process.units() < 20 {
            wait(ask(&process, &limit, 1)).unwrap();
        }
        process.units()
    };
    let first = fill();
    assert_eq!(call(&process, Verb::Reset, hot(&limit, 1)).binding().units(), 1);
    assert_eq!((process.units(), process.dropped(), peek(&store, &limit)), (0, first, 4000));
    let second = fill();
    assert_eq!(call(&process, Verb::Check, hot(&other, 1)).source(), Source::Store);
    assert_eq!((process.units(), process.dropped()), (0, first + second));
    // A refill that was in flight during the reset.
    empty(&process, &limit);
    let mut refill = ask(&process, &limit, 1);
    assert!((0..2).all(|_| poll(&mut refill).is_none()));
    call(&process, Verb::Reset, hot(&limit, 1));
    assert!(wait(refill).unwrap().allowed());
    assert_eq!((process.units(), 4000 - peek(&store, &limit)), (0, 1));
}

/// A limit below 40 is too small for an eighth of it to be worth a call, and other kinds of checks are for the store.
#[test]
fn what_does_not_opt_in_is_left_to_the_store() {
    let limit: Limit = "100000/h fixed_window".parse().unwrap();
    let small: Limit = "39/h fixed_window".parse().unwrap();
    let plain = hot(&limit, 1);
    for check in [
        plain.with_allotment(false),
        plain.with_mode(Mode::Shadow),
        plain.with_mode(Mode::Quota),
        plain.with_excess(Excess::Drain),
        hot(&small, 1),
    ] {
        let (store, [process, _]) = two(&start(), (0, 0));
        for _ in 0..100 {
            assert_eq!(call(&process, Verb::Check, check).source(), Source::Store);
        }
        assert_eq!((process.units(), store.calls()), (0, 100));
    }
    let (store, [process, _]) = two(&start(), (0, 0));
    for _ in 0..100 {
        let up_to = Call::check_up_to(&[plain], UpTo::new(Cost::new(3).unwrap())).unwrap();
        assert_eq!(wait(Box::pin(process.call(&up_to))).unwrap().granted(), Some(3));
    }
    assert_eq!((process.units(), store.calls()), (0, 100));
}

/// Keys that are asked about once, however many, get no pool, and take none from a hot one.
#[test]
fn memory_is_bounded_whatever_keys_are_sent() {
    let clock = start();
    let process =
        Allotments::new(MemoryStore::builder().clock(clock.clone()).build()).clock(clock.clone()).capacity(32);
    let limit: Limit = "1000000/h fixed_window".parse().unwrap();
    let ask = |subject: &str| {
        let check = Check::new(Key::new("p", subject).unwrap(), &limit).with_allotment(true);
        process.call_now(&Call::new(Verb::Check, &[check]).unwrap()).unwrap().unwrap().source()
    };
    for number in 0..20_000 {
        ask(&number.to_string());
        if number % 4 == 0 {
            ask("hot");
            clock.advance(Duration::from_micros(40));
        }
    }
    assert_eq!((ask("hot"), process.len()), (Source::Allotment, 1));
    for number in 0..2000 {
        (0..40).for_each(|_| assert_ne!(ask(&number.to_string()), Source::Overflow));
    }
    assert!(process.len() <= 32 && process.len() > 16, "{}", process.len());
}

/// Tasks of two processes that meet at every await: all are answered, and they get exactly the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_in_two_processes_get_exactly_the_limit() {
    let store = Slow::new(&start(), (1, 1));
    let limit = Limit::builder(3000, Duration::from_secs(3600)).algorithm(Algorithm::FixedWindow).build().unwrap();
    let processes = [0; 2].map(|_| Arc::new(Allotments::new(Arc::clone(&store))));
    let tasks = (0..64).map(|task| {
        let (process, limit) = (Arc::clone(&processes[task % 2]), limit.clone());
        tokio::spawn(async move {
            let (mut admitted, mut local) = (0, 0);
            for turn in 0..100 {
                // Some leave at once. A refill is not theirs alone.
                if turn % 10 == 0 {
                    drop(ask(&*process, &limit, 1));
                }
                let decision = ask(&*process, &limit, 1).await.unwrap();
                admitted += u64::from(decision.allowed());
                local += u64::from(decision.source() == Source::Allotment);
            }
            (admitted, local)
        })
    });
    let (mut admitted, mut local) = (0, 0);
    for task in tasks.collect::<Vec<_>>() {
        let (his, his_local) = task.await.unwrap();
        admitted += his;
        local += his_local;
    }
    assert_eq!(admitted, 3000);
    assert!(local > 1000, "{local}");
}
