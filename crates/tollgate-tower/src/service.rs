//! The service: asks before it passes a request on.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tollgate::{MemoryStore, Store};
use tower_service::Service;

use crate::body::ResponseBody;
use crate::future::ResponseFuture;
use crate::layer::Settings;
use crate::seen::Seen;
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

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        let question = if self.settings.is_told() {
            let (parts, body) = request.into_parts();
            let question = self.settings.question(Seen::apart(&parts));
            request = Request::from_parts(parts, body);
            question
        } else {
            self.settings.question(Seen::whole(&request))
        };
        let Some(question) = question else {
            return ResponseFuture::unlimited(self.inner.call(request));
        };
        let settings = Arc::clone(&self.settings);
        match self.settings.decide(question) {
            Eventually::Now(decided) => ResponseFuture::decided(&mut self.inner, settings, decided, request),
            Eventually::Later(deciding) => {
                // The instance that said it was ready is the one to call.
                let clone = self.inner.clone();
                let ready = std::mem::replace(&mut self.inner, clone);
                ResponseFuture::deciding(ready, settings, deciding, request)
            }
        }
    }
}
