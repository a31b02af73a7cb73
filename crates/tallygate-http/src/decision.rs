//! The decision as JSON: what the server answers and the command line prints.

use std::ops::Not;
use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::Value;
use tallygate::call::{Effect, Verb};
use tallygate::clock::Timestamp;
use tallygate::decision::Source;
use tallygate::policy::Ruling;
use tallygate::{Decision, Status};

use crate::SOON;

/// The `source` of an answer if no policy applied.
pub const NO_POLICY: &str = "no_policy";

/// What one policy answered. Without a limit the numbers are null; `retry_after_ms` is null if waiting does not help. `held` is what
/// open holds could still give back of what is used; `debt`, if there is any, what is used beyond the capacity.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[non_exhaustive]
pub struct Part<'a> {
    allowed: bool,
    source: &'static str,
    policy: Option<&'a str>,
    limit: Option<u64>,
    remaining: Option<u64>,
    held: Option<u64>,
    #[serde(skip_serializing_if = "is_zero")]
    debt: u64,
    #[serde(skip_serializing_if = "Not::not")]
    holds_full: bool,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    /// When the window of a calendar ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    reset_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "Not::not")]
    shadow: bool,
    /// What each of several payers of the policy has paid and has left.
    #[serde(skip_serializing_if = "Option::is_none")]
    payers: Option<Payers<'a>>,
    #[serde(skip)]
    status: Option<Status>,
}

/// The payers of a policy as a list: what each has paid or was given back, and what it has left.
#[derive(Debug, Clone, Copy)]
pub struct Payers<'a>(&'a Ruling);

impl<'a> Payers<'a> {
    /// Those of the policy of a ruling, if it has several.
    pub fn of(ruling: &'a Ruling) -> Option<Self> {
        (ruling.payers().len() > 0).then_some(Self(ruling))
    }
}

/// `refunded` is there if the call gives back.
#[derive(Serialize)]
struct Payer<'a> {
    name: &'a str,
    paid: u64,
    #[serde(skip_serializing_if = "is_zero")]
    refunded: u64,
    limit: u64,
    remaining: u64,
    #[serde(skip_serializing_if = "is_zero")]
    debt: u64,
}

impl Serialize for Payers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let verb = self.0.action().verb;
        let moved = |of: bool, status: &Status| if of { status.units() } else { 0 };
        serializer.collect_seq(self.0.payers().map(|(name, payer)| {
            let status = payer.status();
            Payer {
                name,
                paid: moved(verb.effect() == Effect::Charges, status),
                refunded: moved(verb == Verb::Refund, status),
                limit: status.limit(),
                remaining: status.remaining(),
                debt: status.debt(),
            }
        }))
    }
}

impl<'a> Part<'a> {
    /// What `policy` answered, and where the answer came from. A part in shadow mode is marked as `shadow`, and never binds.
    pub fn new(policy: &'a str, status: &Status, source: Source, shadow: bool) -> Self {
        // The numbers of an unlimited status mean nothing.
        let limited = source != Source::Unlimited;
        // Nobody knows the wait: it is the same as in `Retry-After`.
        let failed_closed = Some(SOON).filter(|_| source.is_unavailable());
        Self {
            allowed: status.allowed(),
            source: source.name(),
            policy: Some(policy),
            limit: limited.then(|| status.limit()),
            remaining: limited.then(|| status.remaining()),
            held: limited.then(|| status.held()),
            debt: if limited { status.debt() } else { 0 },
            holds_full: status.holds_full(),
            retry_after_ms: status.retry_after().or(failed_closed).map(millis_up),
            reset_after_ms: millis_up(status.reset_after()),
            reset_at_ms: None,
            shadow,
            payers: None,
            // A repeated denial is of an earlier instant than its waits.
            status: (source != Source::DenyCache).then_some(*status),
        }
    }

    /// The same with what each payer of the policy has paid, if there are several.
    #[must_use]
    pub fn paid_by(self, ruling: &'a Ruling) -> Self {
        Self { payers: Payers::of(ruling), ..self }
    }

    /// The same part of a decision that was made at `at`.
    fn decided(self, at: Option<Timestamp>) -> Self {
        let reset_at = at.and_then(|at| self.status?.reset_at(at));
        Self { reset_at_ms: reset_at.map(|at| at.as_micros().div_ceil(1000)), ..self }
    }

    /// The answer if no policy applied.
    fn none(allowed: bool) -> Self {
        // Zero would tell a denied caller to retry at once.
        Self { allowed, source: NO_POLICY, retry_after_ms: allowed.then_some(0), ..Self::default() }
    }
}

fn is_zero(units: &u64) -> bool {
    *units == 0
}

/// The answer to a call, as JSON.
///
/// The object starts with the numbers of the part that binds, and lists every part in `statuses` with the same members.
/// If no limit binds, `limit` and `remaining` are null; `source` is `unlimited` if an unlimited policy applied, and
/// [`NO_POLICY`] if no policy applied or all are in shadow mode.
///
/// ```
/// use tallygate_http::Answer;
///
/// let unlimited = Answer::new(true, Vec::new(), None);
/// assert_eq!(
///     serde_json::to_string(&unlimited)?,
///     r#"{"allowed":true,"source":"no_policy","policy":null,"limit":null,"remaining":null,"#.to_owned()
///         + r#""held":null,"retry_after_ms":0,"reset_after_ms":0,"split":false,"decided_at_us":null,"statuses":[]}"#
/// );
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Answer<'a> {
    #[serde(flatten)]
    binding: Part<'a>,
    /// For a call that takes what is left: how many units it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    granted: Option<u64>,
    /// Whether this is the answer of an earlier call with the same id.
    #[serde(skip_serializing_if = "Not::not")]
    replayed: bool,
    split: bool,
    decided_at_us: Option<u64>,
    statuses: Vec<Part<'a>>,
}

impl<'a> Answer<'a> {
    /// Whether a call may proceed, what each policy answered, and which part binds.
    pub fn new(allowed: bool, parts: Vec<Part<'a>>, binding: Option<usize>) -> Self {
        let binding = binding.and_then(|index| parts.get(index)).filter(|part| !part.shadow);
        let unlimited = |part: &&Part<'_>| allowed && !part.shadow && part.source == Source::Unlimited.name();
        let binding = binding.or_else(|| parts.iter().find(unlimited));
        // Another part may deny the call, or the call may be allowed although this part is used up.
        let binding = binding.map_or(Part::none(allowed), |part| Part { allowed, ..*part });
        Self { binding, granted: None, replayed: false, split: false, decided_at_us: None, statuses: parts }
    }

    /// When it was decided, on the store's clock, and whether the parts were charged one after the other.
    #[must_use]
    pub fn decided(self, at: Option<Timestamp>, split: bool) -> Self {
        let statuses = self.statuses.into_iter().map(|part| part.decided(at)).collect();
        let (binding, decided_at_us) = (self.binding.decided(at), at.map(Timestamp::as_micros));
        Self { binding, split, decided_at_us, statuses, ..self }
    }

    /// How many units a call takes that takes what is left.
    #[must_use]
    pub fn granted(self, units: Option<u64>) -> Self {
        Self { granted: units, ..self }
    }

    /// Whether a call with an id was repeated: then everything is as of the first.
    #[must_use]
    pub fn replayed(self, replayed: bool) -> Self {
        Self { replayed, ..self }
    }

    /// The part that binds.
    pub fn binding(&self) -> &Part<'a> {
        &self.binding
    }

    /// The object as a value.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("its members are numbers and strings")
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
    decision_answer(policies, decision).to_json()
}

/// The same as an object that serializes to JSON, its members in order.
pub fn decision_answer<'p>(policies: &[&'p str], decision: &Decision) -> Answer<'p> {
    debug_assert_eq!(policies.len(), decision.statuses().len(), "one name for each status");
    let part = |(&policy, status)| Part::new(policy, status, decision.source(), false);
    let parts = policies.iter().zip(decision.statuses()).map(part).collect();
    let answer = Answer::new(decision.allowed(), parts, Some(decision.binding_index()));
    answer.decided(decision.decided_at(), decision.split()).granted(decision.granted()).replayed(decision.replayed())
}

/// Whole milliseconds, rounded up, so that a wait is never too short.
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
