//! A `RateLimitResponse` in protobuf's JSON: names in camelCase, defaults left out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::proto::envoy::config::core::v3::HeaderValue;
use crate::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::{DescriptorStatus, RateLimit};

/// The response as an object. Fields that this server never sets are left out.
pub(super) fn write(response: &RateLimitResponse, metadata: Value) -> Value {
    message(json!({
        "overallCode": response.overall_code().as_str_name(),
        "statuses": response.statuses.iter().map(status).collect::<Vec<_>>(),
        "responseHeadersToAdd": response.response_headers_to_add.iter().map(header).collect::<Vec<_>>(),
        "rawBody": STANDARD.encode(&response.raw_body),
        "dynamicMetadata": metadata,
    }))
}

fn status(status: &DescriptorStatus) -> Value {
    message(json!({
        "code": status.code().as_str_name(),
        "currentLimit": status.current_limit.as_ref().map(limit),
        "limitRemaining": status.limit_remaining,
        "durationUntilReset": status.duration_until_reset.as_ref().map(ToString::to_string),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
    use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;

    #[test]
    fn durations_have_as_many_digits_as_they_need() {
        let written = |seconds, nanos| {
            let span = prost_types::Duration { seconds, nanos };
            status(&DescriptorStatus { duration_until_reset: Some(span), ..Default::default() })["durationUntilReset"]
                .take()
        };
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
        let full = RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses,
            response_headers_to_add: vec![HeaderValue { key: "a".into(), value: "b".into(), raw_value: Vec::new() }],
            raw_body: vec![0xff, 0xfe, 0x00],
            ..Default::default()
        };
        assert_eq!(
            write(&full, json!({"f": 0.5, "n": 2})),
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
        assert_eq!(write(&least, Value::Null), json!({"overallCode": "OK"}));
    }
}
