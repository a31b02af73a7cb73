//! The way of a request through a limited service.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use tollgate::{InvalidCheck, Store, Verdict};
use tollgate_http::verdict_headers;
use tower_service::Service;

use crate::body::ResponseBody;
use crate::layer::Settings;
use crate::refusal::Refusal;
use crate::settle::{Decided, Deciding, Eventually, Settling};

pin_project! {
    /// The response of a limited service, when it is there.
    pub struct ResponseFuture<T, S, ReqBody>
    where
        T: Service<Request<ReqBody>>,
    {
        #[pin]
        stage: Stage<T, S, ReqBody>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<T, S, ReqBody>
    where
        T: Service<Request<ReqBody>>,
    {
        // The store is being asked. In a box, so that the future of a store that answers at once is no larger for it.
        Deciding { waiting: Option<Box<Waiting<T, S, ReqBody>>> },
        // The service behind is at work.
        Serving {
            #[pin]
            response: T::Future,
            after: Option<After<S>>,
        },
        // Units are given back before the response goes out.
        Settling {
            settling: Settling,
            response: Option<T::Response>,
            after: Option<After<S>>,
        },
        Refused { response: Option<Response<Bytes>> },
    }
}

/// A request that waits for the store, and all that it takes to go on.
struct Waiting<T, S, ReqBody> {
    deciding: Deciding,
    service: T,
    request: Request<ReqBody>,
    settings: Arc<Settings<S>>,
}

/// What is left to do once there is a response.
struct After<S> {
    settings: Arc<Settings<S>>,
    verdict: Arc<Verdict>,
    /// The verdict once units were given back.
    left: Option<Verdict>,
}

impl<T, S, ReqBody> ResponseFuture<T, S, ReqBody>
where
    T: Service<Request<ReqBody>>,
{
    pub(crate) fn unlimited(response: T::Future) -> Self {
        Self { stage: Stage::Serving { response, after: None } }
    }

    pub(crate) fn deciding(
        service: T,
        settings: Arc<Settings<S>>,
        deciding: Deciding,
        request: Request<ReqBody>,
    ) -> Self {
        let waiting = Waiting { deciding, service, request, settings };
        Self { stage: Stage::Deciding { waiting: Some(Box::new(waiting)) } }
    }

    /// Passes a request on, or refuses it.
    #[inline(always)]
    pub(crate) fn decided(
        service: &mut T,
        settings: Arc<Settings<S>>,
        decided: Decided,
        request: Request<ReqBody>,
    ) -> Self {
        Self { stage: Stage::decided(service, settings, decided, request) }
    }
}

impl<T, S, ReqBody> Stage<T, S, ReqBody>
where
    T: Service<Request<ReqBody>>,
{
    // In line, to be written where it stays.
    #[inline(always)]
    fn decided(service: &mut T, settings: Arc<Settings<S>>, decided: Decided, mut request: Request<ReqBody>) -> Self {
        let verdict = match decided {
            Ok(verdict) => verdict,
            Err(invalid) => return Self::Refused { response: Some(misconfigured(&invalid)) },
        };
        if verdict.allowed() {
            request.extensions_mut().insert(Arc::clone(&verdict));
            let after = Some(After { settings, verdict, left: None });
            return Self::Serving { response: service.call(request), after };
        }
        Self::Refused { response: Some(settings.refuse(&verdict, request.headers())) }
    }
}

/// Too many limits at once: nothing a caller did, and nothing that may let it pass.
fn misconfigured(invalid: &InvalidCheck) -> Response<Bytes> {
    tracing::error!("a request cannot be decided: {invalid}");
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}

impl<S> Settings<S> {
    fn refuse(&self, verdict: &Arc<Verdict>, request: &HeaderMap) -> Response<Bytes> {
        let refusal = Refusal::new(Arc::clone(verdict), request);
        let mut response = self.responder.as_ref().map_or_else(|| refusal.response(), |responder| responder(&refusal));
        self.tell(verdict, verdict, &mut response);
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    /// Says in headers what is left, and in extensions what was decided.
    fn tell<B>(&self, verdict: &Arc<Verdict>, left: &Verdict, response: &mut Response<B>) {
        verdict_headers(left, self.dialect, response.headers_mut());
        if self.expose {
            let names = HeaderValue::from_static(self.dialect.expose_headers());
            response.headers_mut().append(ACCESS_CONTROL_EXPOSE_HEADERS, names);
        }
        response.extensions_mut().insert(Arc::clone(verdict));
    }
}

impl<T, S, ReqBody, ResBody> Future for ResponseFuture<T, S, ReqBody>
where
    T: Service<Request<ReqBody>, Response = Response<ResBody>>,
    S: Store + 'static,
    ResBody: Body<Data = Bytes>,
{
    type Output = Result<Response<ResponseBody<ResBody>>, T::Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let mut this = self.as_mut().project();
            let next = match this.stage.as_mut().project() {
                StageProjection::Deciding { waiting } => {
                    let asked = waiting.as_mut().expect("polled after it was ready");
                    let decided = ready!(asked.deciding.as_mut().poll(context));
                    let Waiting { mut service, request, settings, .. } =
                        *waiting.take().expect("it was there just now");
                    Stage::decided(&mut service, settings, decided, request)
                }
                StageProjection::Serving { response, after } => {
                    let response = ready!(response.poll(context))?;
                    let Some(mut after) = after.take() else {
                        return Poll::Ready(Ok(response.map(ResponseBody::served)));
                    };
                    match after.give_back(response) {
                        Eventually::Now(response) => return Poll::Ready(Ok(after.finish(response))),
                        Eventually::Later((settling, response)) => {
                            Stage::Settling { settling, response: Some(response), after: Some(after) }
                        }
                    }
                }
                StageProjection::Settling { settling, response, after } => {
                    let left = ready!(settling.as_mut().poll(context));
                    let (response, mut after) = response.take().zip(after.take()).expect("polled after it was ready");
                    after.left = Some(left);
                    return Poll::Ready(Ok(after.finish(response)));
                }
                StageProjection::Refused { response } => {
                    let response = response.take().expect("polled after it was ready");
                    return Poll::Ready(Ok(response.map(ResponseBody::refused)));
                }
            };
            this.stage.set(next);
        }
    }
}

impl<S: Store + 'static> After<S> {
    /// Gives back what a response does not count for.
    fn give_back<B>(&mut self, response: Response<B>) -> Eventually<Response<B>, (Settling, Response<B>)> {
        let Some(counts) = &self.settings.counts else { return Eventually::Now(response) };
        let (parts, body) = response.into_parts();
        let counted = counts(&parts);
        let response = Response::from_parts(parts, body);
        if counted {
            return Eventually::Now(response);
        }
        match self.settings.give_back(&self.verdict) {
            Eventually::Now(left) => {
                self.left = Some(left);
                Eventually::Now(response)
            }
            Eventually::Later(settling) => Eventually::Later((settling, response)),
        }
    }

    fn finish<B>(self, mut response: Response<B>) -> Response<ResponseBody<B>> {
        let left = self.left.as_ref().unwrap_or(&self.verdict);
        self.settings.tell(&self.verdict, left, &mut response);
        response.map(ResponseBody::served)
    }
}

impl<T, S, ReqBody> fmt::Debug for ResponseFuture<T, S, ReqBody>
where
    T: Service<Request<ReqBody>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
