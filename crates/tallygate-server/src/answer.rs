//! What a call is answered, whichever edge writes it.

use tallygate::hold::Hold;
use tallygate::policy::{Domain, PolicySet, Verdict};
use tallygate::{CheckError, Decision};

use crate::question::AdHoc;

#[derive(Debug)]
pub(crate) enum Answer<'q> {
    /// Under policies.
    Verdict(Verdict),
    /// Under a limit that the call carried, and what it has reserved.
    Decision(&'q AdHoc, Decision, Option<Hold>),
}

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("There is no domain `{}`: {hint}", domain.escape_debug())]
    UnknownDomain { domain: String, hint: String },
    #[error("the domain has no policy `{}`: {hint}", policy.escape_debug())]
    UnknownPolicy { policy: String, hint: String },
    /// The question is invalid, or the store failed and no policy says what to do.
    #[error(transparent)]
    Check(#[from] CheckError),
}

impl Answer<'_> {
    /// The hold of an allowed reservation.
    pub(crate) fn hold(&self) -> Option<Hold> {
        match self {
            Self::Verdict(verdict) => verdict.hold(),
            Self::Decision(_, _, hold) => hold.clone(),
        }
    }

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
        let hint = one_of(domain, &known, "there are no policies.");
        Self::UnknownDomain { domain: domain.to_owned(), hint }
    }

    pub(crate) fn unknown_policy(domain: &Domain, policy: &str) -> Self {
        let known: Vec<&str> = domain.policies().iter().map(|policy| policy.name()).collect();
        Self::UnknownPolicy { policy: policy.to_owned(), hint: one_of(policy, &known, "it has no policies.") }
    }
}

/// What was meant by an unknown name, or which are known.
pub(crate) fn one_of(unknown: &str, known: &[&str], none: &str) -> String {
    match tallygate::words::nearest(unknown, known) {
        Some(near) => format!("did you mean `{}`?", near.escape_debug()),
        None if known.is_empty() => none.to_owned(),
        None => {
            let shown: Vec<String> = known.iter().take(5).map(|name| format!("`{}`", name.escape_debug())).collect();
            format!("use one of {}{}.", shown.join(", "), if known.len() > 5 { ", …" } else { "" })
        }
    }
}
