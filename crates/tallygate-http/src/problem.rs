//! Bodies of refusals: RFC 9457, `application/problem+json`.

use std::time::Duration;

use http::StatusCode;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::headers::seconds_up;

/// Why a request was refused, for programs and for people.
///
/// ```
/// use std::time::Duration;
/// use tallygate_http::Problem;
///
/// let problem = Problem::quota_exceeded(&["login"], Some(Duration::from_millis(11_500)));
/// assert_eq!(problem.status(), 429);
/// let body = problem.to_json();
/// assert_eq!(body["violated-policies"], serde_json::json!(["login"]));
/// assert_eq!(body["detail"], "The quota of `login` is used up; retry in 12 s.");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    #[serde(serialize_with = "status_number")]
    status: StatusCode,
    detail: String,
    #[serde(rename = "violated-policies", skip_serializing_if = "Option::is_none")]
    violated: Option<Vec<String>>,
}

impl Problem {
    /// The value of `Content-Type`.
    pub const CONTENT_TYPE: &'static str = "application/problem+json";

    /// 429: the caller has used up its quota of these policies. No wait means that none will do.
    pub fn quota_exceeded(violated: &[&str], retry_after: Option<Duration>) -> Self {
        Self {
            kind: "https://iana.org/assignments/http-problem-types#quota-exceeded",
            title: "Request cannot be satisfied as assigned quota has been exceeded",
            status: StatusCode::TOO_MANY_REQUESTS,
            detail: match retry_after {
                Some(wait) => quota_of(violated, &[" is used up", &retry_in(wait), "."]),
                None => quota_of(violated, &[" does not allow this request, however long it waits."]),
            },
            violated: Some(violated.iter().map(ToString::to_string).collect()),
        }
    }

    /// 503: the caller did nothing wrong, these policies just cannot be evaluated now.
    pub fn reduced_capacity(violated: &[&str], retry_after: Option<Duration>) -> Self {
        let wait = retry_after.map(retry_in).unwrap_or_default();
        Self {
            kind: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            title: "Request cannot be satisfied due to temporary server capacity constraints",
            status: StatusCode::SERVICE_UNAVAILABLE,
            detail: quota_of(violated, &[" cannot be checked at the moment", &wait, "."]),
            violated: Some(violated.iter().map(ToString::to_string).collect()),
        }
    }

    /// 400: the request makes no sense, and `detail` says what would.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::of_status(StatusCode::BAD_REQUEST, detail)
    }

    /// Nothing more than the status says, titled with its phrase.
    ///
    /// ```
    /// use http::StatusCode;
    /// use tallygate_http::Problem;
    ///
    /// let problem = Problem::of_status(StatusCode::NOT_FOUND, "There is no domain `web`.");
    /// assert_eq!(
    ///     problem.to_text(),
    ///     r#"{"type":"about:blank","title":"Not Found","status":404,"detail":"There is no domain `web`."}"#
    /// );
    /// ```
    pub fn of_status(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        Self { kind: "about:blank", title, status, detail: detail.into(), violated: None }
    }

    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// What is wrong with this very request.
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

fn status_number<S: Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

/// The number that `Retry-After` names.
fn retry_in(wait: Duration) -> String {
    format!("; retry in {} s", seconds_up(wait).max(1))
}

/// A sentence about the quota of these policies, in one allocation: those who flood a service are told it again and again.
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
                + r#""detail":"The quota of `burst`, `daily` is used up; retry in 1 s.","#
                + r#""violated-policies":["burst","daily"]}"#
        );
    }

    #[test]
    fn no_wait_is_promised_where_none_will_do() {
        let never = Problem::quota_exceeded(&["upload"], None);
        assert_eq!(never.detail(), "The quota of `upload` does not allow this request, however long it waits.");
        let down = Problem::reduced_capacity(&["upload"], None);
        assert_eq!(down.detail(), "The quota of `upload` cannot be checked at the moment.");
        assert_eq!(down.status(), 503);
    }

    #[test]
    fn text_of_a_caller_stays_inside_its_string() {
        let body = Problem::bad_request("no `\"},{\u{0}`").to_text();
        let back: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(back["detail"], "no `\"},{\u{0}`");
        assert_eq!(back["status"], 400);
    }
}
