//! Histories that are wrong in one way each: the checker finds each of them, and nothing in the right one.

use std::time::Duration;

use tallygate::call::{Call as Asked, Verb};
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::hold::OnAbandon;
use tallygate::{Algorithm, Check, Cost, Key, Limit, MemoryStore};
use tallygate_testkit::random::Random;
use tallygate_torture::checker::{Checked, Facts, check};
use tallygate_torture::history::{
    Call, End, Holding, Instead, Log, Loss, LossKind, Part, Peeked, Seen, StateKey, Used,
};

const START: u64 = 1_700_000_000_000_000;

/// The right answers of one state; every tenth call is charged without an answer if `unanswered`.
fn right(limit: &Limit, unanswered: bool, seed: u64) -> (Log, Facts) {
    let clock = ManualClock::new(Timestamp::from_micros(START));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let key = Key::new("p", "s").unwrap();
    let mut random = Random::new(seed);
    let (mut log, mut now) = (Log::default(), 1000);
    let micros = |wait: Duration| u64::try_from(wait.as_micros()).unwrap();
    for number in 0..300 {
        now += random.between(10, micros(limit.window()) / 40);
        clock.set(Timestamp::from_micros(START + now));
        let cost = random.between(1, 3);
        let checks = [Check::new(key, limit).cost(Cost::new(cost).unwrap())];
        let decision = Asked::new(Verb::Check, &checks).unwrap().ask_now(&store).unwrap().unwrap();
        let status = decision.binding();
        let seen = Seen {
            fits: status.allowed(),
            remaining: Some(status.remaining()),
            retry_after: Some(status.retry_after().map(micros)),
            reset_after: Some(micros(status.reset_after())),
        };
        let lost = unanswered && number % 10 == 9;
        let (allowed, source) = (decision.allowed(), "store".to_owned());
        let end = match lost {
            true => End::HungUp,
            false => End::Decided { allowed, at: Some(START + now), split: false, source },
        };
        let parts = vec![Part { seen: (!lost).then_some(seen), ..Part::new(0, cost) }];
        log.calls.push(Call { sent: now - 5, ended: now + 5, parts, end, flood: false });
    }
    let peek = [Check::new(key, limit)];
    let peeked = Asked::new(Verb::Peek, &peek).unwrap().ask_now(&store).unwrap().unwrap();
    let (remaining, reset_after) = (peeked.binding().remaining(), micros(peeked.binding().reset_after()));
    log.peeked = vec![Some(Peeked { at: START + now, sent: now + 10, remaining, reset_after, held: 0 })];
    let (policy, subject) = ("p".to_owned(), "s".to_owned());
    let keys = vec![StateKey { policy, subject, limit: limit.clone(), split: false, holds: None }];
    (log, Facts { keys, deadline: 1000, step_back: 0, spent: None })
}

fn limits() -> impl Iterator<Item = Limit> {
    let limit = |&algorithm| Limit::builder(20, Duration::from_secs(1)).algorithm(algorithm).build().unwrap();
    Algorithm::OVER_TIME.iter().map(limit)
}

/// The promises that were found broken.
fn broken(checked: &Checked) -> Vec<&'static str> {
    checked.violations.iter().map(|violation| violation.check).collect()
}

/// One answer of a history, changed.
fn change(log: &mut Log, which: impl Fn(&Call) -> bool, how: impl Fn(&mut Call)) {
    let place = log.calls.iter().skip(2).position(which).unwrap() + 2;
    how(&mut log.calls[place]);
}

fn seen(call: &mut Call) -> &mut Seen {
    call.parts[0].seen.as_mut().unwrap()
}

#[test]
fn the_right_history_passes_also_with_unanswered_calls() {
    for limit in limits() {
        for unanswered in [false, true] {
            for seed in 0..50 {
                let (log, facts) = right(&limit, unanswered, seed);
                let checked = check(&log, &facts);
                assert_eq!(broken(&checked), [""; 0], "{limit} {unanswered} {seed}: {:?}", checked.violations);
                assert!(unanswered || checked.exact > 300, "{checked:?}");
            }
        }
    }
}

/// What is changed, and how.
type Change = (&'static str, fn(&mut Call));

#[test]
fn each_wrong_answer_is_found() {
    let changes: [Change; 4] = [
        ("a unit more is left", |call| seen(call).remaining = seen(call).remaining.map(|left| left + 1)),
        ("a unit fewer is left, which nobody took", |call| {
            seen(call).remaining = seen(call).remaining.map(|left| left - 1);
        }),
        ("the wait is a microsecond longer", |call| {
            seen(call).reset_after = seen(call).reset_after.map(|wait| wait + 1)
        }),
        ("it is late", |call| call.ended += 10_000_000),
    ];
    for limit in limits() {
        for (name, how) in changes {
            let (mut log, facts) = right(&limit, false, 1);
            let has_more =
                |call: &Call| call.parts[0].seen.is_some_and(|seen| seen.remaining.is_some_and(|left| left > 1));
            change(&mut log, |call| call.allowed() && has_more(call), how);
            let checked = check(&log, &facts);
            assert_ne!(broken(&checked), [""; 0], "{limit}: {name}");
        }
    }
}

#[test]
fn an_admission_beyond_the_bound_is_found() {
    for limit in limits() {
        let (mut log, facts) = right(&limit, false, 1);
        for call in &mut log.calls {
            if let End::Decided { allowed, .. } = &mut call.end {
                *allowed = true;
            }
        }
        assert!(broken(&check(&log, &facts)).contains(&"bound"), "{limit}");
    }
}

#[test]
fn units_that_nobody_asked_for_are_found() {
    for limit in limits() {
        let (mut log, facts) = right(&limit, true, 1);
        // The unanswered calls are forgotten: what they charged has no explanation.
        log.calls.retain(|call| call.end != End::HungUp);
        assert!(broken(&check(&log, &facts)).contains(&"replay"), "{limit}");
    }
}

#[test]
fn a_lost_state_is_found_unless_it_was_declared() {
    for limit in limits().filter(|limit| limit.algorithm() == Algorithm::FixedWindowFromFirstCall) {
        let (first, facts) = right(&limit, false, 1);
        let (second, _) = right(&limit, false, 1);
        // The same calls again a moment later, as if the first had never been.
        let cut = 20;
        let by = first.calls[cut - 1].ended - second.calls[0].sent + 100;
        let mut log = Log { calls: first.calls[..cut].to_vec(), ..Log::default() };
        log.calls.extend(second.calls[..cut].iter().cloned().map(|mut call| {
            call.sent += by;
            call.ended += by;
            if let End::Decided { at: Some(at), .. } = &mut call.end {
                *at += by;
            }
            call
        }));
        assert_ne!(broken(&check(&log, &facts)), [""; 0]);
        let at = log.calls[cut - 1].ended + 50;
        log.losses.push(Loss { keys: None, from: at, to: at, kind: LossKind::Once });
        assert_eq!(broken(&check(&log, &facts)), [""; 0]);
    }
}

/// Calls that were answered after a loss had begun were left out, so what they charged had no explanation.
#[test]
fn a_call_in_flight_at_a_loss_may_have_charged_before_it() {
    for limit in limits() {
        let (mut log, facts) = right(&limit, false, 1);
        log.calls.truncate(12);
        log.peeked.clear();
        // The eleventh is answered late, when the loss has begun; the twelfth is decided after it and answered before.
        log.calls[10].ended = log.calls[11].ended + 100;
        let at = log.calls[11].ended + 50;
        log.losses.push(Loss { keys: None, from: at, to: at, kind: LossKind::Once });
        assert_eq!(broken(&check(&log, &facts)), [""; 0], "{limit}");
    }
}

/// A machine that does not run the server is not a slow server, but only while it does not run it.
#[test]
fn a_late_call_is_excused_by_a_server_without_a_processor_at_that_time() {
    let limit = limits().next().unwrap();
    let late = 900_000;
    let checked = |server_late: &[(u64, u64)]| {
        let (mut log, facts) = right(&limit, false, 1);
        log.calls.truncate(12);
        log.peeked.clear();
        log.calls[11].ended += late;
        let ended = log.calls[11].ended;
        log.server_late = server_late.iter().map(|(before, late)| (ended - before, *late)).collect();
        check(&log, &facts)
    };
    let excused = checked(&[(100_000, 300_000)]);
    assert_eq!((broken(&excused), excused.starved), (vec![], 1));
    for other in [&[][..], &[(100_000, 100_000)], &[(late + 100, 300_000)]] {
        let held_against = checked(other);
        assert_eq!((broken(&held_against), held_against.starved), (vec!["deadline"], 0), "{other:?}");
    }
}

#[test]
fn an_outage_that_admits_too_much_is_found() {
    let limit = Limit::builder(10, Duration::from_secs(86_400)).build().unwrap();
    let state = StateKey { policy: "p".to_owned(), subject: "s".to_owned(), limit, split: true, holds: None };
    let facts = Facts { keys: vec![state], deadline: 1000, step_back: 0, spent: None };
    let log = |instead, calls| {
        let end = End::Decided { allowed: true, at: None, split: false, source: "on_error".to_owned() };
        let parts = vec![Part { instead: Some(instead), ..Part::new(0, 1) }];
        Log { calls: vec![Call { sent: 0, ended: 1, parts, end, flood: false }; calls], ..Log::default() }
    };
    assert_eq!(broken(&check(&log(Instead::Local, 10), &facts)), [""; 0]);
    assert_eq!(broken(&check(&log(Instead::Local, 20), &facts)), ["on_error: local stays within the limit"]);
    assert_eq!(broken(&check(&log(Instead::Allow, 20), &facts)), [""; 0]);
    assert_eq!(broken(&check(&log(Instead::Deny, 1), &facts)), ["on_error: deny fails closed"]);
}

#[test]
fn a_denied_call_that_charges_is_found() {
    let limit = Limit::builder(1000, Duration::from_secs(86_400)).build().unwrap();
    let (policy, subject) = ("p".to_owned(), "s".to_owned());
    let state = StateKey { policy, subject, limit: limit.clone(), split: true, holds: None };
    let facts = Facts { keys: vec![state.clone(), state], deadline: 1000, step_back: 0, spent: Some(0) };
    let part = |key| Part::new(key, 1);
    let call = |sent, parts| Call { sent, ended: sent + 1, parts, end: End::HungUp, flood: false };
    let peeked = |used: u64| Some(Peeked { at: START, sent: 100, remaining: 1000 - used, reset_after: 0, held: 0 });
    let mut log = Log { peeked: vec![peeked(0), peeked(3)], ..Log::default() };
    // Three calls of a subject that has nothing left hung up, and the other state lost three units.
    log.calls = (0..3).map(|sent| call(sent, vec![part(0), part(1)])).collect();
    assert_eq!(broken(&check(&log, &facts)), ["denied calls charge nobody"]);
    // The same, of a subject that may have had something left.
    log.calls = (0..3).map(|sent| call(sent, vec![part(1)])).collect();
    assert_eq!(broken(&check(&log, &facts)), [""; 0]);
}

/// Three holds of a state of ten units: one settled with two of four, one abandoned with three, and one of which nobody knows the end.
#[test]
fn wrong_ends_of_holds_are_found() {
    let limit = Limit::builder(10, Duration::from_secs(86_400)).algorithm(Algorithm::FixedWindow).build().unwrap();
    let (policy, subject, holds) = ("p".to_owned(), "s".to_owned(), Some(OnAbandon::Charge));
    let facts = |lost: bool| {
        let (policy, subject) = (policy.clone(), subject.clone());
        let keys = vec![StateKey { policy, subject, limit: limit.clone(), split: true, holds }];
        let loss = Loss { keys: None, from: 40, to: 50, kind: LossKind::Once };
        (Facts { keys, deadline: 1000, step_back: 0, spent: None }, lost.then_some(loss))
    };
    let hold = |at: u64, reserved, used: Option<u64>| {
        let mut holding = Holding::begin(at, vec![0], reserved);
        (holding.granted, holding.granted_at) = (true, Some(START + at));
        if let Some(used) = used {
            holding.used = vec![Used::exactly(used)];
        }
        holding
    };
    let history = |used: u64, held: u64| {
        let mut settled = hold(0, 4, Some(2));
        settled.ended_at = Some(START + 10);
        let mut abandoned = hold(5, 3, Some(3));
        abandoned.abandoned = true;
        let peeked = Some(Peeked { at: START, sent: 100, remaining: 10 - used, reset_after: 0, held });
        Log { peeked: vec![peeked], holdings: vec![settled, abandoned, hold(20, 2, None)], ..Log::default() }
    };
    let found = |log: &Log, lost: bool| {
        let (facts, loss) = facts(lost);
        let mut log = Log { peeked: log.peeked.clone(), holdings: log.holdings.clone(), ..Log::default() };
        log.losses.extend(loss);
        broken(&check(&log, &facts))
    };
    for used in 5..=7 {
        assert_eq!(found(&history(used, 0), false), [""; 0], "{used}");
    }
    assert_eq!(found(&history(4, 0), false), ["nothing is forgotten"]);
    assert_eq!(found(&history(8, 0), false), ["denied calls charge nobody"]);
    assert_eq!(found(&history(6, 1), false), ["holds end"]);
    assert_eq!(found(&history(4, 1), true), [""; 0], "a lost state starts over");
    assert_eq!(found(&history(10, 0), true), ["denied calls charge nobody"], "and has no more than was ever reserved");
    // A hold that ended twice, and one that was granted beside others although too little was left.
    let mut twice = history(6, 0);
    twice.holdings[0].wrong = Some("twice".to_owned());
    assert_eq!(found(&twice, false), ["a hold ends once"]);
    let mut crowded = history(5, 0);
    crowded.holdings[2] = hold(8, 4, Some(0));
    crowded.holdings[2].ended_at = Some(START + 30);
    assert_eq!(found(&crowded, false), ["bound"]);
    crowded.holdings[2].granted_at = Some(START + 10);
    assert_eq!(found(&crowded, false), [""; 0], "what was given back at that instant may be taken");
}
