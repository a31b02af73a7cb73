//! One call of a trace, and its answer.

use std::fmt;

use tallygate::call::{InvalidCheck, UpTo, Verb};
use tallygate::clock::Timestamp;
use tallygate::decision::Source;
use tallygate::hold::{Hold, HoldId, HoldTerms, Holds, Reservation, Resolution, Resolve, Resolved};
use tallygate::limit::Changes;
use tallygate::policy::{Excess, Mode};
use tallygate::request::{Request, RequestId};
use tallygate::{Check, CheckError, Cost, Decision, Key, Limit, Status};

/// A check that owns its parts.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) policy: String,
    pub(super) subject: String,
    pub(super) limit: Limit,
    pub(super) cost: Cost,
    pub(super) mode: Mode,
    pub(super) excess: Excess,
    /// Whether a cost above the capacity is capped, and always denied, or is an invalid question.
    pub(super) cut: bool,
    pub(super) charged_at: Option<Timestamp>,
    /// What the limit grants to holds, as far as the call says.
    pub(super) terms: Option<HoldTerms>,
    /// What the limit changes to, and when.
    pub(super) changes: Option<Changes>,
    /// Whether it is a further payer of the cost of the one before it.
    pub(super) pays_rest: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) verb: Verb,
    pub(super) asks: Vec<Ask>,
    /// Takes what is left.
    pub(super) up_to: Option<UpTo>,
    /// What a call asks for that reserves.
    pub(super) reservation: Option<Reservation>,
    /// The id of a call that can be repeated.
    pub(super) id: Option<RequestId>,
    /// Ends a hold, instead of what a verb does.
    pub(super) ending: Option<Ending>,
}

/// How a hold ends, and the number of the call.
#[derive(Debug, Clone)]
pub(super) struct Ending {
    pub(super) hold: Hold,
    pub(super) resolve: Resolve,
    pub(super) attempt: u64,
}

/// What an answer says about an earlier one under the same id.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Repeat {
    pub(super) replayed: bool,
    pub(super) conflicts: bool,
    pub(super) hold: Option<HoldId>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Answer {
    Decided { allowed: bool, statuses: Vec<Status>, source: Source, at: Option<Timestamp>, repeat: Repeat },
    Ended(Resolved),
    Failed(CheckError),
}

impl Ask {
    pub(super) fn check(&self) -> Check<'_> {
        let key = Key::new(&self.policy, &self.subject).expect("short names");
        let check = Check::new(key, &self.limit).cost(self.cost).with_mode(self.mode).with_excess(self.excess);
        let check = check.with_charged_at(self.charged_at).with_holds(self.terms.as_ref());
        let check = if self.pays_rest { check.paying_rest() } else { check };
        // Whether a cost is above the capacity is known to the store only, and a call may ask about another limit since.
        match self.changes.as_ref().filter(|changes| changes.first() == &self.limit) {
            Some(changes) => check.with_changes(Some(changes)),
            None if self.cut => check.within_capacity(),
            None => check,
        }
    }
}

impl Call {
    pub(super) async fn ask<S: Holds>(&self, store: &S) -> Answer {
        if let Some(Ending { hold, resolve, attempt }) = &self.ending {
            let mut resolution = Resolution::new(hold, resolve.clone());
            resolution.attempt = *attempt;
            let ended = store.resolve(&resolution).await;
            return ended.map_or_else(|error| Answer::Failed(error.into()), Answer::Ended);
        }
        let checks: Vec<Check<'_>> = self.asks.iter().map(Ask::check).collect();
        let call = self.of(&checks);
        let answer = match call.map(|call| call.with_request_id(self.id)) {
            Ok(call) => call.ask(store).await.map_err(CheckError::from),
            Err(invalid) => Err(invalid.into()),
        };
        answer.map_or_else(Answer::Failed, Answer::from)
    }

    fn of<'c>(&self, checks: &'c [Check<'c>]) -> Result<tallygate::call::Call<'c>, InvalidCheck> {
        match (self.up_to, self.reservation) {
            (Some(up_to), _) => tallygate::call::Call::check_up_to(checks, up_to),
            (None, Some(reservation)) => tallygate::call::Call::reserve(checks, reservation),
            (None, None) => tallygate::call::Call::new(self.verb, checks),
        }
    }

    /// What it is remembered by, and the first of its checks that a store is asked about.
    pub(super) fn remembered(&self) -> Option<(Request, Ask)> {
        let checks: Vec<Check<'_>> = self.asks.iter().map(Ask::check).collect();
        let call = self.of(&checks).ok()?.with_request_id(self.id);
        let first = self.asks.iter().find(|ask| ask.limit.amount() > 0)?;
        Some((call.request()?.clone(), first.clone()))
    }
}

impl From<Decision> for Answer {
    fn from(decision: Decision) -> Self {
        let (allowed, statuses) = (decision.allowed(), decision.statuses().to_vec());
        let (replayed, conflicts, hold) = (decision.replayed(), decision.conflicts(), decision.first_hold());
        let repeat = Repeat { replayed, conflicts, hold };
        Self::Decided { allowed, statuses, source: decision.source(), at: decision.decided_at(), repeat }
    }
}

impl Answer {
    /// Whether a reset state still existed after it had expired is up to the store.
    pub(super) fn is_like(&self, other: &Self, verb: Verb) -> bool {
        match (self, other) {
            (Self::Decided { .. }, Self::Decided { .. }) if verb == Verb::Reset => true,
            _ => self == other,
        }
    }

    pub(super) fn denied(&self) -> bool {
        matches!(self, Self::Decided { allowed: false, .. })
    }
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, subject, limit, cost, mode, excess, .. } = self;
        let rest = if self.pays_rest { "the rest of " } else { "" };
        write!(f, "{rest}{cost} of {policy}/{subject} ({limit}, {mode}, {excess})")?;
        if let Some(changes) = &self.changes {
            write!(f, " {changes:?}")?;
        }
        self.charged_at.map_or(Ok(()), |at| write!(f, " charged at {at}"))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asks: Vec<String> = self.asks.iter().map(Ask::to_string).collect();
        if let Some(Ending { resolve, attempt, .. }) = &self.ending {
            return write!(f, "{resolve:?} of a hold, call {attempt}");
        }
        write!(f, "{} {}", self.verb.name(), asks.join(" and "))?;
        if let Some(id) = self.id {
            write!(f, " as {id:?}")?;
        }
        if let Some(reservation) = self.reservation {
            write!(f, " for {:?}", reservation.ttl())?;
        }
        self.up_to.map_or(Ok(()), |up_to| write!(f, " {} to {} units", up_to.least(), up_to.most()))
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decided { allowed, statuses, source, at, repeat } => {
                if repeat.replayed || repeat.conflicts {
                    write!(f, "{repeat:?} ")?;
                }
                write!(f, "{} by {} at {at:?}:", if *allowed { "allowed" } else { "denied" }, source.name())?;
                for status in statuses {
                    let word = if status.allowed() { "allowed" } else { "denied" };
                    let (wait, reset) = (status.retry_after().map(|wait| wait.as_micros()), status.reset_after());
                    write!(
                        f,
                        " {word} remaining {} retry {wait:?} reset {} µs units {} held {} debt {}",
                        status.remaining(),
                        reset.as_micros(),
                        status.units(),
                        status.held(),
                        status.debt()
                    )?;
                }
                Ok(())
            }
            Self::Ended(resolved) => write!(f, "{resolved:?}"),
            Self::Failed(error) => write!(f, "error: {error}"),
        }
    }
}
