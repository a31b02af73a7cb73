//! Envoy's rate limit service, and what gRPC clients expect beside it: health and reflection.

mod answer;
mod codec;
mod deadline;
mod health;
mod metadata;
mod question;
mod service;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio::time::Instant;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

use crate::app::App;
use crate::listen::ListenSettings;
use crate::metrics::Api;
use crate::proto::DESCRIPTORS;
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use health::Health;
pub(crate) use question::Invalid;
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

/// The one way from a question in Envoy's words to an answer in them, however it came in.
pub(crate) async fn should_rate_limit(
    app: &App,
    api: Api,
    request: RateLimitRequest,
    deadline: Option<Instant>,
) -> Result<RateLimitResponse, Invalid> {
    let RateLimitRequest { domain, descriptors, hits_addend } = request;
    let asks = question::asks(&domain, descriptors, hits_addend).inspect_err(|_| app.calls.count_invalid(api))?;
    let verdict = app.decide(api, &domain, &asks, deadline).await?;
    Ok(answer::response(&domain, asks.len(), &verdict, app.dialect))
}
