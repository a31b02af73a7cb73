//! The path of a request for which units are reserved.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tallygate::hold::Holds;
use tallygate::policy::Verdict;
use tower_service::Service;

use super::body::{MeteredBody, Metering};
use super::decide::{Deciding, Granted};
use super::open::{End, Open};
use super::{Reserve, Reserved, SettleBy};
use crate::body::{RefusalBody, ResponseBody};
use crate::decide::Limits;
use crate::future::{Served, poll_refusal};

pin_project! {
    /// The future response of a service under limits that reserve. If it is dropped, what was reserved is abandoned.
    pub struct ReserveFuture<T, S, ReqBody>
    where
        T: Service<Request<ReqBody>>,
        S: Holds,
        S: 'static,
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
        S: Holds,
        S: 'static,
    {
        // The store is being asked.
        Deciding { waiting: Option<Box<Waiting<T, S, ReqBody>>> },
        // The inner service is running.
        Serving {
            #[pin]
            response: T::Future,
            serving: Option<Box<Serving<S>>>,
        },
        // The body of the refusal is read to its end.
        Refused { response: Option<Response<RefusalBody>> },
    }
}

/// A request that waits for the store, and what is needed to continue.
struct Waiting<T, S: Holds + 'static, ReqBody> {
    deciding: Deciding<S>,
    service: T,
    request: Request<ReqBody>,
    limits: Arc<Limits<S>>,
    reserve: Arc<Reserve>,
}

/// A request that is served.
struct Serving<S: Holds + 'static> {
    limits: Arc<Limits<S>>,
    reserve: Arc<Reserve>,
    verdict: Verdict,
    open: Open<S>,
}

impl<T, S, ReqBody> ReserveFuture<T, S, ReqBody>
where
    T: Service<Request<ReqBody>>,
    S: Holds + 'static,
{
    pub(super) fn unlimited(response: T::Future) -> Self {
        Self { stage: Stage::Serving { response, serving: None } }
    }

    pub(super) fn deciding(
        service: T,
        limits: Arc<Limits<S>>,
        reserve: Arc<Reserve>,
        deciding: Deciding<S>,
        request: Request<ReqBody>,
    ) -> Self {
        let waiting = Waiting { deciding, service, request, limits, reserve };
        Self { stage: Stage::Deciding { waiting: Some(Box::new(waiting)) } }
    }

    /// Whether the inner service is not called.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.stage, Stage::Refused { .. })
    }

    /// Passes a request on, or refuses it.
    pub(super) fn decided(
        service: &mut T,
        limits: &Arc<Limits<S>>,
        reserve: &Arc<Reserve>,
        granted: Granted<S>,
        mut request: Request<ReqBody>,
    ) -> Self {
        let Granted { verdict, open, units } = granted;
        let Some(open) = open else {
            let response = limits.settings.refuse(verdict, request.headers());
            return Self { stage: Stage::Refused { response: Some(response) } };
        };
        request.extensions_mut().insert(Reserved { units });
        if limits.settings.shared {
            request.extensions_mut().insert(verdict.clone());
        }
        let (limits, reserve) = (Arc::clone(limits), Arc::clone(reserve));
        let serving = Some(Box::new(Serving { limits, reserve, verdict, open }));
        Self { stage: Stage::Serving { response: service.call(request), serving } }
    }
}

impl<T, S, ReqBody, ResBody> Future for ReserveFuture<T, S, ReqBody>
where
    T: Service<Request<ReqBody>, Response = Response<ResBody>>,
    S: Holds + 'static,
    ResBody: Body<Data = Bytes>,
{
    type Output = Result<Response<MeteredBody<ResBody, S>>, T::Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let mut this = self.as_mut().project();
            let next = match this.stage.as_mut().project() {
                StageProjection::Deciding { waiting } => {
                    let asked = waiting.as_mut().expect("polled after it was ready");
                    let granted = ready!(asked.deciding.as_mut().poll(context));
                    let Waiting { mut service, request, limits, reserve, .. } =
                        *waiting.take().expect("it was there just now");
                    ReserveFuture::decided(&mut service, &limits, &reserve, granted, request).stage
                }
                StageProjection::Serving { response, serving } => {
                    if let Some(serving) = serving {
                        serving.open.poll(context);
                    }
                    let served = ready!(response.poll(context));
                    return Poll::Ready(match serving.take() {
                        None => {
                            served.map(|response| response.map(|body| MeteredBody::plain(ResponseBody::served(body))))
                        }
                        Some(serving) => serving.served(served),
                    });
                }
                StageProjection::Refused { response } => {
                    let refusal = ready!(poll_refusal(response, context));
                    return Poll::Ready(Ok(refusal.map(|text| MeteredBody::plain(ResponseBody::refused(text)))));
                }
            };
            this.stage.set(next);
        }
    }
}

impl<S: Holds + 'static> Serving<S> {
    /// Settles by the head of a response, or leaves it to the body.
    fn served<B: Body<Data = Bytes>, E>(self: Box<Self>, served: Served<B, E>) -> Served<MeteredBody<B, S>, E> {
        let Self { limits, reserve, verdict, mut open } = *self;
        let counts = limits.settings.counts.as_ref();
        let (mut parts, body) = match served {
            Ok(response) => response.into_parts(),
            Err(error) => {
                open.end(if counts.is_some_and(|counts| !counts.error) { End::Cancelled } else { End::Abandoned });
                return Err(error);
            }
        };
        let counted = counts.is_none_or(|counts| (counts.response)(&parts));
        let metering = match &reserve.settle {
            _ if !counted => {
                open.end(End::Cancelled);
                None
            }
            SettleBy::Estimate => {
                open.end(End::AsReserved);
                None
            }
            SettleBy::Response(used) => {
                open.end(used(&parts).map_or(End::AsReserved, End::Used));
                None
            }
            SettleBy::Size => Some(Metering::of_size(open, reserve.cut.clone())),
            SettleBy::Frames(meter) => Some(Metering::of_frames(open, meter(&parts), reserve.cut.clone())),
        };
        if metering.is_some() && reserve.cut.is_some() {
            // It may become shorter.
            parts.headers.remove(CONTENT_LENGTH);
        }
        let response = Response::from_parts(parts, MeteredBody::metered(ResponseBody::served(body), metering));
        limits.settings.finish(verdict, Ok(response))
    }
}

impl<T, S, ReqBody> fmt::Debug for ReserveFuture<T, S, ReqBody>
where
    T: Service<Request<ReqBody>>,
    S: Holds + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReserveFuture").finish_non_exhaustive()
    }
}
