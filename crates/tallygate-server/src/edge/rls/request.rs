//! From Envoy's messages to a question. What a client of the proxy can influence never becomes an error: the proxy would
//! let the request pass.

use std::time::Duration;

use tallygate::call::Verb;
use tallygate::check::CostError;
use tallygate::policy::{Action, Ask, Descriptor};
use tallygate::{Algorithm, Cost, Limit};

use super::UNITS;
use crate::edge::bounds::{MAX_DESCRIPTORS, MAX_ENTRIES, bounded_entry};
use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::question::{About, Question};

/// Why a request is not a question.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unasked {
    /// Only the configuration of the proxy can be the cause: an error, so that somebody sees it.
    Misconfigured(String),
    /// A client of the proxy can be the cause: it must not pass for that.
    TooMuch(String),
}

/// The question of a request.
pub(super) fn read(request: RateLimitRequest) -> Result<Question, Unasked> {
    use Unasked::{Misconfigured, TooMuch};

    let RateLimitRequest { domain, descriptors, hits_addend: hits } = request;
    if domain.is_empty() {
        let remedy = "set `domain` in the proxy's rate limit filter to a domain of your policy files";
        return Err(Misconfigured(format!("the domain is empty: {remedy}")));
    }
    match descriptors.len() {
        0 => return Err(Misconfigured(format!("there are no descriptors: send 1 to {MAX_DESCRIPTORS}"))),
        1..=MAX_DESCRIPTORS => {}
        count => return Err(TooMuch(format!("there are {count} descriptors: send 1 to {MAX_DESCRIPTORS}"))),
    }
    let ask = |(at, written): (usize, RateLimitDescriptor)| {
        let count = written.entries.len();
        if count > MAX_ENTRIES {
            return Err(TooMuch(format!("descriptor {at} has {count} entries: at most {MAX_ENTRIES} are allowed")));
        }
        let units = "use SECOND, MINUTE, HOUR, DAY, MONTH or YEAR";
        let no_unit = || Misconfigured(format!("the limit of descriptor {at} has no unit: {units}"));
        let limit = written.limit.map(|limit| requested(limit).ok_or_else(no_unit)).transpose()?;
        let action = action(written.hits_addend, written.is_negative_hits, hits);
        let descriptor =
            written.entries.into_iter().map(|entry| bounded_entry(entry.key, entry.value)).collect::<Descriptor>();
        let ask = Ask::new(descriptor, action);
        Ok(match limit {
            Some(limit) => ask.with_limit(limit).expect("it is a limit already"),
            None => ask,
        })
    };
    let asks = descriptors.into_iter().enumerate().map(ask).collect::<Result<_, Unasked>>()?;
    Ok(Question {
        verb: Verb::Check,
        about: About::Policies { domain, asks },
        up_to: None,
        reserving: None,
        request_id: None,
    })
}

/// The units of a descriptor, or else those of the request, where zero means one.
fn action(own: Option<u64>, negative: bool, of_request: u32) -> Action {
    let units = own.unwrap_or_else(|| u64::from(of_request.max(1)));
    match (Cost::new(units), negative) {
        (Ok(cost), false) => Action::new(Verb::Check, cost),
        (Ok(cost), true) => Action::new(Verb::Refund, cost),
        (Err(CostError::TooLarge { .. }), false) => Action::new(Verb::Check, Cost::ABOVE_EVERY_LIMIT),
        (Err(CostError::TooLarge { .. }), true) => Action::new(Verb::Refund, Cost::MAX),
        (Err(_), _) => Action::new(Verb::Peek, Cost::ONE),
    }
}

/// The limit that a request carries: a fixed window, as in the files of envoyproxy/ratelimit.
fn requested(written: RateLimitOverride) -> Option<Limit> {
    let amount = u64::from(written.requests_per_unit).min(Limit::MAX_AMOUNT);
    let unit = UNITS.iter().find(|(unit, _)| i32::from(*unit) == written.unit && *unit != Unit::Week);
    let seconds = match unit {
        Some((_, seconds)) => *seconds,
        // A zero limit needs no unit.
        None if amount == 0 => 1,
        None => return None,
    };
    let limit = Limit::builder(amount, Duration::from_secs(seconds)).algorithm(Algorithm::FixedWindow).build();
    Some(limit.expect("the amount is capped and the window at most a year"))
}
