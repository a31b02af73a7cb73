//! Request bodies with a limit, and response bodies that keep their connection from being idle.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use http::{HeaderMap, HeaderValue};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::activity::OpenRequest;
use super::budget::{Budget, LEAST, NoRoom, Share};
use super::refusal::Refusal;
use super::streams::OpenStream;

/// How much is read and discarded past the limit, as a multiple of it. Closing while a client still sends would reset the
/// connection before it has read the response.
const DISCARDED: usize = 4;

#[derive(Clone, Debug, Default)]
pub(super) struct BodyState(Arc<AtomicU8>);

const WHOLE: u8 = 1;
const TOO_LARGE: u8 = 2;

impl BodyState {
    pub(super) fn is_too_large(&self) -> bool {
        self.0.load(Relaxed) == TOO_LARGE
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the body is too large")]
pub(super) struct TooLarge;

/// A request body that ends in an error past the limit.
#[derive(Debug)]
pub(super) struct RequestBody {
    inner: Incoming,
    left: usize,
    discard: usize,
    state: BodyState,
    /// The memory of a body that is read while it is answered.
    share: Option<Charged>,
    max: usize,
    /// The memory of the request's header, in bytes.
    header: usize,
}

#[derive(Debug)]
struct Charged {
    share: Share,
    /// Ready if the share was refused to make room.
    refused: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl RequestBody {
    pub(super) fn new(inner: Incoming, max: usize, header: usize) -> Self {
        let whole = inner.is_end_stream();
        let declared = inner.size_hint().lower();
        let discard = max.saturating_mul(DISCARDED);
        let mut body = Self { inner, left: max, discard, state: BodyState::default(), share: None, max, header };
        if whole {
            body.state.0.store(WHOLE, Relaxed);
        } else if declared > max as u64 {
            body.state.0.store(TOO_LARGE, Relaxed);
            body.left = 0;
            // It would not be read to its end anyway.
            if declared > discard as u64 {
                body.discard = 0;
            }
        }
        body
    }

    pub(super) fn state(&self) -> BodyState {
        self.state.clone()
    }

    /// Takes the memory of what is read from `budget`.
    pub(super) fn charge(&mut self, budget: &Arc<Budget>, peer: &Arc<str>) -> Result<(), NoRoom> {
        let share = budget.take(peer, self.header)?;
        let refused = Box::pin(share.refused().clone().cancelled_owned());
        self.share = Some(Charged { share, refused });
        Ok(())
    }

    /// Reads and discards, so that the client can finish sending.
    pub(super) async fn discard(mut self) {
        while let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut self).poll_frame(cx)).await {}
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = tower::BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        loop {
            if this.state.is_too_large() && this.discard == 0 {
                return Poll::Ready(Some(Err(TooLarge.into())));
            }
            // Also while nothing arrives: the service keeps the beginning of a message.
            if this.share.as_mut().is_some_and(|charged| charged.refused.as_mut().poll(cx).is_ready()) {
                return Poll::Ready(Some(Err(NoRoom.into())));
            }
            let frame = match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                None if this.state.is_too_large() => return Poll::Ready(Some(Err(TooLarge.into()))),
                None => {
                    this.state.0.store(WHOLE, Relaxed);
                    return Poll::Ready(None);
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                Some(Ok(frame)) => frame,
            };
            let length = frame.data_ref().map_or(0, Bytes::len);
            if let Some(left) = this.left.checked_sub(length)
                && !this.state.is_too_large()
            {
                this.left = left;
                let bytes = this.header + this.max - left;
                if let Some(Err(no_room)) = this.share.as_mut().map(|charged| charged.share.grow_to(bytes)) {
                    return Poll::Ready(Some(Err(no_room.into())));
                }
                return Poll::Ready(Some(Ok(frame)));
            }
            this.state.0.store(TOO_LARGE, Relaxed);
            this.discard = this.discard.saturating_sub(length);
        }
    }

    fn is_end_stream(&self) -> bool {
        !self.state.is_too_large() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A body that has arrived.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) bytes: Bytes,
    /// Its memory, unless it is small and arrived at once: the limit of requests in flight bounds those.
    pub(super) share: Option<Share>,
}

/// Reads a whole body, within the budget.
pub(super) async fn collect(
    mut body: RequestBody,
    budget: &Arc<Budget>,
    peer: &Arc<str>,
) -> Result<Collected, Refusal> {
    let header = body.header;
    let mut share: Option<Share> = None;
    let mut bytes: Vec<u8> = Vec::new();
    let memory = |bytes: &Vec<u8>| header + bytes.capacity();
    loop {
        let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut body).poll_frame(cx))).await;
        let frame = match (polled, &mut share) {
            (Poll::Ready(frame), _) => frame,
            (Poll::Pending, None) => {
                share = Some(budget.take(peer, memory(&bytes)).map_err(|_| Refusal::Overloaded)?);
                continue;
            }
            (Poll::Pending, Some(share)) => {
                let refused = share.refused().clone();
                tokio::select! {
                    frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)) => frame,
                    () = refused.cancelled() => return Err(Refusal::Overloaded),
                }
            }
        };
        let data = match frame {
            None => break,
            Some(Err(_)) if body.state.is_too_large() => return Err(Refusal::TooLarge { max: body.max }),
            Some(Err(_)) => return Err(Refusal::BrokenBody),
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
        };
        if bytes.is_empty() && share.is_none() && body.is_end_stream() && data.len() <= LEAST {
            return Ok(Collected { bytes: data, share });
        }
        // A copy: a slice would keep the buffer of the connection alive, which may be many times as large.
        bytes.extend_from_slice(&data);
        if let Some(share) = &mut share {
            share.grow_to(memory(&bytes)).map_err(|_| Refusal::Overloaded)?;
        }
    }
    if share.is_none() && bytes.capacity() > LEAST {
        share = Some(budget.take(peer, memory(&bytes)).map_err(|_| Refusal::Overloaded)?);
    }
    if let Some(share) = &mut share {
        share.arrived().map_err(|_| Refusal::Overloaded)?;
    }
    Ok(Collected { bytes: bytes.into(), share })
}

/// A response body: until it is sent, its connection is not idle.
#[derive(Debug)]
pub(super) struct AnswerBody {
    inner: Body,
    _open: OpenRequest,
    _stream: Option<OpenStream>,
    /// Set for gRPC only.
    closing: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    ended: bool,
}

impl AnswerBody {
    /// A gRPC stream ends when `closing` is cancelled. Otherwise a watcher of the health service would delay every drain.
    pub(super) fn new(
        inner: Body,
        open: OpenRequest,
        stream: Option<OpenStream>,
        closing: Option<&CancellationToken>,
    ) -> Self {
        let closing = closing.filter(|_| !inner.is_end_stream());
        let closing = closing.map(|closing| Box::pin(closing.clone().cancelled_owned()));
        Self { inner, _open: open, _stream: stream, closing, ended: false }
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        let Some(closing) = &mut this.closing else { return Poll::Pending };
        ready!(closing.as_mut().poll(cx));
        this.ended = true;
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("14"));
        trailers.insert("grpc-message", HeaderValue::from_static("the connection is closing; try another"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
