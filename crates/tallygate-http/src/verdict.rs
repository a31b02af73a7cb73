//! Verdicts as HTTP: headers, problems, JSON.

use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use tallygate::Status;
use tallygate::decision::Source;
use tallygate::policy::{Mode, Outcome, Policy, Ruling, Verdict};

use crate::headers::Constant;
use crate::{Answer, Dialect, Headers, Line, NO_POLICY, Part, Problem};

/// The wait to report if a policy fails closed, or a call was shed: nobody knows when the store is back.
pub const SOON: Duration = Duration::from_secs(1);

/// The header that says where an answer came from.
pub const SOURCE_HEADER: HeaderName = HeaderName::from_static("x-tallygate-source");

/// Where a verdict came from, as in the member `source` of its JSON.
pub fn verdict_source(verdict: &Verdict) -> &'static str {
    let unlimited = || verdict.rulings().iter().find(|ruling| ruling.mode() != Mode::Shadow);
    verdict.binding().or_else(unlimited).map_or(NO_POLICY, |ruling| ruling.source().name())
}

/// The problem of a refused call.
pub fn verdict_problem(verdict: &Verdict) -> Problem {
    let refuses = |ruling: &&Ruling| ruling.mode() != Mode::Shadow && !ruling.status().allowed();
    let refusing = || verdict.rulings().iter().filter(refuses);
    let mut violated: Vec<&str> = refusing().map(|ruling| ruling.policy().name()).collect();
    violated.dedup();
    if verdict.outcome() == Outcome::Unavailable {
        return Problem::reduced_capacity(&violated, Some(SOON));
    }
    if refusing().any(|ruling| ruling.source() == Source::TooMany) {
        return Problem::too_many_limits(&violated);
    }
    let binding = verdict.binding();
    let wait = binding.and_then(|ruling| ruling.status().retry_after());
    if let Some(binding) = binding.filter(|ruling| ruling.status().holds_full()) {
        return Problem::holds_full(binding.policy().name(), wait);
    }
    match (binding, wait) {
        (Some(binding), Some(wait)) if refusing().any(|ruling| ruling.status().remaining() > 0) => {
            let left = refusing().map(|ruling| (ruling.policy().name(), ruling.status().remaining()));
            let mut left: Vec<(&str, u64)> = left.collect();
            left.dedup_by_key(|(policy, _)| *policy);
            Problem::cost_exceeds_remaining(binding.action().cost.get(), &left, wait)
        }
        _ => Problem::quota_exceeded(&violated, wait),
    }
}

/// Sets the headers of a verdict on a response. Policies in shadow mode are left out, and so are limits that the store did
/// not answer for: there are no numbers to report.
pub fn verdict_headers(verdict: &Verdict, dialect: Dialect, to: &mut HeaderMap) {
    VerdictHeaders { dialect, constants: Vec::new() }.apply(verdict, to);
}

/// The same for many verdicts under the same policies: the constant parts are rendered once.
#[derive(Debug, Clone, Default)]
pub struct VerdictHeaders {
    dialect: Dialect,
    constants: Vec<(Arc<Policy>, Constant)>,
}

impl VerdictHeaders {
    /// For verdicts under a few `policies`.
    pub fn new<'p>(dialect: Dialect, policies: impl IntoIterator<Item = &'p Arc<Policy>>) -> Self {
        let constant = |policy: &'p Arc<Policy>| {
            Some((Arc::clone(policy), Constant::new(dialect, policy.name(), policy.limit()?)?))
        };
        Self { dialect, constants: policies.into_iter().filter_map(constant).collect() }
    }

    /// The dialect.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Sets them on a response.
    pub fn apply(&self, verdict: &Verdict, to: &mut HeaderMap) {
        let (dialect, unix_now) = (self.dialect, self.dialect.unix_now());
        let outcome = verdict.outcome();
        let allowed = outcome == Outcome::Allowed;
        if dialect == Dialect::Off && allowed {
            return;
        }
        if let [ruling] = verdict.rulings() {
            let line = line(ruling);
            let binding = line.map(|_| 0);
            let headers = Headers { dialect, lines: line.as_slice(), binding, allowed, unix_now };
            let own = ruling.limit().zip(ruling.policy().limit()).is_some_and(|(held, own)| std::ptr::eq(held, own));
            // An override has other numbers.
            headers.apply_with(self.constant(ruling.policy()).filter(|_| own), to);
        } else {
            let known = verdict.rulings().iter().filter_map(|ruling| Some((ruling, line(ruling)?)));
            let (rulings, lines): (Vec<&Ruling>, Vec<Line<'_>>) = known.unzip();
            let binds = |binding: &Ruling| rulings.iter().position(|one| std::ptr::eq(*one, binding));
            let binding = verdict.binding().and_then(binds);
            Headers { dialect, lines: &lines, binding, allowed, unix_now }.apply(to);
        }
        if outcome == Outcome::Unavailable {
            to.insert(RETRY_AFTER, HeaderValue::from(SOON.as_secs()));
        }
    }

    /// The same for a call that one policy allowed by its own limit, if only the status is known.
    pub fn apply_allowed(&self, policy: &Arc<Policy>, status: &Status, to: &mut HeaderMap) {
        let (dialect, unix_now) = (self.dialect, self.dialect.unix_now());
        let Some(limit) = policy.limit().filter(|_| dialect != Dialect::Off) else { return };
        let lines = &[Line { policy: policy.name(), limit, status }];
        let headers = Headers { dialect, lines, binding: Some(0), allowed: true, unix_now };
        headers.apply_with(self.constant(policy), to);
    }

    /// The constant part of a policy.
    #[inline]
    fn constant(&self, policy: &Arc<Policy>) -> Option<&Constant> {
        self.constants.iter().find(|(own, _)| Arc::ptr_eq(own, policy)).map(|(_, constant)| constant)
    }
}

/// What a ruling adds to the headers, if anything.
fn line(ruling: &Ruling) -> Option<Line<'_>> {
    if ruling.mode() == Mode::Shadow || ruling.source().is_without_numbers() {
        return None;
    }
    Some(Line { policy: ruling.policy().name(), limit: ruling.limit()?, status: ruling.status() })
}

/// The verdict as a JSON value.
pub fn verdict_json(verdict: &Verdict) -> Value {
    verdict_answer(verdict).to_json()
}

/// The verdict as an object that serializes to JSON.
pub fn verdict_answer(verdict: &Verdict) -> Answer<'_> {
    let parts = verdict.rulings().iter().map(|ruling| {
        Part::new(ruling.policy().name(), ruling.status(), ruling.source(), ruling.mode() == Mode::Shadow)
            .paid_by(ruling)
    });
    let parts = parts.collect();
    let binds = |binding: &Ruling| verdict.rulings().iter().position(|one| std::ptr::eq(one, binding));
    let answer = Answer::new(verdict.allowed(), parts, verdict.binding().and_then(binds));
    answer.decided(verdict.decided_at(), verdict.split()).granted(verdict.granted()).replayed(verdict.replayed())
}
