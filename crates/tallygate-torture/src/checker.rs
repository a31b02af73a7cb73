//! Is what was recorded what was promised?
//!
//! A loss of states, declared by the fault that caused it, cuts the history of a state into segments. Within a segment
//! the bound of the limit holds; each answer is also compared with the pure algorithm ([`replay`](mod@replay)). A call
//! whose answer is unknown may have been charged, once.

mod holds;
pub mod replay;

use std::collections::BTreeMap;
use std::time::Duration;

use tallygate::clock::Timestamp;
use tallygate::history::{Record, bound};
use tallygate::{Algorithm, Limit};
use tallygate_testkit::Flavour;

use crate::fault::Fault;
use crate::history::{Call, End, Instead, Log, LossKind, StateKey, Violation};
use replay::{Event, Replayed};

/// What is known of a round besides its log.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The states.
    pub keys: Vec<StateKey>,
    /// The deadline of a decision, in microseconds.
    pub deadline: u64,
    /// How far the server's clock may step back without a fault, in microseconds.
    pub step_back: u64,
    /// The state that was used up before the round, whose calls are denied for certain.
    pub spent: Option<usize>,
}

/// How far the clock of a server of this kind steps back.
#[must_use]
pub fn step_back(flavour: Flavour) -> u64 {
    match flavour {
        Flavour::Redis => 0,
        // 81 were seen on Valkey 9.1.
        Flavour::Valkey => 500,
    }
}

/// Beyond the deadline, in microseconds: for the way to the caller and back, on a busy machine. The time by which this
/// process itself was woken late is added to it.
const GRACE: u64 = 150_000;

/// Within such a window nothing is forgotten during a round.
const LONG: Duration = Duration::from_secs(3600);

/// How long after a fault a refund may still fail because of it: the deadline of the store, and then one more.
const AFTERMATH: u64 = 450_000;

/// What was checked.
#[derive(Debug, Default, Clone)]
pub struct Checked {
    /// The violations.
    pub violations: Vec<Violation>,
    /// Answers compared with the algorithm, to the unit and the microsecond.
    pub exact: u64,
    /// Answers compared with a state that is known but for what an unanswered call did.
    pub loose: u64,
    /// Answers after a loss of states, judged by their bound only.
    pub unknown: u64,
    /// Calls by what answered them.
    pub by_source: BTreeMap<String, u64>,
    /// Units that were charged by calls without an answer.
    pub phantoms: u64,
    /// The slowest decision that counts against the deadline, in microseconds.
    pub slowest: u64,
    /// Decisions that were late because the server process waited for a processor.
    pub starved: u64,
}

/// Checks everything that follows from the log.
#[must_use]
pub fn check(log: &Log, facts: &Facts) -> Checked {
    let mut checked = Checked { violations: log.violations.clone(), ..Checked::default() };
    for call in &log.calls {
        *checked.by_source.entry(call.end.name()).or_default() += 1;
    }
    let trouble = Trouble::new(log);
    let mut events: Vec<Vec<Event>> = vec![Vec::new(); facts.keys.len()];
    for call in &log.calls {
        let End::Decided { allowed, at: Some(at), .. } = call.end else { continue };
        for part in &call.parts {
            let Some(seen) = part.seen else { continue };
            let segment = segment(log, part.key, call.sent, call.ended);
            let (sent, ended, cost) = (call.sent, call.ended, part.cost);
            events[part.key].push(Event { segment, at, sent, ended, cost, allowed, seen, peek: false });
        }
    }
    for (key, (state, events)) in facts.keys.iter().zip(&mut events).enumerate() {
        if state.holds.is_some() {
            checked.violations.extend(holds::check(log, key, state));
            continue;
        }
        let name = format!("{}/{} ({})", state.policy, state.subject, state.limit);
        let mut complain =
            |check, what: String| checked.violations.push(Violation::new(check, format!("{name}: {what}")));
        bounds(state, events, log, key, &mut complain);
        if !state.split {
            real_time_order(events, facts.step_back, &mut complain);
        }
        let mut optional = optional(log, key, facts, &trouble);
        // What was in flight while states were lost was charged before the loss or after it.
        let in_flight = events.iter().filter(|event| event.segment % 2 == 1 && event.allowed);
        optional.extend(in_flight.map(|event| (event.sent, event.cost)));
        optional.sort_unstable();
        if let Some(peeked) = log.peeked.get(key).copied().flatten() {
            let seen = crate::history::Seen {
                fits: true,
                remaining: Some(peeked.remaining),
                retry_after: None,
                reset_after: Some(peeked.reset_after),
            };
            let (at, sent) = (peeked.at, peeked.sent);
            let segment = segment(log, key, sent, u64::MAX);
            events.push(Event { segment, at, sent, ended: u64::MAX, cost: 0, allowed: false, seen, peek: true });
        }
        if state.split {
            used_at_the_end(log, key, state, events, &optional, &mut complain);
            checked.unknown += events.len() as u64;
            continue;
        }
        let Replayed { wrong, exact, loose, unknown, phantoms, .. } =
            replay::replay(&state.limit, std::mem::take(events), &optional, facts.step_back);
        wrong.into_iter().for_each(|what| complain("replay", what));
        checked.exact += exact;
        checked.loose += loose;
        checked.unknown += unknown;
        checked.phantoms += phantoms;
    }
    without_the_store(log, facts, &mut checked);
    deadlines(log, facts, &mut checked);
    checked
}

/// What `on_error` answers: `deny` lets nothing pass, and `local` at most the limit once more, for each process.
fn without_the_store(log: &Log, facts: &Facts, checked: &mut Checked) {
    let mut local = vec![0; facts.keys.len()];
    for call in log.calls.iter().filter(|call| call.allowed()) {
        if call.parts.iter().any(|part| part.instead == Some(Instead::Deny)) {
            checked.violations.push(Violation::new("on_error: deny fails closed", format!("allowed: {call:?}")));
        }
        for part in call.parts.iter().filter(|part| part.instead == Some(Instead::Local)) {
            local[part.key] += part.cost;
        }
    }
    for (state, admitted) in facts.keys.iter().zip(local).filter(|(state, _)| state.limit.window() >= LONG) {
        // A bucket of a day regains a unit or two in a round.
        if admitted > state.limit.capacity() + 2 {
            let name = format!("{}/{} ({})", state.policy, state.subject, state.limit);
            let what = format!("{name}: one process has admitted {admitted} units by itself");
            checked.violations.push(Violation::new("on_error: local stays within the limit", what));
        }
    }
}

/// Even numbers are between losses, odd ones while states were being lost.
fn segment(log: &Log, key: usize, sent: u64, ended: u64) -> usize {
    let mut segment = 0;
    for loss in log.losses.iter().filter(|loss| loss.concerns(key)) {
        if sent > loss.to {
            segment += 2;
        } else if ended >= loss.from {
            return segment + 1;
        }
    }
    segment
}

/// `(when it was sent, units)` of everything that may have been charged without an answer, by when it was sent.
fn optional(log: &Log, key: usize, facts: &Facts, trouble: &Trouble) -> Vec<(u64, u64)> {
    let mut optional = Vec::new();
    for call in &log.calls {
        for part in call.parts.iter().filter(|part| part.key == key) {
            let denied_for_certain = facts.spent.is_some_and(|spent| is_denied_for_certain(log, call, spent));
            // The refund of a split call may have failed together with the store.
            let refunds = matches!(call.end, End::Decided { allowed: false, split: true, .. } | End::Failed { .. });
            let refunds = denied_for_certain || refunds && facts.keys[key].split;
            let unanswered = call.may_have_charged(part) && !denied_for_certain;
            if unanswered || refunds && trouble.is_near(call) {
                optional.push((call.sent, part.cost));
            }
        }
    }
    optional.sort_unstable();
    optional
}

/// When the store did not answer in time, because of a fault or of load.
struct Trouble {
    faults: Vec<(u64, u64)>,
    /// When calls ended without an answer of the store, in order.
    unanswered: Vec<u64>,
}

impl Trouble {
    fn new(log: &Log) -> Self {
        let harmful = log.injected.iter().filter(|injected| !matches!(injected.fault, Fault::HangUps { .. }));
        let faults = harmful.map(|injected| (injected.from, injected.to)).collect();
        let unanswered = log.calls.iter().filter(|call| call.end != End::HungUp && !call.by_store() && !call.by_grpc());
        let mut unanswered: Vec<u64> = unanswered.map(|call| call.ended).collect();
        unanswered.sort_unstable();
        Self { faults, unanswered }
    }

    /// Whether the refunds of this call may not have been made in time.
    fn is_near(&self, call: &Call) -> bool {
        let (from, to) = (call.sent.saturating_sub(AFTERMATH), call.ended + AFTERMATH);
        let first = self.unanswered.partition_point(|&at| at < from);
        self.unanswered.get(first).is_some_and(|&at| at <= to)
            || self.faults.iter().any(|&(begin, end)| from <= end && to >= begin)
    }
}

/// A call of a subject that has nothing left, and whose state was not lost since that was last seen.
fn is_denied_for_certain(log: &Log, call: &Call, spent: usize) -> bool {
    call.parts.iter().any(|part| part.key == spent)
        && !log.losses.iter().any(|loss| loss.concerns(spent) && loss.from <= call.ended + AFTERMATH)
}

fn bounds(state: &StateKey, events: &[Event], log: &Log, key: usize, complain: &mut impl FnMut(&'static str, String)) {
    let limit = &state.limit;
    // A split call reports the earliest instant of its slots: it may count in the next window.
    let instants = if state.split && limit.window() < LONG { 2 } else { 1 };
    let mine = |call: &Call| call.parts.iter().any(|part| part.key == key && call.may_have_charged(part));
    let unanswered = log.calls.iter().any(mine);
    // A window that began with a call nobody knows of: what holds then is twice the amount in any span.
    let twice = Limit::builder(2 * limit.amount(), limit.window()).algorithm(Algorithm::SlidingLog).build();
    let twice = twice.expect("windows and amounts of the load are small");
    let losses: Vec<LossKind> = log.losses.iter().filter(|loss| loss.concerns(key)).map(|loss| loss.kind).collect();
    let mut segments: BTreeMap<usize, Vec<Record>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.allowed) {
        let record = Record::bare(Timestamp::from_micros(event.at), event.cost, true);
        segments.entry(event.segment).or_default().push(record);
    }
    for (segment, records) in segments {
        // While states are lost, what came before and what comes after are mixed; two servers may count.
        let times = match (segment % 2, losses.get(segment / 2)) {
            (0, _) => instants,
            (_, Some(LossKind::Repeated)) => continue,
            (_, Some(LossKind::SplitBrain)) => 3 * instants,
            _ => 2 * instants,
        };
        let from_first_call = limit.algorithm() == Algorithm::FixedWindowFromFirstCall;
        let limit = if from_first_call && (unanswered || segment > 0) { &twice } else { limit };
        let bound = bound(limit, &records);
        let broken: Vec<_> = bound.violations.iter().filter(|span| span.admitted > times * span.allowed).collect();
        if let Some(worst) = broken.iter().max_by_key(|span| span.admitted - span.allowed) {
            complain("bound", format!("segment {segment}: {worst} ({times} times); {} in all", broken.len()));
        }
    }
}

/// What was answered before another call was sent was decided before it.
fn real_time_order(events: &[Event], step_back: u64, complain: &mut impl FnMut(&'static str, String)) {
    let mut by_sent: Vec<&Event> = events.iter().filter(|event| event.segment % 2 == 0).collect();
    let mut by_ended = by_sent.clone();
    by_sent.sort_by_key(|event| (event.segment, event.sent));
    by_ended.sort_by_key(|event| (event.segment, event.ended));
    let (mut done, mut latest) = (0, (0, 0));
    let mut wrong = 0;
    for event in by_sent {
        while let Some(before) = by_ended.get(done).filter(|one| (one.segment, one.ended) < (event.segment, event.sent))
        {
            latest = latest.max((before.segment, before.at));
            done += 1;
        }
        // A microsecond is the resolution of both clocks.
        if latest.0 == event.segment && latest.1 > event.at + step_back.max(1000) {
            wrong += 1;
            if wrong == 1 {
                let by = latest.1 - event.at;
                complain("order", format!("decided {by} us before a call that was answered before it was sent"));
            }
        }
    }
}

/// A state of a long window, whose calls may be split: used at the end are the admitted units, and at most those of
/// unanswered calls.
fn used_at_the_end(
    log: &Log,
    key: usize,
    state: &StateKey,
    events: &[Event],
    optional: &[(u64, u64)],
    complain: &mut impl FnMut(&'static str, String),
) {
    let Some(last) = events.iter().find(|event| event.peek) else { return };
    let lost = log.losses.iter().any(|loss| loss.concerns(key));
    if lost || state.limit.window() < LONG {
        return;
    }
    let used = state.limit.capacity() - last.seen.remaining.unwrap_or(0);
    let admitted: u64 = events.iter().filter(|event| event.allowed).map(|event| event.cost).sum();
    let unanswered: u64 = optional.iter().map(|(_, units)| units).sum();
    // A token bucket of a day regains a unit now and then.
    let window = u64::try_from(state.limit.window().as_micros()).unwrap_or(u64::MAX);
    let regained = last.sent.saturating_mul(state.limit.amount()) / window + 1;
    if used > admitted + unanswered {
        let what = format!(
            "{used} units are used, {admitted} were admitted, and {unanswered} may have been: a call that was denied has charged"
        );
        complain("denied calls charge nobody", what);
    }
    if used + regained < admitted {
        complain("nothing is forgotten", format!("{used} units are used, but {admitted} were admitted"));
    }
}

fn deadlines(log: &Log, facts: &Facts, checked: &mut Checked) {
    let mut late = 0;
    for call in log.calls.iter().filter(|call| !call.flood && call.end != End::HungUp) {
        let took = call.ended - call.sent;
        // The server process itself was stopped, or the machine was busy with a flood.
        let exempt =
            |fault: &Fault| matches!(fault, Fault::ServerStop { .. } | Fault::Flood { .. } | Fault::SlowBodies { .. });
        let stopped = log.injected.iter().any(|injected| {
            exempt(&injected.fault) && call.sent <= injected.to + 500_000 && call.ended >= injected.from
        });
        if stopped {
            continue;
        }
        checked.slowest = checked.slowest.max(took);
        let allowed = facts.deadline + GRACE;
        let starved = log.starved(call.sent, call.ended);
        if took > allowed + 3 * starved {
            let server = log.server_starved(call.sent, call.ended);
            if took <= allowed + 3 * server {
                checked.starved += 1;
                continue;
            }
            late += 1;
            if late == 1 {
                let decided_after = match call.end {
                    End::Decided { at: Some(at), .. } => format!("{} us", at.saturating_sub(log.began_at + call.sent)),
                    _ => "unknown".to_owned(),
                };
                let what = format!(
                    "a call sent at {} us took {took} us, the deadline is {} us (decided after: {decided_after}; woken late \
                     meanwhile: this process by {starved} us, the server by {server} us): {:?}",
                    call.sent, facts.deadline, call.end
                );
                checked.violations.push(Violation::new("deadline", what));
            }
        }
    }
}
