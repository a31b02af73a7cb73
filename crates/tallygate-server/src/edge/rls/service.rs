//! The service. Not generated, for three reasons: it needs the instant at which a call began, its own codec, and an answer to
//! messages that cannot be read.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, to_bytes};
use http::request::Parts;
use http::{Request, Response};
use tokio::time::Instant;
use tonic::codegen::{BoxFuture, Service, StdError};
use tonic::server::NamedService;
use tonic::{Code, Status};

use super::codec::{self, Unreadable};
use super::deadline::deadline;
use super::metadata::structure;
use super::{refused, should_rate_limit};
use crate::app::App;
use crate::decision_event::Api;
use crate::edge::access::Credentials;
use crate::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use tallygate_http::ProblemCode;

/// `ShouldRateLimit`, and nothing else.
#[derive(Debug, Clone)]
pub(super) struct RateLimits {
    pub(super) app: Arc<App>,
}

impl NamedService for RateLimits {
    const NAME: &'static str = SERVICE_NAME;
}

impl<B> Service<Request<B>> for RateLimits
where
    B: http_body::Body<Data = axum::body::Bytes> + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = Response<Body>;
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
        let (app, began) = (Arc::clone(&self.app), Instant::now());
        let (parts, body) = request.into_parts();
        Box::pin(async move {
            Ok(match answer(&app, &parts, Body::new(body), began).await {
                Ok(response) => codec::response(&response),
                Err(status) => status.into_http(),
            })
        })
    }
}

async fn answer(app: &Arc<App>, parts: &Parts, body: Body, began: Instant) -> Result<RateLimitResponse, Status> {
    let credentials = Credentials::of(parts);
    // Only a proxy that is not configured for it lacks the token. One that must not be checked now may have it.
    if let Err(problem) = app.access.check(&credentials) {
        return match problem.code() {
            ProblemCode::Unauthorized => Err(Status::unauthenticated(problem.detail())),
            ProblemCode::Forbidden => Err(Status::permission_denied(problem.detail())),
            code => Ok(refused(code, problem.detail().to_owned())),
        };
    }
    // The listener has read it, and bounded its size. Without POST it is empty.
    let body = to_bytes(body, usize::MAX).await.map_err(|error| Status::unavailable(error.to_string()))?;
    let request = match codec::request(body) {
        Ok(request) => request,
        // Only the proxy's configuration can be the cause.
        Err(Unreadable::Compressed) => return Err(Status::unimplemented("compressed messages are not supported")),
        Err(Unreadable::Garbled(why)) => {
            app.reject(Api::Rls);
            return Ok(refused(ProblemCode::InvalidField, why));
        }
    };
    let deadline = deadline(&parts.headers, began);
    let answer = should_rate_limit(app, Api::Rls, request, &credentials, deadline).await;
    let (mut response, metadata) = answer.map_err(Status::invalid_argument)?;
    response.dynamic_metadata = structure(metadata);
    Ok(response)
}
