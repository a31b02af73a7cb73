//! What callers are answered, whichever edge writes it.

use tallygate::{CheckError, Decision, Domain, PolicySet, Ruling, Verdict};

use crate::question::AdHoc;

/// The answer to a question.
#[derive(Debug)]
pub(crate) enum Answer<'q> {
    /// A check, peek or refund under policies.
    Verdict(Verdict),
    /// An ad hoc check or peek.
    Decision(&'q AdHoc, Decision),
    /// The units that an ad hoc refund gave back.
    Refunded(&'q AdHoc, u64),
    /// How many states a reset found.
    Forgotten(u64),
}

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("There is no domain `{}`: {hint}", domain.escape_debug())]
    UnknownDomain { domain: String, hint: String },
    /// The question is invalid, or the store failed and no policy says what to do then.
    #[error(transparent)]
    Check(#[from] CheckError),
}

impl Answer<'_> {
    /// The verdict on a call that decides under policies.
    pub(crate) fn into_verdict(self) -> Verdict {
        match self {
            Self::Verdict(verdict) => verdict,
            other => unreachable!("a check under policies was answered with {other:?}"),
        }
    }
}

impl AnswerError {
    pub(crate) fn unknown_domain(set: &PolicySet, domain: &str) -> Self {
        let known: Vec<&str> = set.domains().iter().map(Domain::name).collect();
        let hint = match tallygate::nearest(domain, &known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "it must be one of your policy files.".to_owned(),
        };
        Self::UnknownDomain { domain: domain.to_owned(), hint }
    }
}

/// One ruling for each state: a state that several descriptors meet is charged once, and counted once.
pub(crate) fn distinct_states(verdict: &Verdict) -> impl Iterator<Item = &Ruling> {
    let rulings = verdict.rulings();
    rulings.iter().enumerate().filter_map(|(at, ruling)| {
        let same = |other: &Ruling| other.place() == ruling.place() && other.subject() == ruling.subject();
        (!rulings[..at].iter().any(same)).then_some(ruling)
    })
}
