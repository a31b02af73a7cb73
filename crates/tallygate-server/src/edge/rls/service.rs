//! The service. Not generated, for two reasons: it needs the instant at which a call began, and its own codec.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tokio::time::Instant;
use tonic::codegen::{Body, BoxFuture, Service, StdError};
use tonic::server::{Grpc, NamedService};
use tonic::{Code, Status};
use tower::service_fn;

use super::codec::Messages;
use super::deadline::deadline;
use super::metadata::structure;
use super::should_rate_limit;
use crate::app::App;
use crate::decision_event::Api;
use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;

/// `ShouldRateLimit`, and nothing else.
#[derive(Debug, Clone)]
pub(super) struct RateLimits {
    pub(super) app: Arc<App>,
    pub(super) max_message: usize,
}

impl NamedService for RateLimits {
    const NAME: &'static str = SERVICE_NAME;
}

impl<B> Service<Request<B>> for RateLimits
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let method = request.uri().path().rsplit('/').next();
        if method != Some("ShouldRateLimit") {
            let status = Status::new(Code::Unimplemented, "this service has one method: ShouldRateLimit");
            return Box::pin(async move { Ok(status.into_http()) });
        }
        let (app, deadline) = (Arc::clone(&self.app), deadline(request.headers(), Instant::now()));
        let call = service_fn(move |request: tonic::Request<RateLimitRequest>| {
            let app = Arc::clone(&app);
            async move {
                let answer = should_rate_limit(&app, Api::Rls, request.into_inner(), deadline).await;
                let (mut response, metadata) = answer.map_err(Status::invalid_argument)?;
                response.dynamic_metadata = structure(metadata);
                Ok(tonic::Response::new(response))
            }
        });
        let messages = Messages(Arc::clone(&self.app));
        let mut grpc = Grpc::new(messages).max_decoding_message_size(self.max_message);
        Box::pin(async move { Ok(grpc.unary(call, request).await) })
    }
}
