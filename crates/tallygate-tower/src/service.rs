//! The service: asks before it passes a request on.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tallygate::{MemoryStore, Store};
use tower_service::Service;

use crate::body::ResponseBody;
use crate::future::{After, ResponseFuture};
use crate::seen::Seen;
use crate::settings::{Plan, Settings};
use crate::settle::Eventually;

/// A service that is called only as often as its limits allow. Made by [`RateLimit`](crate::RateLimit).
pub struct RateLimited<T, S = MemoryStore> {
    inner: T,
    settings: Arc<Settings<S>>,
}

impl<T, S> RateLimited<T, S> {
    pub(crate) fn new(inner: T, settings: Arc<Settings<S>>) -> Self {
        Self { inner, settings }
    }

    /// The service behind.
    pub fn inner(&self) -> &T {
        &self.inner
    }
}

impl<T: Clone, S> Clone for RateLimited<T, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), settings: Arc::clone(&self.settings) }
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
        if let Some(status) = self.settings.take_short(Seen::whole(&request)) {
            let after = After::Status { settings: Arc::clone(&self.settings), status };
            return ResponseFuture::serving(self.inner.call(request), after);
        }
        self.call_at_length(request)
    }
}

impl<T, S: Store + 'static> RateLimited<T, S> {
    #[inline(never)]
    fn call_at_length<ReqBody>(&mut self, mut request: Request<ReqBody>) -> ResponseFuture<T, S, ReqBody>
    where
        T: Service<Request<ReqBody>> + Clone,
    {
        let decided = if self.settings.told {
            let (mut parts, body) = request.into_parts();
            if let Plan::Policies { .. } = self.settings.plan
                && let Some(client) = self.settings.addresses.client(Seen::apart(&parts))
            {
                parts.extensions.insert(client);
            }
            let decided = self.settings.decide(Seen::apart(&parts));
            request = Request::from_parts(parts, body);
            decided
        } else {
            self.settings.decide(Seen::whole(&request))
        };
        match decided {
            None => ResponseFuture::unlimited(self.inner.call(request)),
            Some(Eventually::Now(decided)) => {
                let future = ResponseFuture::decided(&mut self.inner, &self.settings, decided, request);
                if future.is_refused() {
                    // It is not called, and must not hold what it took to be ready.
                    self.inner = self.inner.clone();
                }
                future
            }
            Some(Eventually::Later(deciding)) => {
                // The instance that said it was ready is the one to call.
                let clone = self.inner.clone();
                let ready = std::mem::replace(&mut self.inner, clone);
                ResponseFuture::deciding(ready, Arc::clone(&self.settings), deciding, request)
            }
        }
    }
}
