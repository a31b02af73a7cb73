//! The layer that reserves, and its service.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tallygate::MemoryStore;
use tallygate::hold::Holds;
use tower_layer::Layer;
use tower_service::Service;

use super::Reserve;
use super::body::MeteredBody;
use super::future::ReserveFuture;
use crate::decide::{Eventually, Limits};
use crate::request_view::RequestView;
use crate::settings::Plan;

/// A [`RateLimit`](crate::RateLimit) that reserves before a request is served, and settles by its response. Created by
/// [`RateLimit::reserve`](crate::RateLimit::reserve). Cheap to clone; clones share everything.
pub struct ReserveLimit<S = MemoryStore> {
    limits: Arc<Limits<S>>,
    reserve: Arc<Reserve>,
}

/// A service under limits that reserve. Created by [`ReserveLimit`].
pub struct ReserveLimited<T, S = MemoryStore> {
    inner: T,
    layer: ReserveLimit<S>,
}

impl<S> ReserveLimit<S> {
    pub(crate) fn new(limits: Arc<Limits<S>>, reserve: Reserve) -> Self {
        Self { limits, reserve: Arc::new(reserve) }
    }
}

impl<S> Clone for ReserveLimit<S> {
    fn clone(&self) -> Self {
        Self { limits: Arc::clone(&self.limits), reserve: Arc::clone(&self.reserve) }
    }
}

impl<S> fmt::Debug for ReserveLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReserveLimit").field("reserve", &self.reserve).finish_non_exhaustive()
    }
}

impl<T: Clone, S> Clone for ReserveLimited<T, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<T: fmt::Debug, S> fmt::Debug for ReserveLimited<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReserveLimited").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, T> Layer<T> for ReserveLimit<S> {
    type Service = ReserveLimited<T, S>;

    fn layer(&self, inner: T) -> Self::Service {
        ReserveLimited { inner, layer: self.clone() }
    }
}

impl<T, S, ReqBody, ResBody> Service<Request<ReqBody>> for ReserveLimited<T, S>
where
    T: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    S: Holds + 'static,
    ResBody: Body<Data = Bytes>,
{
    type Response = Response<MeteredBody<ResBody, S>>;
    type Error = T::Error;
    type Future = ReserveFuture<T, S, ReqBody>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let ReserveLimit { limits, reserve } = &self.layer;
        let settings = &limits.settings;
        let (mut parts, body) = request.into_parts();
        if let Plan::Policies { .. } = settings.plan
            && let Some(client) = settings.addresses.client(RequestView::apart(&parts))
        {
            parts.extensions.insert(client);
        }
        let decided = limits.reserve(reserve, RequestView::apart(&parts));
        let request = Request::from_parts(parts, body);
        match decided {
            None => ReserveFuture::unlimited(self.inner.call(request)),
            Some(Eventually::Now(granted)) => {
                let future = ReserveFuture::decided(&mut self.inner, limits, reserve, granted, request);
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
                ReserveFuture::deciding(ready, Arc::clone(limits), Arc::clone(reserve), deciding, request)
            }
        }
    }
}
