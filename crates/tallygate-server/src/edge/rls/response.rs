//! From a verdict to Envoy's messages.

use std::cmp::Reverse;
use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tallygate::Limit;
use tallygate::limit::{Calendar, Period};
use tallygate::policy::{Mode, Outcome, Ruling, Verdict};
use tallygate_http::{Problem, ProblemCode, SOON, seconds_up, verdict_problem};

use super::UNITS;
use crate::app::ReportedHeaders;
use crate::proto::envoy::config::core::v3::HeaderValue as AddedHeader;
use crate::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};

/// The answer to a call of this many descriptors, without metadata.
pub(super) fn write(descriptors: usize, verdict: &Verdict, reported: ReportedHeaders) -> RateLimitResponse {
    let allowed = verdict.outcome() == Outcome::Allowed;
    RateLimitResponse {
        overall_code: if allowed { Code::Ok } else { Code::OverLimit }.into(),
        statuses: (0..descriptors).map(|at| status(shown(verdict.rulings(), at))).collect(),
        response_headers_to_add: headers(verdict, reported, allowed),
        // The proxy chooses the status.
        raw_body: if allowed { Vec::new() } else { verdict_problem(verdict).with_status(None).to_text().into_bytes() },
        ..RateLimitResponse::default()
    }
}

/// The answer to a request of this many descriptors that asks for nothing.
pub(super) fn passed(descriptors: usize) -> RateLimitResponse {
    RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses: vec![ok(); descriptors],
        ..RateLimitResponse::default()
    }
}

/// The status of a descriptor that no policy limits.
pub(super) fn ok() -> DescriptorStatus {
    DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() }
}

/// A refusal that is not a verdict, to a request of this many descriptors.
pub(super) fn over_limit(descriptors: usize, code: ProblemCode, detail: String) -> RateLimitResponse {
    let header = |name: HeaderName, value: &str| AddedHeader {
        key: name.as_str().to_owned(),
        value: value.to_owned(),
        raw_value: Vec::new(),
    };
    let mut headers = vec![header(CONTENT_TYPE, Problem::CONTENT_TYPE)];
    if code.status() == StatusCode::SERVICE_UNAVAILABLE {
        headers.push(header(RETRY_AFTER, &SOON.as_secs().to_string()));
    }
    let status = DescriptorStatus { code: Code::OverLimit.into(), ..DescriptorStatus::default() };
    RateLimitResponse {
        overall_code: Code::OverLimit.into(),
        statuses: vec![status; descriptors],
        response_headers_to_add: headers,
        raw_body: Problem::new(code, detail).with_status(None).to_text().into_bytes(),
        ..RateLimitResponse::default()
    }
}

/// The ruling that a descriptor's status reports: one that can refuse before a shadow, and of those the tightest.
fn shown(rulings: &[Ruling], descriptor: usize) -> Option<&Ruling> {
    let tightness = |ruling: &&Ruling| {
        let rank = match (ruling.limit(), ruling.mode()) {
            (None, _) => 0,
            (Some(_), Mode::Shadow) => 1,
            (Some(_), _) => 2,
        };
        let status = ruling.status();
        let wait = status.retry_after().unwrap_or(Duration::MAX);
        (rank, !status.allowed(), wait, Reverse(status.remaining()))
    };
    // Reversed, because of equals the last wins, and the first should.
    rulings.iter().rev().filter(|ruling| ruling.descriptor() == descriptor).max_by_key(tightness)
}

fn status(ruling: Option<&Ruling>) -> DescriptorStatus {
    let ok = ok();
    let Some(ruling) = ruling else { return ok };
    let Some(limit) = ruling.limit() else { return DescriptorStatus { limit_remaining: u32::MAX, ..ok } };
    let denied = ruling.mode() != Mode::Shadow && !ruling.status().allowed();
    DescriptorStatus {
        code: if denied { Code::OverLimit } else { Code::Ok }.into(),
        current_limit: Some(RateLimit {
            name: ruling.policy().reported_name().to_owned(),
            requests_per_unit: saturated(limit.amount()),
            unit: unit(limit).into(),
        }),
        limit_remaining: saturated(ruling.status().remaining()),
        duration_until_reset: Some(whole_seconds(until_reset(ruling, limit))),
        quota: None,
    }
}

/// How long a denied caller must wait, or else until all units are back. Proxies turn it into `Retry-After`, so it is set
/// also if waiting does not help.
fn until_reset(ruling: &Ruling, limit: &Limit) -> Duration {
    let status = ruling.status();
    match (status.allowed(), status.retry_after()) {
        (true, _) => status.reset_after(),
        (false, Some(wait)) => wait,
        (false, None) if ruling.source().is_unavailable() => SOON,
        (false, None) => limit.window(),
    }
}

/// Rounded up: Envoy drops the fraction, and its client would retry too early.
fn whole_seconds(wait: Duration) -> prost_types::Duration {
    prost_types::Duration { seconds: i64::try_from(seconds_up(wait)).unwrap_or(i64::MAX), nanos: 0 }
}

fn saturated(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The unit of exactly this length, or that of the calendar.
fn unit(limit: &Limit) -> Unit {
    let exact = || UNITS.iter().find(|(_, seconds)| Duration::from_secs(*seconds) == limit.window());
    match limit.calendar().and_then(Calendar::period) {
        Some(Period::Month { .. }) => Unit::Month,
        Some(Period::Year { .. }) => Unit::Year,
        _ => exact().map_or(Unit::Unknown, |(unit, _)| *unit),
    }
}

/// Envoy adds them to every response, so the headers of a refusal are left out of others.
fn headers(verdict: &Verdict, reported: ReportedHeaders, allowed: bool) -> Vec<AddedHeader> {
    let mut headers = HeaderMap::new();
    reported.apply(verdict, &mut headers);
    if allowed {
        headers.remove(RETRY_AFTER);
    } else {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(Problem::CONTENT_TYPE));
    }
    let added = headers.iter().filter_map(|(name, value)| {
        // Envoy ignores `raw_value`.
        let value = value.to_str().ok()?.to_owned();
        Some(AddedHeader { key: name.as_str().to_owned(), value, raw_value: Vec::new() })
    });
    added.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Envoy dropped the fraction, and `x-ratelimit-reset` was a second short.
    #[test]
    fn durations_are_rounded_up_to_whole_seconds() {
        let whole = |wait| (whole_seconds(wait).seconds, whole_seconds(wait).nanos);
        assert_eq!(whole(Duration::from_micros(4_000_001)), (5, 0));
        assert_eq!(whole(Duration::from_nanos(1)), (1, 0));
        assert_eq!(whole(Duration::from_secs(4)), (4, 0));
        assert_eq!(whole(Duration::ZERO), (0, 0));
    }

    #[test]
    fn only_exact_windows_have_a_unit() {
        let unit = |text: &str| unit(&text.parse::<Limit>().unwrap());
        let units = ["1/s", "1/min", "1/h", "1/day", "1/7d", "1/30d", "1/365d"].map(unit);
        use Unit::{Day, Hour, Minute, Month, Second, Week, Year};
        assert_eq!(units, [Second, Minute, Hour, Day, Week, Month, Year]);
        let calendars = ["1/day in UTC", "1/week in UTC", "1/month in UTC", "1/year in UTC"].map(unit);
        assert_eq!(calendars, [Day, Week, Month, Year]);
        for other in ["1/90s", "1/1001ms", "1/2s", "1/31d"] {
            assert_eq!(unit(other), Unit::Unknown, "{other}");
        }
    }
}
