//! What a call is answered, whichever edge writes it.

use tallygate::policy::{Domain, PolicySet, Verdict};
use tallygate::{CheckError, Decision};

use crate::question::AdHoc;

#[derive(Debug)]
pub(crate) enum Answer<'q> {
    /// Under policies.
    Verdict(Verdict),
    /// Under a limit that the call carried.
    Decision(&'q AdHoc, Decision),
}

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("There is no domain `{}`: {hint}", domain.escape_debug())]
    UnknownDomain { domain: String, hint: String },
    /// The question is invalid, or the store failed and no policy says what to do.
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
        let hint = match tallygate::words::nearest(domain, &known) {
            Some(near) => format!("did you mean `{near}`?"),
            None if known.is_empty() => "there are no policies.".to_owned(),
            None => {
                let shown: Vec<String> =
                    known.iter().take(5).map(|name| format!("`{}`", name.escape_debug())).collect();
                format!("use one of {}{}.", shown.join(", "), if known.len() > 5 { ", …" } else { "" })
            }
        };
        Self::UnknownDomain { domain: domain.to_owned(), hint }
    }
}
