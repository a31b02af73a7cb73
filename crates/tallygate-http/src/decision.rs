//! The decision as JSON: what the server answers and the command line prints.

use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::Value;
use tallygate::{Decision, Source, Status, Timestamp};

/// The `source` of an answer that no policy had a say in.
pub const NO_POLICY: &str = "no_policy";

/// What one policy said.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The policy's name.
    pub policy: &'a str,
    /// Its answer.
    pub status: &'a Status,
    /// Where that came from.
    pub source: Source,
    /// Whether the policy only watches. Such a part is marked, and never binds.
    pub shadow: bool,
}

/// The answer to a call, as it is told to a program.
///
/// The object starts with the numbers of the part that binds, and lists every part in `statuses` with the same members.
/// If none binds, because no policy applied or all of them only watch, its `source` is [`NO_POLICY`] and its `policy`,
/// `limit` and `remaining` are null. A part without a limit has neither number: both are null. `retry_after_ms` is null
/// where no wait will do.
///
/// ```
/// use tallygate_http::Answer;
///
/// let unlimited = Answer { allowed: true, parts: &[], binding: None, split: false, decided_at: None };
/// assert_eq!(
///     serde_json::to_string(&unlimited)?,
///     r#"{"allowed":true,"source":"no_policy","policy":null,"limit":null,"remaining":null,"#.to_owned()
///         + r#""retry_after_ms":0,"reset_after_ms":0,"split":false,"decided_at_us":null,"statuses":[]}"#
/// );
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// Whether the call may proceed.
    pub allowed: bool,
    /// What each policy said, in the order they are listed.
    pub parts: &'a [Part<'a>],
    /// Which part binds.
    pub binding: Option<usize>,
    /// Whether the parts were charged one after the other.
    pub split: bool,
    /// As of when, on the store's clock; null if no store was asked.
    pub decided_at: Option<Timestamp>,
}

impl Answer<'_> {
    /// The object as a value.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("its members are numbers and strings")
    }
}

impl Serialize for Answer<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let binding = self.binding.and_then(|index| self.parts.get(index)).filter(|part| !part.shadow);
        let members = binding.map_or(Members::NONE, Members::of);
        // The call can be denied by others than the part that binds, or allowed in spite of it.
        let allowed = self.allowed;
        // Zero would tell a denied caller to come again at once.
        let retry_after_ms = if binding.is_some() { members.retry_after_ms } else { allowed.then_some(0) };
        let statuses =
            self.parts.iter().map(|part| StatusJson { members: Members::of(part), shadow: part.shadow }).collect();
        let decided_at_us = self.decided_at.map(Timestamp::as_micros);
        let members = Members { allowed, retry_after_ms, ..members };
        AnswerJson { members, split: self.split, decided_at_us, statuses }.serialize(serializer)
    }
}

/// In the order of their importance.
#[derive(Serialize)]
struct Members<'a> {
    allowed: bool,
    source: &'a str,
    policy: Option<&'a str>,
    limit: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
}

#[derive(Serialize)]
struct StatusJson<'a> {
    #[serde(flatten)]
    members: Members<'a>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    shadow: bool,
}

#[derive(Serialize)]
struct AnswerJson<'a> {
    #[serde(flatten)]
    members: Members<'a>,
    split: bool,
    decided_at_us: Option<u64>,
    statuses: Vec<StatusJson<'a>>,
}

impl<'a> Members<'a> {
    /// Of an answer in which no part binds.
    const NONE: Self = Self {
        allowed: true,
        source: NO_POLICY,
        policy: None,
        limit: None,
        remaining: None,
        retry_after_ms: None,
        reset_after_ms: 0,
    };

    fn of(part: &Part<'a>) -> Self {
        let status = part.status;
        // Its status has to hold some number, which means nothing.
        let limited = part.source != Source::Unlimited;
        Self {
            allowed: status.allowed(),
            source: part.source.name(),
            policy: Some(part.policy),
            limit: limited.then(|| status.limit()),
            remaining: limited.then(|| status.remaining()),
            retry_after_ms: status.retry_after().map(millis_up),
            reset_after_ms: millis_up(status.reset_after()),
        }
    }
}

/// The object of a decision over `policies`, one name for each of its statuses, in order.
///
/// ```
/// use tallygate::{Check, Key, Limit, Limiter, MemoryStore};
///
/// let limiter = Limiter::new(MemoryStore::new());
/// let limit: Limit = "5/min".parse()?;
/// let decision = limiter.check_now(Check::new(Key::new("login", "alice")?, &limit))?;
/// let object = tallygate_http::decision_json(&["login"], &decision);
/// assert_eq!(object["allowed"], true);
/// assert_eq!(object["remaining"], 4);
/// assert_eq!(object["statuses"][0]["policy"], "login");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn decision_json(policies: &[&str], decision: &Decision) -> Value {
    debug_assert_eq!(policies.len(), decision.statuses().len(), "one name for each status");
    let part = |(&policy, status)| Part { policy, status, source: decision.source(), shadow: false };
    let parts: Vec<Part<'_>> = policies.iter().zip(decision.statuses()).map(part).collect();
    let answer = Answer {
        allowed: decision.allowed(),
        parts: &parts,
        binding: Some(decision.binding_index()),
        split: decision.split(),
        decided_at: Some(decision.decided_at()),
    };
    answer.to_json()
}

/// Whole milliseconds, rounded up: who waits that long has waited long enough.
///
/// ```
/// use std::time::Duration;
/// use tallygate_http::millis_up;
///
/// assert_eq!(millis_up(Duration::from_micros(1001)), 2);
/// assert_eq!(millis_up(Duration::ZERO), 0);
/// ```
pub fn millis_up(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
