//! Envoy's rate limit service, and what gRPC clients expect beside it: health and reflection.

mod codec;
mod deadline;
mod health;
mod metadata;
mod request;
mod response;
mod service;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio::time::Instant;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

use crate::accept::ListenSettings;
use crate::app::App;
use crate::decision_event::Api;
use crate::proto::DESCRIPTORS;
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use health::Health;
use request::Invalid;
use service::RateLimits;

/// Everything that the gRPC listener serves.
pub(crate) fn router(app: Arc<App>, settings: &ListenSettings) -> axum::Router {
    let described = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let health = HealthServer::new(Health::new(Arc::clone(&app))).max_decoding_message_size(settings.max_body);
    let (newer, older) = (described().build_v1(), described().build_v1alpha());
    Routes::new(RateLimits::new(app, settings.max_body))
        .add_service(health)
        .add_service(
            newer.expect("the descriptors are part of this program").max_decoding_message_size(settings.max_body),
        )
        .add_service(
            older.expect("the descriptors are part of this program").max_decoding_message_size(settings.max_body),
        )
        .into_axum_router()
}

/// Answers a request of Envoy's protocol, however it came in.
pub(super) async fn should_rate_limit(
    app: &App,
    api: Api,
    request: RateLimitRequest,
    deadline: Option<Instant>,
) -> Result<RateLimitResponse, Invalid> {
    let descriptors = request.descriptors.len();
    let question = request::read(request).inspect_err(|_| app.reject(api))?;
    let verdict = app.answer(api, &question, deadline).await?.into_verdict();
    Ok(response::write(question.domain().unwrap_or_default(), descriptors, &verdict, app.dialect))
}
