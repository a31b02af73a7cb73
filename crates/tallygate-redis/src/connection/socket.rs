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

/// The most bytes of one TLS record. The stream writes more than that as several records, and if one of them fails it does not say
/// which have been sent. A record that was cut cannot be decrypted: nothing of it arrived.
const TLS_RECORD: usize = 16 * 1024;

/// Lets calls that are ready at the same time share one packet.
pub(crate) struct Socket {
    stream: Box<dyn Stream>,
    gathered: bool,
    /// The most bytes of one write. If it fails, none of them has arrived.
    most: usize,
}

impl Socket {
    pub(crate) async fn open(options: &ConnectOptions) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::NotSent(match error.kind() {
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => NotSent::NotListening(error.into()),
                _ if is_short_of_resources(&error) => NotSent::NoResources(error.into()),
                _ => NotSent::Connect(error.into()),
            })
        };
        #[cfg(test)]
        if let Some(stream) = super::simulation::network::dial(&options.address) {
            return Ok(Self { stream: Box::new(stream.map_err(failed)?), gathered: false, most: usize::MAX });
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
        let most = if options.tls.is_some() { TLS_RECORD } else { usize::MAX };
        Ok(Self { stream, gathered: false, most })
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

/// Whether it is this process or machine that cannot have another connection.
fn is_short_of_resources(error: &io::Error) -> bool {
    // `ENFILE` and `EMFILE`, on every Unix: the system or the process has too many open files.
    let files = matches!(error.raw_os_error(), Some(23 | 24));
    files || matches!(error.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::OutOfMemory)
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
        let buf = &buf[..buf.len().min(self.most)];
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Takes whatever it is given.
    struct Sink;

    impl AsyncRead for Sink {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Sink {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Of a longer write that failed, several records may have arrived, and their calls were sent again.
    #[tokio::test]
    async fn under_tls_a_write_is_one_record_at_most() {
        let mut socket = Socket { stream: Box::new(Sink), gathered: false, most: TLS_RECORD };
        for (bytes, written) in [(100 * 1024, TLS_RECORD), (10, 10)] {
            let bytes = vec![0; bytes];
            let took = poll_fn(|cx| Pin::new(&mut socket).poll_write(cx, &bytes)).await.unwrap();
            assert_eq!(took, written);
        }
    }

    /// With no file descriptor left a connection fails, however well the server is.
    #[test]
    fn a_lack_of_files_or_ports_is_ours() {
        for (number, ours) in [(23, true), (24, true), (99, true), (111, false), (113, false)] {
            assert_eq!(is_short_of_resources(&io::Error::from_raw_os_error(number)), ours, "errno {number}");
        }
    }
}
