//! What clients of the proxy, its filters and its log get.

use prost_types::value::Kind;
use prost_types::{Struct, Value};
use serde_json::json;

use super::*;

fn field<'s>(of: &'s Struct, name: &str) -> &'s Struct {
    match of.fields.get(name).and_then(|value| value.kind.as_ref()) {
        Some(Kind::StructValue(inner)) => inner,
        other => panic!("{name} is {other:?}"),
    }
}

#[tokio::test]
async fn limits_are_always_in_the_headers_and_a_refusal_only_where_there_is_one() {
    let served = Served::common();
    let asked = [descriptor(&[("path", "/login"), ("user", "alice")])];
    let allowed = served.ask_about(&asked).await;
    assert_eq!(header(&allowed, "ratelimit-policy"), Some(r#""per-user";q=3;w=60, "login";q=1;w=90"#));
    assert!(header(&allowed, "ratelimit").is_some_and(|value| value.contains("login")));
    assert_eq!((header(&allowed, "content-type"), header(&allowed, "retry-after")), (None, None));
    assert!(allowed.raw_body.is_empty());

    let denied = served.ask_about(&asked).await;
    assert_eq!(denied.overall_code(), Code::OverLimit);
    assert!(header(&denied, "ratelimit-policy").is_some());
    assert_eq!(header(&denied, "content-type"), Some("application/problem+json"));
    let wait = denied.statuses[0].duration_until_reset.unwrap();
    assert_eq!(header(&denied, "retry-after"), Some(wait.seconds.to_string().as_str()));
    let body = problem(&denied);
    assert_eq!((&body["code"], &body["violated-policies"]), (&json!("quota_exceeded"), &json!(["login"])));
    assert_eq!(body.get("status"), None, "the proxy chooses the status (`rate_limited_status`)");
    assert!(denied.request_headers_to_add.is_empty());
}

#[tokio::test]
async fn what_can_never_pass_has_no_wait() {
    let served = Served::common();
    let zero = served.ask_about(&[descriptor(&[("role", "nobody")])]).await;
    assert_eq!((codes(&zero), header(&zero, "retry-after")), (vec![Code::OverLimit; 2], None));
    assert!(zero.statuses[0].duration_until_reset.unwrap().seconds >= 1, "Envoy would write `retry-after: 0`");
    assert!(problem(&zero)["detail"].as_str().unwrap().contains("however long"));
}

#[tokio::test]
async fn metadata_is_of_the_policies_that_passed() {
    let served = Served::common();
    let both = [descriptor(&[("paid", "x")]), descriptor(&[("free", "x")])];
    let tier = |response: &RateLimitResponse| {
        let metadata = response.dynamic_metadata.as_ref().unwrap();
        assert_eq!(metadata.fields["domain"], Value::from("edge"));
        let joined = metadata.fields.contains_key("metadata").then(|| field(metadata, "metadata").clone());
        joined.map(|joined| joined.fields["tier"].clone())
    };
    assert_eq!(tier(&served.ask_about(&both).await), Some("paid".into()), "the first descriptor's stays");
    let second = served.ask_about(&both).await;
    assert_eq!(tier(&second), Some("free".into()), "the paid one is used up");
    let numbers = field(second.dynamic_metadata.as_ref().unwrap(), "tallygate");
    assert_eq!((&numbers.fields["allowed"], &numbers.fields["policy"]), (&Value::from(true), &Value::from("free")));
    assert_eq!((&numbers.fields["limit"], &numbers.fields["remaining"]), (&Value::from(5.0), &Value::from(3.0)));
    for _ in 0..3 {
        served.ask_about(&both).await;
    }
    let denied = served.ask_about(&both).await;
    assert_eq!(tier(&denied), None);
    let numbers = field(denied.dynamic_metadata.as_ref().unwrap(), "tallygate");
    assert_eq!((&numbers.fields["allowed"], &numbers.fields["source"]), (&Value::from(false), &Value::from("store")));
}

#[tokio::test]
async fn calls_are_counted_by_what_became_of_them() {
    let served = Served::common();
    let asked = [descriptor(&[("path", "/login")])];
    served.ask_about(&asked).await;
    served.ask_about(&asked).await;
    let mut client = served.client().await;
    assert!(client.should_rate_limit(RateLimitRequest::default()).await.is_err());
    assert_eq!(calls(&served.app, "rls"), [1, 1, 0, 1]);
}
