//! Bodies of refusals: RFC 9457, `application/problem+json`.

use std::time::Duration;

use http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use tallygate::call::Call;
use tallygate::words::words;

use crate::headers::{header_name, seconds_up};

words! {
    /// What went wrong, for programs: the member `code` of a [`Problem`]. Each code belongs to one status.
    #[non_exhaustive]
    pub enum ProblemCode {
        /// 429: a limit does not allow the request now, or ever.
        QuotaExceeded = "quota_exceeded",
        /// 503: the store cannot answer, and the policy fails closed or the call has no policy.
        StoreUnavailable = "store_unavailable",
        /// 503: the server has too much work.
        Overloaded = "overloaded",
        /// 400: the body is not JSON, or not a JSON object.
        InvalidJson = "invalid_json",
        /// 400: a field of the body is missing, unknown or invalid.
        InvalidField = "invalid_field",
        /// 400: a query parameter, or a part of the path, is unknown or invalid.
        InvalidParameter = "invalid_parameter",
        /// 400: the cost is above what a limit can ever hold.
        CostTooLarge = "cost_too_large",
        /// 400: the limit is of concurrency, and can only be reserved.
        OnlyReserved = "only_reserved",
        /// 400: an HTTP/1.1 request without exactly one `Host` header.
        InvalidHost = "invalid_host",
        /// 400: a body with another transfer encoding than `chunked`.
        InvalidTransferEncoding = "invalid_transfer_encoding",
        /// 401: the token is missing or wrong.
        Unauthorized = "unauthorized",
        /// 403: the server has no token, or the token lacks a scope.
        Forbidden = "forbidden",
        /// 403: a web page of another site asks.
        OriginNotAllowed = "origin_not_allowed",
        /// 404: no policy file has this domain.
        UnknownDomain = "unknown_domain",
        /// 404: the domain has no such policy.
        UnknownPolicy = "unknown_policy",
        /// 404: there is no such override.
        UnknownOverride = "unknown_override",
        /// 404: nothing is served at this path.
        UnknownPath = "unknown_path",
        /// 405: the path does not take this method.
        MethodNotAllowed = "method_not_allowed",
        /// 408: the body did not arrive in time.
        BodyTimeout = "body_timeout",
        /// 409: the request id was used for another call.
        RequestIdConflict = "request_id_conflict",
        /// 409: a counter would overflow, or holds another type of value.
        CounterConflict = "counter_conflict",
        /// 409: the hold was settled or cancelled, has expired, or is no longer known.
        HoldEnded = "hold_ended",
        /// 409: the hold was renewed since, and has another token.
        HoldRenewed = "hold_renewed",
        /// 409: more was used than is held, and the policy refuses to charge the rest.
        OverrunRefused = "overrun_refused",
        /// 409: one number of units was given for a hold of different numbers.
        DifferentUnits = "different_units",
        /// 409: the overrides were changed by somebody else meanwhile.
        OverridesConflict = "overrides_conflict",
        /// 409: there are as many overrides as a store keeps.
        TooManyOverrides = "too_many_overrides",
        /// 409: the new policies or certificates are invalid; the old ones stay in force.
        ReloadRefused = "reload_refused",
        /// 413: the body is too large.
        BodyTooLarge = "body_too_large",
        /// 415: the body is not declared as JSON, or is compressed.
        UnsupportedMediaType = "unsupported_media_type",
        /// 421: forward-auth was called by a peer that is not a trusted proxy.
        UntrustedProxy = "untrusted_proxy",
        /// 421: the name in `Host` is not one of this listener.
        HostNotAllowed = "host_not_allowed",
        /// 429: too many wrong tokens came from this address.
        TooManyWrongTokens = "too_many_wrong_tokens",
        /// 431: the request has too many header fields.
        TooManyHeaders = "too_many_headers",
        /// 500: a bug in the server.
        Internal = "internal",
        /// 507: the embedded store has no room for another counter.
        StoreFull = "store_full",
        /// 504: the decision took too long.
        DecisionTimeout = "decision_timeout",
    }
}

impl ProblemCode {
    /// The status of a response with this code.
    ///
    /// ```
    /// use tallygate_http::ProblemCode;
    ///
    /// assert_eq!(ProblemCode::UnknownDomain.status(), 404);
    /// ```
    pub fn status(self) -> StatusCode {
        match self {
            Self::InvalidJson
            | Self::InvalidField
            | Self::InvalidParameter
            | Self::CostTooLarge
            | Self::OnlyReserved
            | Self::InvalidHost
            | Self::InvalidTransferEncoding => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden | Self::OriginNotAllowed => StatusCode::FORBIDDEN,
            Self::UnknownDomain | Self::UnknownPolicy | Self::UnknownOverride | Self::UnknownPath => {
                StatusCode::NOT_FOUND
            }
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::RequestIdConflict
            | Self::CounterConflict
            | Self::HoldEnded
            | Self::HoldRenewed
            | Self::OverrunRefused
            | Self::DifferentUnits
            | Self::OverridesConflict
            | Self::TooManyOverrides
            | Self::ReloadRefused => StatusCode::CONFLICT,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::UntrustedProxy | Self::HostNotAllowed => StatusCode::MISDIRECTED_REQUEST,
            Self::QuotaExceeded | Self::TooManyWrongTokens => StatusCode::TOO_MANY_REQUESTS,
            Self::TooManyHeaders => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::StoreUnavailable | Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Self::StoreFull => StatusCode::INSUFFICIENT_STORAGE,
            Self::DecisionTimeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

/// Why a request was refused, for programs and for people.
///
/// ```
/// use std::time::Duration;
/// use tallygate_http::Problem;
///
/// let problem = Problem::quota_exceeded(&["login"], Some(Duration::from_millis(11_500)));
/// assert_eq!(problem.status(), 429);
/// let body = problem.to_json();
/// assert_eq!(body["code"], "quota_exceeded");
/// assert_eq!(body["violated-policies"], serde_json::json!(["login"]));
/// assert_eq!(body["detail"], "The quota of `login` is used up; retry in 12 s.");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(serialize_with = "code_name")]
    code: ProblemCode,
    detail: String,
    #[serde(rename = "violated-policies", skip_serializing_if = "Option::is_none")]
    violated: Option<Vec<String>>,
}

impl Problem {
    /// The value of `Content-Type`.
    pub const CONTENT_TYPE: &'static str = "application/problem+json";

    /// A problem that its status describes: `type` is `about:blank`.
    ///
    /// ```
    /// use tallygate_http::{Problem, ProblemCode};
    ///
    /// let problem = Problem::new(ProblemCode::UnknownDomain, "There is no domain `web`.");
    /// assert_eq!(
    ///     problem.to_text(),
    ///     r#"{"type":"about:blank","title":"Not Found","status":404,"code":"unknown_domain","#.to_owned()
    ///         + r#""detail":"There is no domain `web`."}"#
    /// );
    /// ```
    pub fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        let status = code.status();
        let title = status.canonical_reason().unwrap_or("Error");
        let (status, detail) = (Some(status.as_u16()), detail.into());
        Self { kind: "about:blank", title, status, code, detail, violated: None }
    }

    /// 429: the quota of these policies is used up. Without `retry_after`, waiting does not help.
    pub fn quota_exceeded(violated: &[&str], retry_after: Option<Duration>) -> Self {
        let detail = match retry_after {
            Some(wait) => quota_of(violated, &[" is used up", &retry_in(wait), "."]),
            None => quota_of(violated, &[" does not allow this request, however long it waits."]),
        };
        Self::denied(violated.iter().copied(), detail)
    }

    /// 429: each of these policies has so many units left, and the cost does not fit into all of them.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tallygate_http::Problem;
    ///
    /// let problem = Problem::cost_exceeds_remaining(8, &[("uploads", 6)], Duration::from_secs(720));
    /// assert_eq!(problem.detail(), "A cost of 8 does not fit now: `uploads` has 6 left; retry in 720 s.");
    /// ```
    pub fn cost_exceeds_remaining(cost: u64, violated: &[(&str, u64)], retry_after: Duration) -> Self {
        let left: Vec<String> = violated.iter().map(|(policy, left)| format!("`{policy}` has {left} left")).collect();
        let detail = format!("A cost of {cost} does not fit now: {}{}.", left.join(", "), retry_in(retry_after));
        Self::denied(violated.iter().map(|(policy, _)| *policy), detail)
    }

    /// 429: as many units of this policy are held as may be, or as many holds are open. Units may be left.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tallygate_http::Problem;
    ///
    /// let problem = Problem::holds_full("tokens", Some(Duration::from_secs(12)));
    /// assert_eq!(problem.detail(), "The quota of `tokens` has no room for this hold beside those that are open; retry in 12 s.");
    /// ```
    pub fn holds_full(policy: &str, retry_after: Option<Duration>) -> Self {
        let wait = retry_after.map(retry_in).unwrap_or_default();
        let detail = quota_of(&[policy], &[" has no room for this hold beside those that are open", &wait, "."]);
        Self::denied([policy].into_iter(), detail)
    }

    /// 429: more limits apply to the request than one decision has.
    pub fn too_many_limits(violated: &[&str]) -> Self {
        let most = Call::MAX_CHECKS;
        let detail = format!("More than {most} limits apply to this request, the most that one decision has.");
        Self::denied(violated.iter().copied().take(most), detail)
    }

    fn denied<'p>(violated: impl Iterator<Item = &'p str>, detail: String) -> Self {
        Self {
            kind: "https://iana.org/assignments/http-problem-types#quota-exceeded",
            title: "Request cannot be satisfied as assigned quota has been exceeded",
            violated: Some(violated.map(header_name).collect()),
            ..Self::new(ProblemCode::QuotaExceeded, detail)
        }
    }

    /// 503: the store cannot answer, and these policies fail closed.
    pub fn reduced_capacity(violated: &[&str], retry_after: Option<Duration>) -> Self {
        let wait = retry_after.map(retry_in).unwrap_or_default();
        let detail = quota_of(violated, &[" cannot be checked at the moment", &wait, "."]);
        Self {
            kind: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            title: "Request cannot be satisfied due to temporary server capacity constraints",
            violated: Some(violated.iter().copied().map(header_name).collect()),
            ..Self::new(ProblemCode::StoreUnavailable, detail)
        }
    }

    /// The same problem with the member `status` set to what the response really has, or left out (`None`) if a proxy
    /// chooses it. RFC 9457 does not allow the two to differ.
    #[must_use]
    pub fn with_status(self, status: Option<StatusCode>) -> Self {
        Self { status: status.map(|status| status.as_u16()), ..self }
    }

    /// The status that belongs to the code.
    pub fn status(&self) -> StatusCode {
        self.code.status()
    }

    /// What went wrong, for programs.
    pub fn code(&self) -> ProblemCode {
        self.code
    }

    /// What went wrong with this request, for people.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The body as a value.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("its members are numbers and strings")
    }

    /// The body as text.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("its members are numbers and strings")
    }
}

fn code_name<S: serde::Serializer>(code: &ProblemCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(code.name())
}

/// The same number as in `Retry-After`.
fn retry_in(wait: Duration) -> String {
    format!("; retry in {} s", seconds_up(wait).max(1))
}

/// A sentence about the quota of these policies, in one allocation: a flood of calls makes a flood of these.
fn quota_of(names: &[&str], rest: &[&str]) -> String {
    let mut sentence = String::with_capacity(128);
    sentence.push_str("The quota of ");
    if names.is_empty() {
        sentence.push_str("this request");
    }
    for (place, name) in names.iter().enumerate() {
        sentence.push_str(if place == 0 { "`" } else { ", `" });
        sentence.push_str(name);
        sentence.push('`');
    }
    sentence.extend(rest.iter().copied());
    sentence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_names_the_policies_and_the_wait() {
        assert_eq!(
            Problem::quota_exceeded(&["burst", "daily"], Some(Duration::ZERO)).to_text(),
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#.to_owned()
                + r#""title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"#
                + r#""code":"quota_exceeded","detail":"The quota of `burst`, `daily` is used up; retry in 1 s.","#
                + r#""violated-policies":["burst","daily"]}"#
        );
    }

    #[test]
    fn no_wait_is_promised_where_waiting_does_not_help() {
        let never = Problem::quota_exceeded(&["upload"], None);
        assert_eq!(never.detail(), "The quota of `upload` does not allow this request, however long it waits.");
        let down = Problem::reduced_capacity(&["upload"], None);
        assert_eq!(down.detail(), "The quota of `upload` cannot be checked at the moment.");
        assert_eq!(down.status(), 503);
    }

    #[test]
    fn text_of_a_caller_stays_inside_its_string() {
        let body = Problem::new(ProblemCode::InvalidJson, "no `\"},{\u{0}`").to_text();
        let back: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(back["detail"], "no `\"},{\u{0}`");
        assert_eq!(back["status"], 400);
    }

    /// A cost of 8 with 6 of 10 left got the answer that the quota is used up.
    #[test]
    fn a_denial_with_units_left_says_how_many_and_not_that_the_quota_is_used_up() {
        let problem = Problem::cost_exceeds_remaining(8, &[("a", 6), ("b", 0)], Duration::from_millis(1));
        assert_eq!(problem.detail(), "A cost of 8 does not fit now: `a` has 6 left, `b` has 0 left; retry in 1 s.");
        assert_eq!((problem.status(), problem.code()), (StatusCode::TOO_MANY_REQUESTS, ProblemCode::QuotaExceeded));
    }

    /// `RateLimit` said `gr%C3%BCn` and `violated-policies` said `grün`: a client could not match the two.
    #[test]
    fn violated_policies_are_named_as_in_the_headers() {
        let problem = Problem::quota_exceeded(&["grün", "50%", "a\"b"], None);
        assert_eq!(problem.to_json()["violated-policies"], serde_json::json!(["gr%C3%BCn", "50%25", "a\"b"]));
        assert!(problem.detail().contains("`grün`"), "{}", problem.detail());
    }

    /// The body said 429 where the response had another status.
    #[test]
    fn the_status_of_the_body_is_that_of_the_response_or_absent() {
        let problem = Problem::quota_exceeded(&["p"], None);
        assert_eq!(problem.clone().with_status(Some(StatusCode::FORBIDDEN)).to_json()["status"], 403);
        assert_eq!(problem.with_status(None).to_json().get("status"), None);
    }

    #[test]
    fn every_code_has_an_error_status_and_a_title() {
        for code in ProblemCode::ALL {
            let status = code.status();
            assert!(status.is_client_error() || status.is_server_error(), "{code:?}");
            assert!(status.canonical_reason().is_some(), "{code:?}");
        }
    }
}
