//! One call of a trace, and what it is answered.

use std::fmt;

use tallygate::{Check, CheckError, Cost, Decision, Key, Limit, Limiter, Source, Status, Store, Timestamp};

/// A check that owns its parts.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) policy: String,
    pub(super) subject: String,
    pub(super) limit: Limit,
    pub(super) cost: Cost,
}

#[derive(Debug, Clone)]
pub(super) enum Call {
    Check(Vec<Ask>),
    Peek(Vec<Ask>),
    Refund(Ask, Option<Timestamp>),
    Reset(Ask),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Answer {
    Decided { statuses: Vec<Status>, source: Source, at: Timestamp },
    GivenBack(u64),
    Forgotten(bool),
    Failed(CheckError),
}

impl Ask {
    fn check(&self) -> Check<'_> {
        let key = Key::new(&self.policy, &self.subject).expect("short names");
        Check::new(key, &self.limit).cost(self.cost)
    }
}

fn checks(asks: &[Ask]) -> Vec<Check<'_>> {
    asks.iter().map(Ask::check).collect()
}

impl Call {
    pub(super) async fn ask<S: Store>(&self, limiter: &Limiter<S>) -> Answer {
        let answer = match self {
            Self::Check(asks) => limiter.check_all(&checks(asks)).await.map(Answer::from),
            Self::Peek(asks) => limiter.peek(&checks(asks)).await.map(Answer::from),
            Self::Refund(ask, charged_at) => limiter.refund(ask.check(), *charged_at).await.map(Answer::GivenBack),
            Self::Reset(ask) => limiter.reset(ask.check()).await.map(Answer::Forgotten),
        };
        answer.unwrap_or_else(Answer::Failed)
    }
}

impl From<Decision> for Answer {
    fn from(decision: Decision) -> Self {
        let statuses = decision.statuses().to_vec();
        Self::Decided { statuses, source: decision.source(), at: decision.decided_at() }
    }
}

impl Answer {
    /// Whether a state that was reset was still there, spent, is a store's own affair.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Forgotten(_), Self::Forgotten(_))) || self == other
    }

    pub(super) fn denied(&self) -> bool {
        matches!(self, Self::Decided { statuses, .. } if !statuses.iter().all(Status::allowed))
    }
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}/{} ({})", self.cost, self.policy, self.subject, self.limit)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = |asks: &[Ask]| asks.iter().map(Ask::to_string).collect::<Vec<_>>().join(" and ");
        match self {
            Self::Check(asks) => write!(f, "check {}", all(asks)),
            Self::Peek(asks) => write!(f, "peek {}", all(asks)),
            Self::Refund(ask, None) => write!(f, "refund {ask}"),
            Self::Refund(ask, Some(charged_at)) => write!(f, "refund {ask} charged at {charged_at}"),
            Self::Reset(ask) => write!(f, "reset {ask}"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decided { statuses, source, at } => {
                write!(f, "{} at {at}:", source.name())?;
                for status in statuses {
                    let word = if status.allowed() { "allowed" } else { "denied" };
                    let (wait, reset) = (status.retry_after().map(|wait| wait.as_micros()), status.reset_after());
                    write!(
                        f,
                        " {word} remaining {} retry {wait:?} reset {} µs",
                        status.remaining(),
                        reset.as_micros()
                    )?;
                }
                Ok(())
            }
            Self::GivenBack(units) => write!(f, "given back {units}"),
            Self::Forgotten(found) => write!(f, "forgotten {found}"),
            Self::Failed(error) => write!(f, "error: {error}"),
        }
    }
}
