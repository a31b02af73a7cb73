//! A body that says what was used, and may be cut.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tallygate::MemoryStore;
use tallygate::hold::Holds;

use super::Meter;
use super::open::{End, Open};
use crate::body::ResponseBody;

pin_project! {
    /// The body of a response that settles what was reserved for it: when it ends, or when it is dropped.
    pub struct MeteredBody<B, S = MemoryStore>
    where
        S: Holds,
        S: 'static,
    {
        #[pin]
        body: ResponseBody<B>,
        // Boxed, to keep bodies small.
        metering: Option<Box<Metering<S>>>,
        cut: bool,
    }
}

/// What is known of a body.
pub(super) struct Metering<S: Holds + 'static> {
    open: Open<S>,
    meter: Meter,
    /// The units used by what was passed on, if they are known.
    used: Option<u64>,
    /// What ends a body that would use more than was reserved.
    cut: Option<Bytes>,
}

impl<S: Holds + 'static> Metering<S> {
    pub(super) fn of_frames(open: Open<S>, meter: Meter, cut: Option<Bytes>) -> Self {
        Self { open, meter, used: None, cut }
    }

    pub(super) fn of_size(open: Open<S>, cut: Option<Bytes>) -> Self {
        let mut size = 0_u64;
        let meter: Meter = Box::new(move |frame| {
            size = size.saturating_add(frame.data_ref().map_or(0, |data| data.len() as u64));
            Some(size)
        });
        Self { open, meter, used: Some(0), cut }
    }

    /// Counts a frame. Answers what to send instead if it does not fit.
    fn frame(&mut self, frame: &Frame<Bytes>, context: &mut Context<'_>) -> Option<Bytes> {
        let used = (self.meter)(frame).or(self.used);
        if used.is_some_and(|used| used > self.open.reserved())
            && let Some(last) = &self.cut
        {
            // The frame was produced, or says what was: all that was reserved is used.
            self.used = Some(self.open.reserved());
            return Some(last.clone());
        }
        self.used = used;
        if let Some(used) = used {
            self.open.settle_part(used, context);
        }
        None
    }
}

/// The body has ended, or nobody reads it any more.
impl<S: Holds + 'static> Drop for Metering<S> {
    fn drop(&mut self) {
        self.open.end(self.used.map_or(End::Abandoned, End::Used));
    }
}

impl<B, S: Holds + 'static> MeteredBody<B, S> {
    pub(super) fn plain(body: ResponseBody<B>) -> Self {
        Self::metered(body, None)
    }

    pub(super) fn metered(body: ResponseBody<B>, metering: Option<Metering<S>>) -> Self {
        Self { body, metering: metering.map(Box::new), cut: false }
    }
}

impl<B: Body<Data = Bytes>, S: Holds + 'static> Body for MeteredBody<B, S> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        if *this.cut {
            return Poll::Ready(None);
        }
        let Some(metering) = this.metering else { return this.body.poll_frame(context) };
        metering.open.poll(context);
        let frame = ready!(this.body.poll_frame(context));
        let cut = match &frame {
            Some(Ok(frame)) => metering.frame(frame, context),
            Some(Err(_)) | None => {
                *this.metering = None;
                return Poll::Ready(frame);
            }
        };
        let Some(last) = cut else { return Poll::Ready(frame) };
        (*this.cut, *this.metering) = (true, None);
        Poll::Ready((!last.is_empty()).then(|| Ok(Frame::data(last))))
    }

    fn is_end_stream(&self) -> bool {
        self.cut || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.metering {
            // It may become shorter.
            Some(metering) if metering.cut.is_some() => SizeHint::default(),
            _ => self.body.size_hint(),
        }
    }
}

/// An empty body, for services that have to create one.
impl<B, S: Holds + 'static> Default for MeteredBody<B, S> {
    fn default() -> Self {
        Self::plain(ResponseBody::default())
    }
}

impl<B, S: Holds + 'static> fmt::Debug for MeteredBody<B, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeteredBody").finish_non_exhaustive()
    }
}
