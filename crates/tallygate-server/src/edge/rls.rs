//! Envoy's rate limit service, with health and reflection.

mod codec;
mod deadline;
mod health;
mod holds;
mod metadata;
mod request;
mod response;
mod service;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::body::Body;
use http::Response;
use serde_json::Value;
use tallygate::CheckError;
use tallygate_http::ProblemCode;
use tokio::time::Instant;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

use crate::answer::AnswerError;
use crate::app::App;
use crate::decision_event::Api;
use crate::proto::DESCRIPTORS;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use health::Health;
use holds::Holding;
use request::Unasked;
use service::RateLimits;

use super::access::Credentials;
use super::bounds::MAX_DESCRIPTORS;
use super::json::sentence;
use super::store_problem;

/// Envoy's units, in seconds. A week occurs in responses only.
const UNITS: [(Unit, u64); 7] = [
    (Unit::Second, 1),
    (Unit::Minute, 60),
    (Unit::Hour, 3600),
    (Unit::Day, 86_400),
    (Unit::Week, 7 * 86_400),
    (Unit::Month, 30 * 86_400),
    (Unit::Year, 365 * 86_400),
];

/// The largest message to health and reflection, in bytes: the name of a service, a file or a symbol. A stream keeps the beginning
/// of its next message for as long as it is open.
const MAX_NAME_MESSAGE: usize = 4 * 1024;

/// Everything that the gRPC listener serves.
pub(crate) fn router(app: Arc<App>) -> axum::Router {
    const KNOWN: &str = "the descriptors are part of this program";
    let described = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Routes::new(RateLimits { app: Arc::clone(&app) })
        .add_service(HealthServer::new(Health { app }).max_decoding_message_size(MAX_NAME_MESSAGE))
        .add_service(described().build_v1().expect(KNOWN).max_decoding_message_size(MAX_NAME_MESSAGE))
        .add_service(described().build_v1alpha().expect(KNOWN).max_decoding_message_size(MAX_NAME_MESSAGE))
        .into_axum_router()
}

/// The rate limit service alone.
#[cfg(any(test, fuzzing))]
pub(crate) fn service(
    app: Arc<App>,
) -> impl tower::Service<http::Request<Body>, Response = Response<Body>, Error = std::convert::Infallible> {
    RateLimits { app }
}

/// Answers a request of Envoy's protocol, from gRPC or JSON, with its metadata. An error is always caused by the configuration of
/// the proxy; what a client can cause is OVER_LIMIT, because proxies let requests pass on errors.
pub(super) async fn should_rate_limit(
    app: &Arc<App>,
    api: Api,
    mut request: RateLimitRequest,
    credentials: &Credentials,
    deadline: Option<Instant>,
) -> Result<(RateLimitResponse, Value), String> {
    // A refused request may have many more, and its answer must not grow with them.
    let descriptors = request.descriptors.len().min(MAX_DESCRIPTORS);
    let mut holding = Holding::take(&mut request);
    holding.settle(app, api).await;
    if descriptors == holding.settlements.len() && descriptors > 0 {
        return Ok((response::passed(descriptors), Value::Null));
    }
    let refused = |code, reason: &str| Ok((response::over_limit(descriptors, code, sentence(reason)), Value::Null));
    let question = match request::read(request) {
        Ok(question) => question,
        Err(unasked) => {
            app.reject(api);
            return match unasked {
                Unasked::Misconfigured(why) => Err(why),
                Unasked::TooMuch(why) => refused(ProblemCode::InvalidField, &why),
            };
        }
    };
    // Nothing is charged, given back or let through: a proxy that refunds needs the permission first.
    if question.refunds()
        && let Err(problem) = app.access.refund(credentials)
    {
        app.reject(api);
        return refused(problem.code(), problem.detail());
    }
    let domain = question.domain().unwrap_or_default().to_owned();
    let answer = match holding.reserving.take() {
        Some(reserving) => holds::reserve(app, api, question, reserving, deadline).await,
        None => app.answer(api, &question, deadline).await.map(|answer| (answer.into_verdict(), Value::Null)),
    };
    let (verdict, hold) = match answer {
        Ok(answer) => answer,
        Err(AnswerError::Check(CheckError::Store(error))) => {
            let problem = store_problem(&error);
            return refused(problem.code(), problem.detail());
        }
        // For example, more policies apply than one call can have checks.
        Err(error) => return refused(ProblemCode::InvalidField, &error.to_string()),
    };
    let mut metadata = metadata::metadata(&domain, &verdict);
    holds::add_to(&mut metadata, hold);
    let asked = descriptors - holding.settlements.len();
    let mut response = response::write(asked, &verdict, app.headers);
    for (at, _) in &holding.settlements {
        response.statuses.insert(*at, response::ok());
    }
    Ok((response, metadata))
}

/// The answer to a request that is refused before it is read.
pub(crate) fn refusal(code: ProblemCode, detail: String) -> Response<Body> {
    codec::response(&refused(code, detail))
}

/// The same as a message.
pub(super) fn refused(code: ProblemCode, detail: String) -> RateLimitResponse {
    response::over_limit(0, code, detail)
}
