//! Log lines about decisions: a warning if `on_error` answers, and each denied call at the debug level.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
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
/// A policy whose `on_error` has not answered for so long is decided by the store again. Not sooner: a store that fails
/// now and then would fill the log.
const QUIET: Duration = Duration::from_secs(10);

/// By policy, since when `on_error` answers, when it last did, and how often it has.
///
/// Only used while the store fails. The policies are those of the files, so their number is bounded.
type Notes = BTreeMap<String, Note>;

#[derive(Debug, Clone, Copy)]
struct Note {
    since: Instant,
    last: Instant,
    answered: u64,
}

/// Per process, as the log is.
static NOTES: Mutex<Notes> = Mutex::new(Notes::new());
/// Whether there are any, so that the common case takes no lock.
static NOTED: AtomicBool = AtomicBool::new(false);

/// Logs a decision. In the common case this takes no lock, reads no clock and allocates nothing.
pub(super) fn observe(event: &DecisionEvent<'_>) {
    let Some(asked) = event.asked else { return };
    if let (Some(verdict), Some(error)) = (asked.verdict(), asked.store_error())
        && tracing::enabled!(target: TARGET, Level::WARN)
    {
        warn(verdict, error);
    } else if let Some(verdict) = asked.verdict()
        && NOTED.load(Relaxed)
    {
        recovered(verdict);
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

/// One line for each policy whose `on_error` begins to answer.
fn warn(verdict: &Verdict, error: &StoreError) {
    let now = Instant::now();
    for ruling in verdict.rulings().iter().filter(|ruling| ruling.source().is_on_error()) {
        let policy = ruling.policy();
        let mut notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = answered(&mut notes, policy.key_name(), now);
        NOTED.store(true, Relaxed);
        drop(notes);
        if begins {
            tracing::warn!(
                target: TARGET,
                domain = policy.domain(),
                policy = policy.name(),
                on_error = policy.on_error().name(),
                source = ruling.source().name(),
                store_error = error.kind().name(),
                reason = %error,
                "on_error answers"
            );
        }
    }
}

/// One line for each policy that the store decides again.
#[cold]
fn recovered(verdict: &Verdict) {
    let now = Instant::now();
    for ruling in verdict.rulings().iter().filter(|ruling| ruling.source() == Source::Store) {
        let policy = ruling.policy();
        let mut notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = ended(&mut notes, policy.key_name(), now);
        NOTED.store(!notes.is_empty(), Relaxed);
        drop(notes);
        if let Some(note) = ended {
            let for_ms = u64::try_from((note.last - note.since).as_millis()).unwrap_or(u64::MAX);
            tracing::info!(
                target: TARGET,
                domain = policy.domain(),
                policy = policy.name(),
                answered = note.answered,
                for_ms,
                "the store decides again"
            );
        }
    }
}

/// Notes an answer of a policy. True for the first.
fn answered(notes: &mut Notes, policy: &str, now: Instant) -> bool {
    if let Some(note) = notes.get_mut(policy) {
        (note.last, note.answered) = (now, note.answered + 1);
        return false;
    }
    notes.insert(policy.to_owned(), Note { since: now, last: now, answered: 1 });
    true
}

/// The note of a policy that the store has decided, if `on_error` has been quiet since.
fn ended(notes: &mut Notes, policy: &str, now: Instant) -> Option<Note> {
    let note = notes.get(policy)?;
    (now.saturating_duration_since(note.last) >= QUIET).then(|| notes.remove(policy))?
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
        let question =
            Question { verb: Verb::Check, about: About::AdHoc(asked), up_to: None, reserving: None, request_id: None };
        let About::AdHoc(asked) = &question.about else { unreachable!() };
        let result = Ok(Answer::Decision(asked, decision, None));
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
        let question =
            Question { verb: Verb::Check, about: About::AdHoc(asked), up_to: None, reserving: None, request_id: None };
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
            assert_eq!([&line["level"], &line["message"]], ["WARN", "on_error answers"]);
            let fields = json!({
                "domain": domain, "policy": "per-user", "on_error": on_error.name(),
                "source": format!("on_error_{on_error}"),
                "store_error": "unavailable", "reason": format!("the store is unavailable: {DOWN}"),
            });
            assert_eq!(line["fields"], fields);
        }
    }

    #[test]
    fn nothing_is_counted_for_a_log_that_takes_no_warnings() {
        assert_eq!(lines("quiet", LevelFilter::ERROR, Some(OnError::Deny)), Vec::<Value>::new());
        let reported = lines("quiet", LevelFilter::WARN, Some(OnError::Deny));
        assert_eq!(reported.len(), 1);
    }

    /// A line every ten seconds of an outage said nothing new, and none said that it was over.
    #[test]
    fn the_beginning_and_the_end_are_told_once_for_each_policy() {
        let (mut notes, start) = (Notes::new(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(answered(&mut notes, "a/x", at(0)) && answered(&mut notes, "b/x", at(0)));
        assert!((1..100).all(|second| !answered(&mut notes, "a/x", at(second))));
        assert!(ended(&mut notes, "a/x", at(100)).is_none(), "it failed a second ago");
        let note = ended(&mut notes, "a/x", at(109)).unwrap();
        assert_eq!((note.answered, note.last - note.since), (100, Duration::from_secs(99)));
        assert!(ended(&mut notes, "a/x", at(110)).is_none());
        assert!(answered(&mut notes, "a/x", at(111)));
    }

    proptest! {
        #[test]
        fn beginnings_and_ends_alternate_and_count_every_answer(
            events in prop::collection::vec((0u64..15_000, any::<bool>()), 1..80),
        ) {
            let (mut notes, mut now) = (Notes::new(), Instant::now());
            let (mut open, mut counted, mut failures) = (false, 0, 0);
            for (wait, fails) in events {
                now += Duration::from_millis(wait);
                if fails {
                    failures += 1;
                    prop_assert_eq!(answered(&mut notes, "a/x", now), !open);
                    open = true;
                } else if let Some(note) = ended(&mut notes, "a/x", now) {
                    prop_assert!(open && now - note.last >= QUIET);
                    (open, counted) = (false, counted + note.answered);
                }
            }
            prop_assert_eq!(counted + notes.get("a/x").map_or(0, |note| note.answered), failures);
        }
    }
}
