//! The body of a response: the service's own, or that of a refusal.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of a response: the service's own, or that of a refusal.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    #[derive(Debug)]
    enum Kind<B> {
        Served { #[pin] body: B },
        Refused { text: Option<Bytes> },
    }
}

impl<B> ResponseBody<B> {
    pub(crate) fn served(body: B) -> Self {
        Self { kind: Kind::Served { body } }
    }

    pub(crate) fn refused(text: Bytes) -> Self {
        Self { kind: Kind::Refused { text: Some(text).filter(|text| !text.is_empty()) } }
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProjection::Served { body } => body.poll_frame(context),
            KindProjection::Refused { text } => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Served { body } => body.is_end_stream(),
            Kind::Refused { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Served { body } => body.size_hint(),
            Kind::Refused { text } => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
        }
    }
}

/// An empty body, for services that have to make one up.
impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::refused(Bytes::new())
    }
}
