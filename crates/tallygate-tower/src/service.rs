//! The service: decides before it passes a request on.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tallygate::{MemoryStore, Store};
use tower_service::Service;

use crate::body::ResponseBody;
use crate::decide::{Eventually, Limits};
use crate::future::ResponseFuture;
use crate::request_view::RequestView;
use crate::settings::Plan;

/// A service under limits. Created by [`RateLimit`](crate::RateLimit).
pub struct RateLimited<T, S = MemoryStore> {
    inner: T,
    limits: Arc<Limits<S>>,
}

impl<T, S> RateLimited<T, S> {
    pub(crate) fn new(inner: T, limits: Arc<Limits<S>>) -> Self {
        Self { inner, limits }
    }

    /// The inner service.
    pub fn inner(&self) -> &T {
        &self.inner
    }
}

impl<T: Clone, S> Clone for RateLimited<T, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), limits: Arc::clone(&self.limits) }
    }
}

impl<T: fmt::Debug, S> fmt::Debug for RateLimited<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimited").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<T, S, ReqBody, ResBody> Service<Request<ReqBody>> for RateLimited<T, S>
where
    T: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    S: Store + 'static,
    ResBody: Body<Data = Bytes>,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = T::Error;
    type Future = ResponseFuture<T, S, ReqBody>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        if let Some(status) = self.limits.try_fast(RequestView::whole(&request)) {
            return ResponseFuture::fast(self.inner.call(request), Arc::clone(&self.limits), status);
        }
        self.evaluate(request)
    }
}

impl<T, S: Store + 'static> RateLimited<T, S> {
    #[inline(never)]
    fn evaluate<ReqBody>(&mut self, mut request: Request<ReqBody>) -> ResponseFuture<T, S, ReqBody>
    where
        T: Service<Request<ReqBody>> + Clone,
    {
        let settings = &self.limits.settings;
        let decided = if settings.needs_parts {
            let (mut parts, body) = request.into_parts();
            if let Plan::Policies { .. } = settings.plan
                && let Some(client) = settings.addresses.client(RequestView::apart(&parts))
            {
                parts.extensions.insert(client);
            }
            let decided = self.limits.decide(RequestView::apart(&parts));
            request = Request::from_parts(parts, body);
            decided
        } else {
            self.limits.decide(RequestView::whole(&request))
        };
        match decided {
            None => ResponseFuture::unlimited(self.inner.call(request)),
            Some(Eventually::Now(decided)) => {
                let future = ResponseFuture::decided(&mut self.inner, &self.limits, decided, request);
                if future.is_refused() {
                    // The inner service is not called, and must not keep what it reserved in `poll_ready`.
                    self.inner = self.inner.clone();
                }
                future
            }
            Some(Eventually::Later(deciding)) => {
                // The instance that is ready is the one to call.
                let clone = self.inner.clone();
                let ready = std::mem::replace(&mut self.inner, clone);
                ResponseFuture::deciding(ready, Arc::clone(&self.limits), deciding, request)
            }
        }
    }
}
