//! Log lines about decisions: a warning if `on_error` answers, and each denied call at the debug level.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tallygate::StoreError;
use tallygate::decision::Source;
use tallygate::policy::Verdict;
use tokio::time::Instant;
use tracing::Level;

use super::pseudonym::pseudonym;
use crate::decision_event::{Asked, CallOutcome, DecisionEvent};

/// The target of every line about a decision, for filters.
const TARGET: &str = "tallygate_server::decision";
/// The least time between two warnings about one policy.
const QUIET: Duration = Duration::from_secs(10);

/// By policy, when it was last logged, and how often `on_error` has answered since.
///
/// Only used while the store fails. The policies are those of the files, so their number is bounded.
type Notes = BTreeMap<String, (Instant, u64)>;

/// Per process, as the log is.
static NOTES: Mutex<Notes> = Mutex::new(Notes::new());

/// Logs a decision. In the common case this takes no lock, reads no clock and allocates nothing.
pub(super) fn observe(event: &DecisionEvent<'_>) {
    let Some(asked) = event.asked else { return };
    if let (Some(verdict), Some(error)) = (asked.verdict(), asked.store_error())
        && tracing::enabled!(target: TARGET, Level::WARN)
    {
        warn(verdict, error);
    }
    if matches!(event.outcome, CallOutcome::Denied | CallOutcome::Unavailable)
        && tracing::enabled!(target: TARGET, Level::DEBUG)
    {
        debug(event.outcome, &asked);
    }
}

fn debug(outcome: CallOutcome, asked: &Asked<'_>) {
    let binding = asked.binding();
    tracing::debug!(
        target: TARGET,
        domain = asked.question.domain(),
        policy = binding.as_ref().map(|binding| binding.policy),
        outcome = outcome.name(),
        source = binding.as_ref().and_then(|binding| binding.source).map(Source::name),
        subject = binding.as_ref().map(|binding| pseudonym(binding.subject)),
        store_error = asked.store_error().map(|error| error.kind().name()),
        "not allowed"
    );
}

/// One line for each policy whose `on_error` answered and that was not logged just now.
fn warn(verdict: &Verdict, error: &StoreError) {
    let now = Instant::now();
    let mut before: Option<&str> = None;
    for ruling in verdict.rulings() {
        let without = matches!(ruling.source(), Source::OnErrorAllow | Source::OnErrorDeny | Source::OnErrorLocal);
        // A policy may rule on several descriptors. Rulings are in the order of policies, and a call counts once.
        let policy = ruling.policy();
        if !without || before.replace(policy.key_name()) == Some(policy.key_name()) {
            continue;
        }
        let mut notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(answered) = answered(&mut notes, policy.key_name(), now) else { continue };
        drop(notes);
        tracing::warn!(
            target: TARGET,
            domain = policy.domain(),
            policy = policy.name(),
            on_error = policy.on_error().name(),
            answered,
            store_error = error.kind().name(),
            reason = %error,
            "on_error answered"
        );
    }
}

/// Counts an answer of a policy. If a line is due: the number of answers since the last one.
fn answered(notes: &mut Notes, policy: &str, now: Instant) -> Option<u64> {
    let Some((said_at, answered)) = notes.get_mut(policy) else {
        notes.insert(policy.to_owned(), (now, 0));
        return Some(1);
    };
    *answered += 1;
    if now.saturating_duration_since(*said_at) < QUIET {
        return None;
    }
    *said_at = now;
    Some(std::mem::take(answered))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use tallygate::call::Verb;
    use tallygate::policy::OnError;
    use tallygate::{CheckError, Cost, Limiter, MemoryStore};
    use tracing::level_filters::LevelFilter;

    use super::super::Format;
    use super::super::log_format::tests::written;
    use super::super::tests::scene::{DOWN, Scene};
    use super::*;
    use crate::answer::{Answer, AnswerError};
    use crate::decision_event::Api;
    use crate::question::{About, AdHoc, Question};

    /// The lines that ten calls of alice leave behind. Each test has its own domain: what was said is kept by process.
    fn lines(domain: &str, level: LevelFilter, on_error: Option<OnError>) -> Vec<Value> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let scene = Scene::new(domain, on_error.unwrap_or_default());
        let out = written(Format::Json, level, || {
            for _ in 0..10 {
                match on_error {
                    None => runtime.block_on(scene.call("alice")).unwrap(),
                    Some(_) => runtime.block_on(scene.call_in_vain("alice")).unwrap(),
                };
            }
        });
        assert!(!out.contains("alice"), "{out}");
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn the_debug_level_has_each_denied_call_and_info_has_none() {
        assert_eq!(lines("denied-info", LevelFilter::INFO, None), Vec::<Value>::new());
        let lines = lines("denied-debug", LevelFilter::DEBUG, None);
        assert_eq!(lines.len(), 9, "one call was allowed");
        let subject = pseudonym(tallygate::policy::Subject::new([("user", "alice")]).as_str());
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
    fn the_debug_level_has_a_denied_ad_hoc_call() {
        let asked = AdHoc::new("login".into(), "alice".into(), "0/s".parse().unwrap(), Cost::ONE, None).unwrap();
        let decision = Limiter::new(MemoryStore::new()).check_now(asked.check()).unwrap();
        let question = Question { verb: Verb::Check, about: About::AdHoc(asked) };
        let About::AdHoc(asked) = &question.about else { unreachable!() };
        let result = Ok(Answer::Decision(asked, decision));
        let asked = Asked { question: &question, result: &result, took: Duration::ZERO };
        let out = written(Format::Json, LevelFilter::DEBUG, || observe(&DecisionEvent::answered(Api::Http, asked)));
        let line: Value = serde_json::from_str(out.trim_end()).unwrap();
        let fields =
            json!({"policy": "login", "outcome": "denied", "source": "zero_limit", "subject": pseudonym("alice")});
        assert_eq!(line["fields"], fields);
    }

    #[test]
    fn the_debug_level_says_why_a_call_could_not_be_decided() {
        let lines = lines("down-debug", LevelFilter::DEBUG, Some(OnError::Deny));
        let reported: Vec<&Value> = lines.iter().filter(|line| line["level"] == "DEBUG").collect();
        assert_eq!(reported.len(), 10);
        let fields = &reported[0]["fields"];
        let words = ["outcome", "source", "store_error"].map(|field| &fields[field]);
        assert_eq!(words, ["unavailable", "on_error_deny", "unavailable"]);
    }

    /// The log had words of its own, and called a state of a newer version corrupt.
    #[test]
    fn a_store_error_has_the_word_of_the_metric() {
        let asked = AdHoc::new("login".into(), "alice".into(), "1/s".parse().unwrap(), Cost::ONE, None).unwrap();
        let question = Question { verb: Verb::Check, about: About::AdHoc(asked) };
        let error = StoreError::newer_format("version 9".to_owned());
        let result = Err(AnswerError::from(CheckError::from(error)));
        let asked = Asked { question: &question, result: &result, took: Duration::ZERO };
        let out = written(Format::Json, LevelFilter::DEBUG, || observe(&DecisionEvent::answered(Api::Http, asked)));
        let line: Value = serde_json::from_str(out.trim_end()).unwrap();
        assert_eq!([&line["fields"]["outcome"], &line["fields"]["store_error"]], ["unavailable", "newer_format"]);
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
        let reported = lines("quiet", LevelFilter::WARN, Some(OnError::Deny));
        assert_eq!(reported[0]["fields"]["answered"], 1);
    }

    #[test]
    fn the_first_answer_is_told_at_once_for_each_policy() {
        let (mut notes, now) = (Notes::new(), Instant::now());
        assert_eq!(answered(&mut notes, "a/x", now), Some(1));
        assert_eq!(answered(&mut notes, "a/x", now), None);
        assert_eq!(answered(&mut notes, "b/x", now), Some(1));
    }

    proptest! {
        #[test]
        fn lines_are_ten_seconds_apart_and_count_every_answer(waits in prop::collection::vec(0u64..6_000, 1..60)) {
            let (mut notes, mut now) = (Notes::new(), Instant::now());
            let (mut reported, mut said_at) = (0, None::<Instant>);
            for wait in &waits {
                now += Duration::from_millis(*wait);
                if let Some(count) = answered(&mut notes, "a/x", now) {
                    prop_assert!(said_at.is_none_or(|at| now - at >= QUIET));
                    (reported, said_at) = (reported + count, Some(now));
                }
            }
            // The rest is in the next line.
            now += QUIET;
            reported += answered(&mut notes, "a/x", now).unwrap();
            prop_assert_eq!(reported, waits.len() as u64 + 1);
        }
    }
}
