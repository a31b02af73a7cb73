//! The path of a request through a limited service.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_LENGTH};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tallygate::policy::Verdict;
use tallygate::{Status, Store};
use tower_service::Service;

use crate::body::{RefusalBody, ResponseBody};
use crate::decide::{Deciding, Eventually, Limits, Refunding};
use crate::refusal::Refusal;
use crate::settings::{Plan, Settings};

pin_project! {
    /// The future response of a limited service.
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
        // The store is being asked. Boxed, to keep the future small for stores that answer at once.
        Deciding { waiting: Option<Box<Waiting<T, S, ReqBody>>> },
        // The inner service is running.
        Serving {
            #[pin]
            response: T::Future,
            after: Option<After<S>>,
        },
        // Units are refunded before the response is sent. Boxed, as it is rare.
        Settling { unsettled: Option<Box<Unsettled<Result<T::Response, T::Error>, S>>> },
        // The body of the refusal is read to its end.
        Refused { response: Option<Response<RefusalBody>> },
    }
}

/// A request that waits for the store, and what is needed to continue.
struct Waiting<T, S, ReqBody> {
    deciding: Deciding,
    service: T,
    request: Request<ReqBody>,
    limits: Arc<Limits<S>>,
}

/// What is needed to report a decision once there is a response.
enum After<S> {
    /// The fast path was taken.
    Status { limits: Arc<Limits<S>>, status: Status },
    /// Boxed, to keep the fast path small.
    Verdict { limits: Arc<Limits<S>>, verdict: Box<Verdict> },
}

/// The result of a service, waiting for its refund.
struct Unsettled<R, S> {
    refunding: Refunding,
    served: R,
    limits: Arc<Limits<S>>,
}

impl<T, S, ReqBody> ResponseFuture<T, S, ReqBody>
where
    T: Service<Request<ReqBody>>,
{
    pub(crate) fn unlimited(response: T::Future) -> Self {
        Self { stage: Stage::Serving { response, after: None } }
    }

    pub(crate) fn deciding(service: T, limits: Arc<Limits<S>>, deciding: Deciding, request: Request<ReqBody>) -> Self {
        let waiting = Waiting { deciding, service, request, limits };
        Self { stage: Stage::Deciding { waiting: Some(Box::new(waiting)) } }
    }

    /// The inner service is running; only the status is left to report.
    #[inline(always)]
    pub(crate) fn fast(response: T::Future, limits: Arc<Limits<S>>, status: Status) -> Self {
        Self { stage: Stage::Serving { response, after: Some(After::Status { limits, status }) } }
    }

    /// Whether the inner service is not called.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.stage, Stage::Refused { .. })
    }

    /// Passes a request on, or refuses it.
    pub(crate) fn decided(
        service: &mut T,
        limits: &Arc<Limits<S>>,
        verdict: Verdict,
        mut request: Request<ReqBody>,
    ) -> Self {
        if !verdict.allowed() {
            let response = limits.settings.refuse(verdict, request.headers());
            return Self { stage: Stage::Refused { response: Some(response) } };
        }
        if limits.settings.shared {
            request.extensions_mut().insert(verdict.clone());
        }
        let after = Some(After::Verdict { limits: Arc::clone(limits), verdict: Box::new(verdict) });
        Self { stage: Stage::Serving { response: service.call(request), after } }
    }
}

impl Settings {
    #[inline(never)]
    pub(crate) fn refuse(&self, verdict: Verdict, request: &HeaderMap) -> Response<RefusalBody> {
        let refusal = Refusal::new(verdict, request);
        let mut response = match &self.responder {
            None => refusal.response().map(RefusalBody::from),
            Some(responder) => responder(&refusal),
        };
        let verdict = refusal.into_verdict();
        self.headers.apply(&verdict, response.headers_mut());
        self.expose(response.headers_mut());
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response.extensions_mut().insert(verdict);
        response
    }

    /// Lets scripts of other origins read the headers.
    fn expose(&self, headers: &mut HeaderMap) {
        if self.expose {
            let names = HeaderValue::from_static(self.headers.dialect().expose_headers());
            headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, names);
        }
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
                    let Waiting { mut service, request, limits, .. } = *waiting.take().expect("it was there just now");
                    ResponseFuture::decided(&mut service, &limits, decided, request).stage
                }
                StageProjection::Serving { response, after } => {
                    let mut served = ready!(response.poll(context));
                    match after.take() {
                        None => {}
                        Some(After::Status { limits, status }) => {
                            if let Ok(response) = &mut served {
                                limits.settings.report_status(&status, response);
                            }
                        }
                        Some(After::Verdict { limits, verdict }) => match limits.settle(*verdict, served) {
                            Eventually::Now(settled) => served = settled,
                            Eventually::Later(unsettled) => {
                                this.stage.set(Stage::Settling { unsettled: Some(Box::new(unsettled)) });
                                continue;
                            }
                        },
                    }
                    return Poll::Ready(served.map(|response| response.map(ResponseBody::served)));
                }
                StageProjection::Settling { unsettled } => {
                    let waiting = unsettled.as_mut().expect("polled after it was ready");
                    let verdict = ready!(waiting.refunding.as_mut().poll(context));
                    let Unsettled { served, limits, .. } = *unsettled.take().expect("it was there just now");
                    let served = limits.settings.finish(verdict, served);
                    return Poll::Ready(served.map(|response| response.map(ResponseBody::served)));
                }
                StageProjection::Refused { response } => {
                    return poll_refusal(response, context).map(|response| Ok(response.map(ResponseBody::refused)));
                }
            };
            this.stage.set(next);
        }
    }
}

/// Reads the body of a refusal to its end.
pub(crate) fn poll_refusal(
    response: &mut Option<Response<RefusalBody>>,
    context: &mut Context<'_>,
) -> Poll<Response<Bytes>> {
    let body = response.as_mut().expect("polled after it was ready").body_mut();
    let text = ready!(body.poll_text(context));
    let (mut parts, _) = response.take().expect("it was there just now").into_parts();
    let text = text.unwrap_or_else(|error| {
        tracing::error!("the body of a refusal failed, and is sent empty: {error}");
        parts.headers.remove(CONTENT_LENGTH);
        Bytes::new()
    });
    Poll::Ready(Response::from_parts(parts, text))
}

/// The result of the inner service.
pub(crate) type Served<B, E> = Result<Response<B>, E>;

impl<S: Store + 'static> Limits<S> {
    /// Refunds what does not count, and reports what is left.
    fn settle<B, E>(
        self: Arc<Self>,
        verdict: Verdict,
        served: Served<B, E>,
    ) -> Eventually<Served<B, E>, Unsettled<Served<B, E>, S>> {
        let (served, counted) = match (&self.settings.counts, served) {
            (None, served) => (served, true),
            (Some(counts), Ok(response)) => {
                let (parts, body) = response.into_parts();
                let counted = (counts.response)(&parts);
                (Ok(Response::from_parts(parts, body)), counted)
            }
            (Some(counts), Err(error)) => (Err(error), counts.error),
        };
        match if counted { Eventually::Now(verdict) } else { self.refund(verdict) } {
            Eventually::Now(verdict) => Eventually::Now(self.settings.finish(verdict, served)),
            Eventually::Later(refunding) => Eventually::Later(Unsettled { refunding, served, limits: self }),
        }
    }
}

impl Settings {
    /// Reports in headers what is left of the only rule.
    fn report_status<B>(&self, status: &Status, response: &mut Response<B>) {
        if let Plan::Rules { rules, .. } = &self.plan
            && let [(_, policy)] = &rules[..]
            && (self.headers.dialect().is_list() || !is_refused(response))
        {
            self.headers.apply_allowed(policy, status, response.headers_mut());
        }
        self.expose(response.headers_mut());
    }

    pub(crate) fn finish<B, E>(&self, verdict: Verdict, served: Served<B, E>) -> Served<B, E> {
        let mut response = served?;
        let refused = is_refused(&response);
        if !refused || self.headers.dialect().is_list() {
            self.headers.apply(&verdict, response.headers_mut());
        }
        self.expose(response.headers_mut());
        if self.shared && !refused {
            response.extensions_mut().insert(verdict);
        }
        Ok(response)
    }
}

/// Whether an inner layer has refused the call: its headers stay.
fn is_refused<B>(response: &Response<B>) -> bool {
    response.extensions().get::<Verdict>().is_some_and(|verdict| !verdict.allowed())
}

impl<T, S, ReqBody> fmt::Debug for ResponseFuture<T, S, ReqBody>
where
    T: Service<Request<ReqBody>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
