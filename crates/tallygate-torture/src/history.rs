//! What happened in a round: every call with its answer, every fault, every declared loss of states.

use std::sync::Mutex;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tallygate::Limit;
use tallygate::hold::OnAbandon;

use crate::fault::Fault;

/// A state: a limit and the subject that it is counted for.
#[derive(Debug, Clone)]
pub struct StateKey {
    /// The policy part of the key.
    pub policy: String,
    /// The subject part of the key.
    pub subject: String,
    /// The limit.
    pub limit: Limit,
    /// Whether it is used by calls over several slots, which charge and refund. Such a state is judged by its bound and
    /// by what is used at the end, not step by step.
    pub split: bool,
    /// What becomes of abandoned units, if this state is only reserved from, and judged by what became of each hold.
    pub holds: Option<OnAbandon>,
}

/// One check of a call.
#[derive(Debug, Clone)]
pub struct Part {
    /// Which state.
    pub key: usize,
    /// How many units.
    pub cost: u64,
    /// What the store answered for it; `None` if the store gave no answer.
    pub seen: Option<Seen>,
    /// What answered instead of the store.
    pub instead: Option<Instead>,
}

impl Part {
    /// A check that has no answer yet.
    #[must_use]
    pub fn new(key: usize, cost: u64) -> Self {
        Self { key, cost, seen: None, instead: None }
    }
}

/// The `on_error` that answered for a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words of a policy")]
pub enum Instead {
    Allow,
    Deny,
    Local,
}

/// What a store answered for one check. Instants and waits are in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Whether this check fits on its own.
    pub fits: bool,
    /// Units left, if it was reported.
    pub remaining: Option<u64>,
    /// `None` if it was not reported to the microsecond; the inner `None` means that waiting does not help.
    pub retry_after: Option<Option<u64>>,
    /// `None` if it was not reported to the microsecond.
    pub reset_after: Option<u64>,
}

/// How a call ended. `at` is the instant of the decision, on the store's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words of a decision")]
pub enum End {
    /// It was decided. `source` is the store, or what answered instead.
    Decided { allowed: bool, at: Option<u64>, split: bool, source: String },
    /// There was no decision.
    Failed { kind: String, may_have_charged: bool },
    /// The caller left before the answer.
    HungUp,
}

impl End {
    /// What answered, for counts.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Decided { source, .. } => source.clone(),
            Self::Failed { kind, .. } => format!("error: {kind}"),
            Self::HungUp => "hung up".to_owned(),
        }
    }
}

/// A call. Instants are microseconds since the round began.
#[derive(Debug, Clone)]
pub struct Call {
    /// When it was sent.
    pub sent: u64,
    /// When it was answered, or when the caller left.
    pub ended: u64,
    /// Its checks.
    pub parts: Vec<Part>,
    /// How it ended.
    pub end: End,
    /// Whether it is exempt from the deadline: a flood, or a call that was made to be slow.
    pub flood: bool,
}

impl Call {
    /// Whether the store decided it.
    #[must_use]
    pub fn by_store(&self) -> bool {
        matches!(&self.end, End::Decided { source, .. } if source == "store")
    }

    /// Whether it was decided over gRPC, which does not say by what.
    #[must_use]
    pub fn by_grpc(&self) -> bool {
        matches!(&self.end, End::Decided { source, .. } if source == "grpc")
    }

    /// Whether it was allowed.
    #[must_use]
    pub fn allowed(&self) -> bool {
        matches!(self.end, End::Decided { allowed: true, .. })
    }

    /// Whether the store may have charged this check although it did not say so.
    #[must_use]
    pub fn may_have_charged(&self, part: &Part) -> bool {
        match &self.end {
            // What a proxy of the store answered instead of it may have been sent before.
            End::Decided { .. } => part.seen.is_none(),
            End::Failed { may_have_charged, .. } => *may_have_charged,
            End::HungUp => true,
        }
    }
}

/// How many units stay used of a hold, by what its holder knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "a range")]
pub struct Used {
    pub least: u64,
    pub most: u64,
}

impl Used {
    /// So many, for certain.
    #[must_use]
    pub fn exactly(units: u64) -> Self {
        Self { least: units, most: units }
    }
}

/// A hold, from its reservation to its end. `sent` and `ended` are microseconds since the round began, the other instants those of the
/// store's clock.
#[derive(Debug, Clone)]
pub struct Holding {
    /// When the reservation was sent.
    pub sent: u64,
    /// When its holder was done with it.
    pub ended: u64,
    /// The states that it was reserved from.
    pub keys: Vec<usize>,
    /// How many units of each.
    pub reserved: u64,
    /// What stays used of each.
    pub used: Vec<Used>,
    /// Whether it is known that it was reserved.
    pub granted: bool,
    /// When it was reserved, if that is known.
    pub granted_at: Option<u64>,
    /// When it was settled or cancelled, if that is known.
    pub ended_at: Option<u64>,
    /// Whether its holder never came back.
    pub abandoned: bool,
    /// What cannot be, unless a state was lost.
    pub wrong: Option<String>,
}

impl Holding {
    /// A reservation whose end nobody knows.
    #[must_use]
    pub fn begin(sent: u64, keys: Vec<usize>, reserved: u64) -> Self {
        let used = vec![Used { least: 0, most: reserved }; keys.len()];
        Self {
            sent,
            ended: sent,
            keys,
            reserved,
            used,
            granted: false,
            granted_at: None,
            ended_at: None,
            abandoned: false,
            wrong: None,
        }
    }

    /// The same, if nothing was reserved.
    #[must_use]
    pub fn none(self) -> Self {
        Self { used: vec![Used::exactly(0); self.keys.len()], ..self }
    }

    /// What stays used of one of its states.
    #[must_use]
    pub fn used(&self, key: usize) -> Used {
        let place = self.keys.iter().position(|other| *other == key);
        place.map_or(Used::exactly(0), |place| self.used[place])
    }
}

/// How states were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossKind {
    /// Once: each state starts over, or goes back to an earlier one.
    Once,
    /// Two servers may have counted separately in this time.
    SplitBrain,
    /// Again and again in this time.
    Repeated,
}

/// A loss of states that a fault declares. It happened between the two instants.
#[derive(Debug, Clone)]
pub struct Loss {
    /// Which states; `None` is all.
    pub keys: Option<Vec<usize>>,
    /// Before this, all states were there.
    pub from: u64,
    /// After this, nothing more was lost.
    pub to: u64,
    /// How.
    pub kind: LossKind,
}

impl Loss {
    /// Whether this state was lost.
    #[must_use]
    pub fn concerns(&self, key: usize) -> bool {
        self.keys.as_ref().is_none_or(|keys| keys.contains(&key))
    }
}

/// A fault as it happened.
#[derive(Debug, Clone)]
pub struct Injected {
    /// The fault.
    pub fault: Fault,
    /// Its number in the schedule.
    pub number: usize,
    /// When it began.
    pub from: u64,
    /// When everything was repaired.
    pub to: u64,
}

/// The state of a key after the round, as a peek shows it.
#[derive(Debug, Clone, Copy)]
pub struct Peeked {
    /// On the server's clock.
    pub at: u64,
    /// When it was asked.
    pub sent: u64,
    /// Units left.
    pub remaining: u64,
    /// Until it is unused.
    pub reset_after: u64,
    /// Units held.
    pub held: u64,
}

/// What was found without the history: by a fault itself, or after the round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which promise.
    pub check: &'static str,
    /// What was seen.
    pub what: String,
}

impl Violation {
    /// Names a promise and what broke it.
    pub fn new(check: &'static str, what: impl Into<String>) -> Self {
        Self { check, what: what.into() }
    }
}

/// Everything that was recorded.
#[derive(Debug, Default)]
pub struct Log {
    /// The calls, in the order in which they ended.
    pub calls: Vec<Call>,
    /// The holds, in the order in which their holders were done with them.
    pub holdings: Vec<Holding>,
    /// The faults.
    pub injected: Vec<Injected>,
    /// The losses.
    pub losses: Vec<Loss>,
    /// One for each state.
    pub peeked: Vec<Option<Peeked>>,
    /// Violations that were found on the way.
    pub violations: Vec<Violation>,
    /// `(when, microseconds)`: how late this process itself was woken.
    pub late: Vec<(u64, u64)>,
    /// `(when, microseconds)`: how long a thread of the server process was ready to run and did not, since the look before. That may be
    /// the sum of several waits, and of more than 20 ms if this process itself looked late.
    pub server_late: Vec<(u64, u64)>,
    /// When the round began, in microseconds of the wall clock.
    pub began_at: u64,
    /// When the Sentinels were seen to have switched to another master.
    pub switches: Vec<u64>,
}

impl Log {
    /// The longest time by which this process was woken late between two instants, in microseconds: a busy machine is not a
    /// slow product.
    #[must_use]
    pub fn starved(&self, from: u64, to: u64) -> u64 {
        longest(&self.late, from, to)
    }

    /// The most that a thread of the server process waited for a processor from one look to the next, near this span.
    #[must_use]
    pub fn server_starved(&self, from: u64, to: u64) -> u64 {
        longest(&self.server_late, from, to + 40_000)
    }

    /// Whether the Sentinels have switched without a fault that asked for it, as they do if they or the master are not run for a
    /// second. Then states were lost at an instant that is not known.
    #[must_use]
    pub fn has_unasked_switch(&self) -> bool {
        let asks =
            |fault: &Fault| matches!(fault, Fault::SentinelFailover | Fault::SentinelKill | Fault::SentinelStop { .. });
        let asked = |at: &u64| {
            self.injected.iter().any(|injected| asks(&injected.fault) && (injected.from..=injected.to).contains(at))
        };
        !self.switches.iter().all(asked)
    }
}

fn longest(late: &[(u64, u64)], from: u64, to: u64) -> u64 {
    let near = late.iter().filter(|(at, late)| *at >= from && at.saturating_sub(*late) <= to);
    near.map(|(_, late)| *late).max().unwrap_or(0)
}

/// Records from all threads.
#[derive(Debug)]
pub struct Recorder {
    start: Instant,
    log: Mutex<Log>,
}

impl Default for Recorder {
    fn default() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let began_at = u64::try_from(wall.as_micros()).expect("a date of this age");
        Self { start: Instant::now(), log: Mutex::new(Log { began_at, ..Log::default() }) }
    }
}

impl Recorder {
    /// Microseconds since the round began.
    pub fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).expect("a round is short")
    }

    /// Changes the log.
    pub fn with<T>(&self, change: impl FnOnce(&mut Log) -> T) -> T {
        change(&mut self.log.lock().expect("no thread panicked with the log"))
    }

    /// Adds a call.
    pub fn call(&self, call: Call) {
        self.with(|log| log.calls.push(call));
    }

    /// Adds a violation.
    pub fn violation(&self, violation: Violation) {
        self.with(|log| log.violations.push(violation));
    }

    /// Declares a loss.
    pub fn loss(&self, keys: Option<Vec<usize>>, from: u64, kind: LossKind) {
        let to = self.now();
        self.with(|log| log.losses.push(Loss { keys, from, to, kind }));
    }

    /// Takes everything.
    pub fn take(&self) -> Log {
        self.with(std::mem::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_asked_for_by_a_fault_of_that_time() {
        let injected = |fault, from, to| Injected { fault, number: 0, from, to };
        let log = |switches: &[u64]| Log {
            injected: vec![
                injected(Fault::SentinelKill, 100, 200),
                injected(Fault::Stop { node: 0, millis: 1 }, 300, 400),
            ],
            switches: switches.to_vec(),
            ..Log::default()
        };
        assert!(!log(&[]).has_unasked_switch() && !log(&[100, 200]).has_unasked_switch());
        assert!(log(&[150, 201]).has_unasked_switch());
        assert!(log(&[350]).has_unasked_switch(), "a master that is stopped is not meant to be replaced");
    }
}
