//! A `RateLimitResponse` in protobuf's JSON: names in camelCase, defaults left out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost_types::value::Kind;
use prost_types::{Duration, Struct};
use serde_json::{Value, json};

use crate::proto::envoy::config::core::v3::HeaderValue;
use crate::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::{DescriptorStatus, RateLimit};

/// The object of an answer. What this server never says, such as headers for the upstream, has no words here.
pub(super) fn write(response: &RateLimitResponse) -> Value {
    message(json!({
        "overallCode": response.overall_code().as_str_name(),
        "statuses": response.statuses.iter().map(status).collect::<Vec<_>>(),
        "responseHeadersToAdd": response.response_headers_to_add.iter().map(header).collect::<Vec<_>>(),
        "rawBody": STANDARD.encode(&response.raw_body),
        "dynamicMetadata": response.dynamic_metadata.as_ref().map(structure),
    }))
}

fn status(status: &DescriptorStatus) -> Value {
    message(json!({
        "code": status.code().as_str_name(),
        "currentLimit": status.current_limit.as_ref().map(limit),
        "limitRemaining": status.limit_remaining,
        "durationUntilReset": status.duration_until_reset.as_ref().map(duration),
    }))
}

fn limit(limit: &RateLimit) -> Value {
    let unit = (limit.unit != 0).then(|| limit.unit().as_str_name());
    message(json!({ "name": limit.name, "requestsPerUnit": limit.requests_per_unit, "unit": unit }))
}

fn header(header: &HeaderValue) -> Value {
    message(json!({ "key": header.key, "value": header.value }))
}

/// Without the members that have their default.
fn message(mut members: Value) -> Value {
    if let Value::Object(members) = &mut members {
        members.retain(|_, member| ![json!(null), json!(""), json!(0), json!([])].contains(member));
    }
    members
}

/// Seconds, with none, three, six or nine digits behind the point. Never negative here.
fn duration(span: &Duration) -> String {
    let (seconds, nanos) = (span.seconds, span.nanos);
    match nanos {
        0 => format!("{seconds}s"),
        _ if nanos % 1_000_000 == 0 => format!("{seconds}.{:03}s", nanos / 1_000_000),
        _ if nanos % 1000 == 0 => format!("{seconds}.{:06}s", nanos / 1000),
        _ => format!("{seconds}.{nanos:09}s"),
    }
}

fn structure(from: &Struct) -> Value {
    Value::Object(from.fields.iter().map(|(key, value)| (key.clone(), any(value))).collect())
}

fn any(value: &prost_types::Value) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(flag)) => (*flag).into(),
        Some(Kind::NumberValue(number)) => number_value(*number),
        Some(Kind::StringValue(text)) => text.as_str().into(),
        Some(Kind::ListValue(list)) => list.values.iter().map(any).collect(),
        Some(Kind::StructValue(object)) => structure(object),
    }
}

/// A whole number is written without a point.
#[expect(clippy::cast_possible_truncation, reason = "looked at just before")]
fn number_value(number: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= EXACT { (number as i64).into() } else { number.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
    use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;

    #[test]
    fn durations_have_as_many_digits_as_they_need() {
        let written = |seconds, nanos| duration(&Duration { seconds, nanos });
        assert_eq!(written(3, 0), "3s");
        assert_eq!(written(3, 500_000_000), "3.500s");
        assert_eq!(written(0, 1_000_000), "0.001s");
        assert_eq!(written(0, 1000), "0.000001s");
        assert_eq!(written(59, 999_999_999), "59.999999999s");
    }

    #[test]
    fn defaults_are_left_out() {
        let limit = RateLimit { name: "x".to_owned(), requests_per_unit: 0, unit: Unit::Week.into() };
        let statuses = vec![
            DescriptorStatus { code: Code::OverLimit.into(), current_limit: Some(limit), ..Default::default() },
            DescriptorStatus { code: Code::Ok.into(), limit_remaining: u32::MAX, ..Default::default() },
        ];
        let numbers = [("n", 2.0), ("f", 0.5)].map(|(name, value)| (name.to_owned(), value.into()));
        let full = RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses,
            response_headers_to_add: vec![HeaderValue { key: "a".into(), value: "b".into(), raw_value: Vec::new() }],
            raw_body: vec![0xff, 0xfe, 0x00],
            dynamic_metadata: Some(Struct { fields: numbers.into() }),
            ..Default::default()
        };
        assert_eq!(
            write(&full),
            json!({
                "overallCode": "OVER_LIMIT",
                "statuses": [
                    {"code": "OVER_LIMIT", "currentLimit": {"name": "x", "unit": "WEEK"}},
                    {"code": "OK", "limitRemaining": 4_294_967_295_u32},
                ],
                "responseHeadersToAdd": [{"key": "a", "value": "b"}],
                "rawBody": "//4A",
                "dynamicMetadata": {"f": 0.5, "n": 2},
            })
        );
        let least = RateLimitResponse { overall_code: Code::Ok.into(), ..Default::default() };
        assert_eq!(write(&least), json!({"overallCode": "OK"}));
    }
}
