//! What is said about one decision: to the operator if something is wrong or asked for, to the collector if traced.

use std::sync::LazyLock;
use std::time::Duration;

use tallygate::{Source, StoreError, Verdict};
use tokio::time::Instant;
use tracing::Level;

use super::on_error::OnErrorNotes;
use super::{propagate, subject};
use crate::metrics::{Api, CallOutcome};

/// The target of every line about a decision, for filters.
macro_rules! target {
    () => {
        "tallygate_server::decision"
    };
}

/// The log is the process's, so is what was said in it.
static NOTES: LazyLock<OnErrorNotes> = LazyLock::new(OnErrorNotes::default);

/// A decision just made.
pub(crate) struct Decided<'a> {
    pub(crate) api: Api,
    pub(crate) domain: &'a str,
    pub(crate) outcome: CallOutcome,
    /// `None` if the call was invalid.
    pub(crate) verdict: Option<&'a Verdict>,
    pub(crate) took: Duration,
}

impl Decided<'_> {
    /// Says what there is to say. With nothing wrong, no debugging and no collector that takes no lock, no clock and no
    /// memory.
    pub(crate) fn tell(&self) {
        if let Some(verdict) = self.verdict {
            if let Some(error) = verdict.store_error()
                && tracing::enabled!(target: target!(), Level::WARN)
            {
                warn(&NOTES, verdict, error);
            }
            if matches!(self.outcome, CallOutcome::Denied | CallOutcome::Unavailable)
                && tracing::enabled!(target: target!(), Level::DEBUG)
            {
                self.debug(verdict);
            }
        }
        propagate::record(self);
    }

    pub(super) fn api_name(&self) -> &'static str {
        match self.api {
            Api::Http => "http",
            Api::Json => "json",
            Api::ForwardAuth => "forward_auth",
            Api::Rls => "rls",
        }
    }

    pub(super) fn outcome_name(&self) -> &'static str {
        match self.outcome {
            CallOutcome::Allowed => "allowed",
            CallOutcome::Denied => "denied",
            CallOutcome::Unavailable => "unavailable",
            CallOutcome::Invalid => "invalid",
        }
    }

    fn debug(&self, verdict: &Verdict) {
        let binding = verdict.binding();
        tracing::debug!(
            target: target!(),
            domain = self.domain,
            policy = binding.map(|ruling| ruling.policy().name()),
            outcome = self.outcome_name(),
            source = binding.map(|ruling| ruling.source().name()),
            subject = binding.map(|ruling| subject::pseudonym(ruling.subject())),
            store_error = verdict.store_error().map(kind),
            "not allowed"
        );
    }
}

/// One line for each policy that answered without the store and was not spoken of just now.
fn warn(notes: &OnErrorNotes, verdict: &Verdict, error: &StoreError) {
    let now = Instant::now();
    let mut before = None;
    for ruling in verdict.rulings() {
        let without = matches!(ruling.source(), Source::OnErrorAllow | Source::OnErrorDeny | Source::OnErrorLocal);
        // One policy may rule on several descriptors: rulings are in the order of policies, and a call counts once.
        if !without || before.replace(ruling.place()) == Some(ruling.place()) {
            continue;
        }
        let policy = ruling.policy();
        let Some(answered) = notes.answered(policy.key_name(), now) else { continue };
        tracing::warn!(
            target: target!(),
            domain = policy.domain(),
            policy = policy.name(),
            on_error = policy.on_error().name(),
            answered,
            store_error = kind(error),
            reason = %error,
            "on_error answered"
        );
    }
}

/// The words of the metric `tallygate_store_errors_total`.
fn kind(error: &StoreError) -> &'static str {
    match error {
        StoreError::Unavailable { .. } => "unavailable",
        StoreError::Ambiguous { .. } => "ambiguous",
        StoreError::Overloaded { .. } => "overloaded",
        StoreError::Refused { .. } => "refused",
        _ => "corrupt",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tallygate::OnError;
    use tracing::level_filters::LevelFilter;

    use super::super::Format;
    use super::super::lines::tests::written;
    use super::super::scene::{DOWN, Scene};
    use super::super::subject::pseudonym;

    /// The lines that ten calls of alice leave behind. Each test has its own domain: what was said is kept by process.
    fn lines(domain: &str, level: LevelFilter, on_error: Option<OnError>) -> Vec<Value> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let scene = Scene::new(domain, on_error.unwrap_or_default());
        let out = written(Format::Json, level, || {
            for _ in 0..10 {
                match on_error {
                    None => runtime.block_on(scene.call("alice")),
                    Some(_) => runtime.block_on(scene.call_in_vain("alice")),
                };
            }
        });
        assert!(!out.contains("alice"), "{out}");
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn debug_tells_of_each_denied_call_and_info_of_none() {
        assert_eq!(lines("denied-info", LevelFilter::INFO, None), Vec::<Value>::new());
        let lines = lines("denied-debug", LevelFilter::DEBUG, None);
        assert_eq!(lines.len(), 9, "one call was allowed");
        let subject = pseudonym(tallygate::Subject::new([("user", "alice")]).as_str());
        for line in lines {
            assert_eq!([&line["level"], &line["target"]], ["DEBUG", "tallygate_server::decision"]);
            let fields = json!({
                "domain": "denied-debug", "policy": "per-user", "outcome": "denied", "source": "store",
                "subject": subject,
            });
            assert_eq!(line["fields"], fields);
        }
    }

    #[test]
    fn debug_tells_why_a_call_could_not_be_decided() {
        let lines = lines("down-debug", LevelFilter::DEBUG, Some(OnError::Deny));
        let told: Vec<&Value> = lines.iter().filter(|line| line["level"] == "DEBUG").collect();
        assert_eq!(told.len(), 10);
        let fields = &told[0]["fields"];
        let words = ["outcome", "source", "store_error"].map(|field| &fields[field]);
        assert_eq!(words, ["unavailable", "on_error_deny", "unavailable"]);
    }

    #[test]
    fn a_policy_that_answers_without_its_store_says_so_once_and_not_at_each_call() {
        for on_error in [OnError::Allow, OnError::Deny, OnError::Local] {
            let domain = format!("down-{}", on_error.name());
            let lines = lines(&domain, LevelFilter::INFO, Some(on_error));
            let [line] = lines.as_slice() else { panic!("one line: {lines:?}") };
            assert_eq!([&line["level"], &line["message"]], ["WARN", "on_error answered"]);
            let fields = json!({
                "domain": domain, "policy": "per-user", "on_error": on_error.name(), "answered": 1,
                "store_error": "unavailable", "reason": format!("the store is unavailable: {DOWN}"),
            });
            assert_eq!(line["fields"], fields);
        }
    }

    #[test]
    fn nothing_is_counted_for_a_log_that_takes_no_warnings() {
        assert_eq!(lines("quiet", LevelFilter::ERROR, Some(OnError::Deny)), Vec::<Value>::new());
        let told = lines("quiet", LevelFilter::WARN, Some(OnError::Deny));
        assert_eq!(told[0]["fields"]["answered"], 1);
    }
}
