//! Bodies: of a response, and of a refusal of your own.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
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

/// An empty body, for services that have to create one.
impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::refused(Bytes::new())
    }
}

/// The body of a refusal of your own ([`RateLimit::respond`](crate::RateLimit::respond)). Converts from `Bytes`, text, and, with the
/// feature `axum`, from axum's `Body`; [`new`](Self::new) takes any other.
///
/// It is read to its end before the response is sent.
pub struct RefusalBody(Content);

enum Content {
    Ready(Bytes),
    // Boxed, to keep the future of a response small.
    Streamed(Box<Streamed>),
}

struct Streamed {
    body: Pin<Box<dyn Chunks>>,
    read: BytesMut,
}

type BoxError = Box<dyn Error + Send + Sync>;

/// Any body, with its types erased.
trait Chunks: Send {
    /// The next piece of data. Trailers are skipped.
    fn poll_chunk(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BoxError>>>;
}

impl<B> Chunks for B
where
    B: Body + Send,
    B::Error: Into<BoxError>,
{
    fn poll_chunk(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BoxError>>> {
        loop {
            let Some(frame) = ready!(self.as_mut().poll_frame(context)).transpose().map_err(Into::into)? else {
                return Poll::Ready(None);
            };
            if let Ok(mut data) = frame.into_data() {
                return Poll::Ready(Some(Ok(data.copy_to_bytes(data.remaining()))));
            }
        }
    }
}

impl RefusalBody {
    /// Any body: `response.map(RefusalBody::new)`.
    pub fn new<B>(body: B) -> Self
    where
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Content::Streamed(Box::new(Streamed { body: Box::pin(body), read: BytesMut::new() })))
    }

    /// Reads it to its end.
    pub(crate) fn poll_text(&mut self, context: &mut Context<'_>) -> Poll<Result<Bytes, BoxError>> {
        match &mut self.0 {
            Content::Ready(text) => Poll::Ready(Ok(std::mem::take(text))),
            Content::Streamed(streamed) => loop {
                match ready!(streamed.body.as_mut().poll_chunk(context)).transpose()? {
                    Some(chunk) => streamed.read.extend_from_slice(&chunk),
                    None => return Poll::Ready(Ok(std::mem::take(&mut streamed.read).freeze())),
                }
            },
        }
    }
}

impl fmt::Debug for RefusalBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusalBody").finish_non_exhaustive()
    }
}

impl From<Bytes> for RefusalBody {
    fn from(text: Bytes) -> Self {
        Self(Content::Ready(text))
    }
}

impl From<String> for RefusalBody {
    fn from(text: String) -> Self {
        Self::from(Bytes::from(text))
    }
}

impl From<&'static str> for RefusalBody {
    fn from(text: &'static str) -> Self {
        Self::from(Bytes::from_static(text.as_bytes()))
    }
}

impl From<Vec<u8>> for RefusalBody {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from(Bytes::from(bytes))
    }
}

impl From<()> for RefusalBody {
    fn from((): ()) -> Self {
        Self::from(Bytes::new())
    }
}

#[cfg(feature = "axum")]
impl From<axum::body::Body> for RefusalBody {
    fn from(body: axum::body::Body) -> Self {
        Self::new(body)
    }
}
