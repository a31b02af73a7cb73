//! Why a store could not answer.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::words::words;

/// The error of a store that could not answer. A denial is never an error: it is a value.
///
/// Its text is a complete sentence, which names the cause. [`source`](Error::source) is the error of the system or the
/// connection behind it, if there is one, such as an `io::Error`.
#[derive(Debug, Clone)]
pub struct StoreError {
    kind: StoreErrorKind,
    reason: String,
    may_have_charged: bool,
    late: bool,
    repeated: bool,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

words! {
    /// What kind of error it is. The kinds differ in whether the call [may have been
    /// charged](StoreError::may_have_charged), and in what an operator has to do.
    #[non_exhaustive]
    pub enum StoreErrorKind {
        /// The store is unreachable, or refused before running anything. Nothing was charged; it is safe to ask again.
        Unavailable = "unavailable",
        /// The call was sent and got no answer. It may have been charged: asking again could charge twice.
        Ambiguous = "ambiguous",
        /// The call waited in this process for too long, because too many others are in flight or the process is too
        /// busy. The store is not to blame. Nothing was charged, unless the call was sent at the last moment.
        Overloaded = "overloaded",
        /// The store refuses such calls until its configuration changes: a wrong password, a missing ACL rule, memory
        /// exhausted. Nothing was charged, unless permissions were revoked while a script of several checks ran.
        Refused = "refused",
        /// A state was written by a newer version of Tallygate, in a format that this version cannot read. The state is
        /// unchanged, and nothing was charged.
        NewerFormat = "newer_format",
        /// The store holds or answered something that Tallygate did not write, or stopped half way. Whether the call
        /// was charged is unknown.
        Corrupt = "corrupt",
    }
}

impl StoreError {
    fn new(kind: StoreErrorKind, reason: String) -> Self {
        let may_have_charged = matches!(kind, StoreErrorKind::Ambiguous | StoreErrorKind::Corrupt);
        let late = kind == StoreErrorKind::Overloaded;
        Self { kind, reason, may_have_charged, late, repeated: false, source: None }
    }

    /// The store is unreachable, or refused before running anything.
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Unavailable, reason.into())
    }

    /// The call was sent and got no answer.
    pub fn ambiguous(reason: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Ambiguous, reason.into())
    }

    /// The call waited in this process for too long, and was not sent.
    pub fn overloaded(reason: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Overloaded, reason.into())
    }

    /// The same error of a call that was sent nevertheless, and may have been charged.
    #[must_use]
    pub fn or_charged(self) -> Self {
        Self { may_have_charged: true, ..self }
    }

    /// The store refuses such calls until someone follows the `remedy`.
    pub fn refused(reason: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Self::new(StoreErrorKind::Refused, format!("{reason}; {remedy}"))
    }

    /// The store holds a state of a newer version.
    pub fn newer_format(reason: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::NewerFormat, reason.into())
    }

    /// The store holds or answered something that Tallygate did not write.
    pub fn corrupt(reason: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Corrupt, reason.into())
    }

    /// The same error of a call that only ran out of time: nobody knows yet whether the store is at fault.
    #[must_use]
    pub fn late(self) -> Self {
        Self { late: true, ..self }
    }

    /// The same error of a call that was repeated under its id, also without an answer.
    #[must_use]
    pub fn repeated(self) -> Self {
        Self { repeated: true, ..self }
    }

    /// Whether the call only ran out of time, in this process or because the store was slow for a moment. Callers can bring
    /// that about by asking often enough, so it is no reason to let them pass.
    pub fn is_late(&self) -> bool {
        self.late
    }

    /// The same error, with the one that caused it. The text does not change: the reason should name the cause.
    #[must_use]
    pub fn with_source(self, source: impl Error + Send + Sync + 'static) -> Self {
        self.with_shared_source(Arc::new(source))
    }

    /// Like [`with_source`](Self::with_source), for the error of several calls.
    #[must_use]
    pub fn with_shared_source(self, source: Arc<dyn Error + Send + Sync>) -> Self {
        Self { source: Some(source), ..self }
    }

    /// What happened, and for a refusal what to do about it. The text of the error also says what that means for the call.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The kind of the error.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the call may have been charged: asking again could then charge twice. If false, nothing was charged, with
    /// the one exception that [`StoreErrorKind::Refused`] names.
    pub fn may_have_charged(&self) -> bool {
        self.may_have_charged
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = &self.reason;
        match self.kind {
            StoreErrorKind::Unavailable => write!(f, "the store is unavailable: {reason}"),
            StoreErrorKind::Ambiguous if self.repeated => {
                write!(
                    f,
                    "the store did not answer ({reason}), and not when the call was repeated under its id; it may have been charged, once"
                )
            }
            StoreErrorKind::Ambiguous => {
                write!(f, "the store did not answer ({reason}); the call may have been charged and was not repeated")
            }
            StoreErrorKind::Overloaded if self.may_have_charged => {
                write!(f, "this process is overloaded: {reason}; the call may have been charged and was not repeated")
            }
            StoreErrorKind::Overloaded => write!(f, "this process is overloaded: {reason}; the call was not sent"),
            StoreErrorKind::Refused => write!(f, "the store refused: {reason}"),
            StoreErrorKind::NewerFormat => {
                write!(f, "the store holds a state of a newer version of tallygate: {reason}; upgrade this instance")
            }
            StoreErrorKind::Corrupt => write!(f, "the store holds something tallygate did not write: {reason}"),
        }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

/// Two errors are equal if they say the same. Their sources are not compared.
impl PartialEq for StoreError {
    fn eq(&self, other: &Self) -> bool {
        let said = |error: &Self| (error.kind, error.may_have_charged, error.late);
        said(self) == said(other) && self.reason == other.reason
    }
}

impl Eq for StoreError {}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn only_an_error_that_may_have_charged_forbids_asking_again() {
        let errors = [
            (StoreError::unavailable("r"), false),
            (StoreError::ambiguous("r"), true),
            (StoreError::overloaded("r"), false),
            (StoreError::refused("r", "s"), false),
            (StoreError::newer_format("r"), false),
            (StoreError::corrupt("r"), true),
        ];
        assert_eq!(errors.each_ref().map(|(error, _)| error.kind())[..], *StoreErrorKind::ALL);
        for (error, may_have_charged) in errors {
            assert_eq!(error.may_have_charged(), may_have_charged, "{error}");
        }
    }

    #[test]
    fn a_late_error_and_one_of_a_call_that_was_sent_say_so() {
        for kind in StoreErrorKind::ALL {
            let error = StoreError::new(*kind, "r".to_owned());
            assert_eq!(error.is_late(), *kind == StoreErrorKind::Overloaded, "{error}");
            assert!(error.clone().late().is_late() && error.or_charged().may_have_charged());
        }
        let (unsent, sent) = (StoreError::overloaded("r"), StoreError::overloaded("r").or_charged());
        assert_eq!(unsent.to_string(), "this process is overloaded: r; the call was not sent");
        assert!(sent.to_string().ends_with("the call may have been charged and was not repeated"), "{sent}");
    }

    #[test]
    fn errors_that_say_the_same_are_equal() {
        let error = StoreError::unavailable("r");
        assert_eq!(error, StoreError::unavailable("r").with_source(io::Error::from(io::ErrorKind::TimedOut)));
        assert_ne!(error, StoreError::unavailable("s"));
        assert_ne!(error, StoreError::ambiguous("r"));
        assert_ne!(error, StoreError::unavailable("r").late());
        assert_ne!(error, StoreError::unavailable("r").or_charged());
    }

    #[test]
    fn the_cause_is_kept_with_its_type() {
        let cause = io::Error::from(io::ErrorKind::ConnectionReset);
        let error = StoreError::ambiguous(cause.to_string()).with_source(cause);
        let kept = error.source().and_then(|source| source.downcast_ref::<io::Error>()).map(io::Error::kind);
        assert_eq!(kept, Some(io::ErrorKind::ConnectionReset));
        assert!(error.to_string().contains("connection reset"), "{error}");
    }
}
