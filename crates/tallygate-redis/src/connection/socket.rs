//! The socket of a connection: opened, kept alive, and written to.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::conn::ConnectOptions;
use super::failure::{Failure, NotSent};
use crate::url::Address;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Lets calls that are ready at the same time share one packet.
pub(crate) struct Socket {
    stream: Box<dyn Stream>,
    gathered: bool,
}

impl Socket {
    pub(crate) async fn open(options: &ConnectOptions) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::NotSent(match error.kind() {
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => NotSent::NotListening(error.into()),
                _ => NotSent::Connect(error.into()),
            })
        };
        #[cfg(test)]
        if let Some(stream) = super::simulation::network::dial(&options.address) {
            return Ok(Self { stream: Box::new(stream.map_err(failed)?), gathered: false });
        }
        let stream: Box<dyn Stream> = match &options.address {
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                keep_alive(&stream).map_err(failed)?;
                match &options.tls {
                    Some(tls) => Box::new(tls.wrap(host, stream).await?),
                    None => Box::new(stream),
                }
            }
            #[cfg(unix)]
            Address::Unix(path) => Box::new(tokio::net::UnixStream::connect(path).await.map_err(failed)?),
            #[cfg(not(unix))]
            Address::Unix(_) => return Err(failed(io::ErrorKind::Unsupported.into())),
        };
        Ok(Self { stream, gathered: false })
    }

    /// With Nagle's algorithm off every write is a packet, and the first of many concurrent calls would get one to itself.
    /// Yielding to the scheduler once before each write lets the others join: free when there are none, and with 64
    /// concurrent calls each costs a third.
    fn poll_gather(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.gathered {
            return Poll::Ready(());
        }
        self.gathered = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Detects within seconds a peer that vanished while no call was in progress.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
    let second = Duration::from_secs(1);
    SockRef::from(stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(5 * second).with_interval(second))
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_gather(cx));
        let result = ready!(Pin::new(&mut self.stream).poll_write(cx, buf));
        self.gathered = false;
        Poll::Ready(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
