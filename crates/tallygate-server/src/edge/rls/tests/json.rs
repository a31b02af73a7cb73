//! The same service in JSON.

use axum::body::Body;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::*;

async fn post(app: &Arc<App>, body: &str) -> (StatusCode, String, Value) {
    let asked = Request::builder().method(Method::POST).uri("/json").header("content-type", "application/json");
    let asked = asked.body(Body::from(body.to_owned())).unwrap();
    let response = crate::edge::router(Arc::clone(app)).oneshot(asked).await.unwrap();
    let content_type = response.headers()["content-type"].to_str().unwrap().to_owned();
    let (status, body) = (response.status(), response.into_body().collect().await.unwrap().to_bytes());
    (status, content_type, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn it_answers_as_the_original_does() {
    let app = app(still_store(), common_policies());
    let asked = r#"{"domain": "edge", "descriptors": [
        {"entries": [{"key": "path", "value": "/login"}]}, {"entries": [{"key": "other", "value": "x"}]}]}"#;
    let (status, content_type, mut body) = post(&app, asked).await;
    assert_eq!((status, content_type.as_str()), (StatusCode::OK, "application/json"));
    let metadata = body.as_object_mut().unwrap().remove("dynamicMetadata").unwrap();
    assert_eq!(metadata["tallygate"]["remaining"], 0);
    let until = body["statuses"][0]["durationUntilReset"].take();
    assert!(until.as_str().is_some_and(|until| until.ends_with('s')), "{until}");
    let headers = body["responseHeadersToAdd"].take();
    assert_eq!(headers[0], json!({"key": "ratelimit-policy", "value": "\"login\";q=1;w=90"}));
    assert_eq!(
        body,
        json!({
            "overallCode": "OK",
            "statuses": [
                {"code": "OK", "currentLimit": {"name": "login", "requestsPerUnit": 1}, "durationUntilReset": null},
                {"code": "OK"},
            ],
            "responseHeadersToAdd": null,
        })
    );

    let (status, content_type, body) = post(&app, asked).await;
    assert_eq!((status, content_type.as_str()), (StatusCode::TOO_MANY_REQUESTS, "application/json"));
    assert_eq!((&body["overallCode"], &body["statuses"][0]["code"]), (&json!("OVER_LIMIT"), &json!("OVER_LIMIT")));
    assert_eq!(body["statuses"][1], json!({"code": "OK"}));
    assert!(body["rawBody"].as_str().is_some_and(|body| body.starts_with("eyJ0eXBlIjo")), "base64 of JSON");
}

#[tokio::test]
async fn names_as_in_the_file_mean_the_same() {
    let app = app(still_store(), common_policies());
    let asked = |units: &str| {
        let entries = r#""entries": [{"key": "user", "value": "alice"}]"#;
        format!(r#"{{"domain": "edge", "descriptors": [{{{entries}, {units}}}]}}"#)
    };
    for (units, left) in [
        (r#""hits_addend": "2""#, json!(1)),
        (r#""hitsAddend": 0"#, json!(1)),
        (r#""hits_addend": 1, "is_negative_hits": true"#, json!(2)),
        (r#""hitsAddend": 2"#, Value::Null),
    ] {
        let (status, _, body) = post(&app, &asked(units)).await;
        assert_eq!((status, &body["statuses"][0]["limitRemaining"]), (StatusCode::OK, &left), "{units}");
    }
    let limit = r#""limit": {"requests_per_unit": 7, "unit": "HOUR"}"#;
    let (_, _, body) = post(&app, &asked(limit)).await;
    let expected = json!({"name": "requested", "requestsPerUnit": 7, "unit": "HOUR"});
    assert_eq!(body["statuses"][0]["currentLimit"], expected);
}

#[tokio::test]
async fn what_cannot_be_read_or_makes_no_sense_is_a_problem() {
    let app = app(still_store(), common_policies());
    for body in ["", "{", "{}", r#"{"domain": "edge"}"#, r#"{"domain": "edge", "descriptors": [{"entires": []}]}"#] {
        let (status, content_type, problem) = post(&app, body).await;
        assert_eq!((status, content_type.as_str()), (StatusCode::BAD_REQUEST, "application/problem+json"), "{body}");
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.len() > 20), "{problem}");
    }
    assert_eq!(calls(&app, "json"), [0, 0, 0, 5]);
}
