//! One open connection: its socket, the task that drives it, and whether either is still alive.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError, Value,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc::UnboundedSender};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use crate::fault::{Fault, PASSWORD_REMEDY};
use crate::tls::Tls;
use crate::url::{Address, Login};

/// All it takes to open a connection.
#[derive(Clone)]
pub(crate) struct Dial {
    pub(crate) address: Address,
    pub(crate) login: Login,
    pub(crate) tls: Option<Tls>,
    /// Bounds the whole opening, handshake included.
    pub(crate) timeout: Duration,
    /// Calls that can wait for the socket without blocking their caller.
    pub(crate) queue: usize,
    /// Refuse a server that is a replica: a write there fails, a read there is stale.
    pub(crate) master_only: bool,
}

/// A connection that many calls share. Dropping the last handle closes it.
pub(crate) struct Wire {
    connection: MultiplexedConnection,
    address: Address,
    /// Bytes handed to the socket so far: a call that failed without moving it was never sent.
    written: Arc<AtomicU64>,
    dead: Arc<AtomicBool>,
    driver: AbortHandle,
    /// Successive timeouts, plus [`FRESH`] until the first answer.
    strikes: AtomicU32,
}

const FRESH: u32 = 1 << 16;

impl Wire {
    /// Opens a connection and makes sure that the server answers on it. `lost` is notified when it ends.
    pub(crate) async fn open(dial: &Dial, lost: Option<Arc<Notify>>) -> Result<Self, Fault> {
        let opened = timeout_at(Instant::now() + dial.timeout, async {
            let wire = Self::connect(dial, lost, None).await?;
            wire.greet(dial).await?;
            Ok(wire)
        });
        opened.await.unwrap_or_else(|_| Err(silent(dial)))
    }

    /// A connection that also receives what a server publishes.
    pub(crate) async fn listen(dial: &Dial, heard: UnboundedSender<PushInfo>, channel: &str) -> Result<Self, Fault> {
        let opened = timeout_at(Instant::now() + dial.timeout, async {
            let wire = Self::connect(dial, None, Some(heard)).await?;
            let mut connection = wire.connection.clone();
            connection.subscribe(channel).await.map_err(|error| setup_fault(&error, dial))?;
            Ok(wire)
        });
        opened.await.unwrap_or_else(|_| Err(silent(dial)))
    }

    async fn connect(
        dial: &Dial,
        lost: Option<Arc<Notify>>,
        heard: Option<UnboundedSender<PushInfo>>,
    ) -> Result<Self, Fault> {
        let written = Arc::new(AtomicU64::new(0));
        let socket = Counted { inner: socket(dial).await?, written: Arc::clone(&written), gathered: false };
        let mut login = RedisConnectionInfo::default().set_skip_set_lib_name().set_db(dial.login.db.into());
        if let Some(user) = &dial.login.user {
            login = login.set_username(user);
        }
        if let Some(password) = &dial.login.password {
            login = login.set_password(password);
        }
        // Deadlines are ours; its own timer would only add a second one to every call.
        let mut config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_pipeline_buffer_size(dial.queue)
            .set_write_backpressure_boundary(64 * 1024);
        if let Some(heard) = heard {
            login = login.set_protocol(ProtocolVersion::RESP3);
            config = config.set_push_sender(heard);
        }
        let (connection, driver) = MultiplexedConnection::new_with_config(&login, socket, config)
            .await
            .map_err(|error| setup_fault(&error, dial))?;
        let dead = Arc::new(AtomicBool::new(false));
        let end = End { dead: Arc::clone(&dead), lost };
        let driver = tokio::spawn(async move {
            // Also runs when the runtime itself goes away.
            let _end = end;
            driver.await;
        })
        .abort_handle();
        let address = dial.address.clone();
        Ok(Self { connection, address, written, dead, driver, strikes: AtomicU32::new(FRESH) })
    }

    /// A server that hangs accepts connections all the same: only an answer proves it alive.
    async fn greet(&self, dial: &Dial) -> Result<(), Fault> {
        let mut greeting = redis::pipe();
        greeting.cmd("CLIENT").arg("SETNAME").arg("tallygate").cmd("PING");
        if dial.master_only {
            greeting.cmd("ROLE");
        }
        let count = greeting.len();
        let mut connection = self.connection.clone();
        let replies = connection.send_packed_commands(&greeting, 0, count).await;
        let replies = replies.map_err(|error| setup_fault(&error, dial))?;
        // A user may lack the right to name itself, or to ping; it has an answer then, which is all we want.
        if let Some(Value::ServerError(error)) = replies.get(1)
            && error.code() != "NOPERM"
        {
            return Err(match Fault::of_reply(error) {
                Fault::Broken(said) => Fault::NotSent(format!("{} said {said}", dial.address)),
                fault => fault,
            });
        }
        match replies.get(2) {
            None => Ok(()),
            Some(Value::ServerError(_)) => self.greet_master_by_info(dial).await,
            Some(role) => self.master(first_word(role)),
        }
    }

    /// For a user with `+info` but without `+role`. With neither, a write will tell.
    async fn greet_master_by_info(&self, dial: &Dial) -> Result<(), Fault> {
        let mut connection = self.connection.clone();
        let reply = connection.send_packed_command(redis::cmd("INFO").arg("replication")).await;
        match reply.map_err(|error| setup_fault(&error, dial))? {
            Value::BulkString(text) if String::from_utf8_lossy(&text).contains("role:slave") => self.master(b"slave"),
            _ => Ok(()),
        }
    }

    fn master(&self, role: &[u8]) -> Result<(), Fault> {
        if role == b"master" {
            return Ok(());
        }
        let role = if role == b"slave" { "replica".into() } else { String::from_utf8_lossy(role) };
        Err(Fault::NotSent(format!(
            "{} is a {role}, not the master: write the address of the master, or of sentinels that know it \
             (redis+sentinel://host:26379/master-name)",
            self.address
        )))
    }

    /// Sends one command and waits for its answer. An error reply is a [`Fault`].
    pub(crate) async fn ask(&self, command: &Cmd, deadline: Instant) -> Result<Value, Fault> {
        let before = self.written.load(Ordering::Relaxed);
        let mut connection = self.connection.clone();
        let reply = timeout_at(deadline, connection.send_packed_command(command)).await;
        self.judge(reply.ok(), before)
    }

    /// `ASKING` and a command, with nothing of any other call between them.
    pub(crate) async fn ask_importing(&self, command: Cmd, deadline: Instant) -> Result<Value, Fault> {
        let before = self.written.load(Ordering::Relaxed);
        let mut both = redis::pipe();
        both.cmd("ASKING").add_command(command);
        let mut connection = self.connection.clone();
        let replies = timeout_at(deadline, connection.send_packed_commands(&both, 0, 2)).await;
        let last = replies.ok().map(|replies| replies.map(|mut replies| replies.pop().unwrap_or(Value::Nil)));
        self.judge(last, before)
    }

    /// Sends commands at once and waits for the array of their answers; an error reply stays in its place.
    pub(crate) async fn ask_all(&self, commands: &Pipeline, deadline: Instant) -> Result<Value, Fault> {
        let before = self.written.load(Ordering::Relaxed);
        let mut connection = self.connection.clone();
        let replies = timeout_at(deadline, connection.send_packed_commands(commands, 0, commands.len())).await;
        self.judge(replies.ok().map(|replies| replies.map(Value::Array)), before)
    }

    fn judge(&self, reply: Option<Result<Value, RedisError>>, before: u64) -> Result<Value, Fault> {
        match reply {
            Some(Ok(Value::ServerError(error))) => Err(Fault::of_reply(&error)),
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) => {
                self.dead.store(true, Ordering::Relaxed);
                // The driver has ended: what it had not written by now it never will.
                if self.written.load(Ordering::Relaxed) == before {
                    Err(Fault::NotSent(format!("the connection to {} was closed: {error}", self.address)))
                } else {
                    Err(Fault::Lost(format!("the connection to {} was cut after sending: {error}", self.address)))
                }
            }
            None => Err(Fault::TimedOut(format!("{} did not answer in time", self.address))),
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// The timeouts in a row so far, for a call that is about to start.
    pub(crate) fn strikes(&self) -> u32 {
        self.strikes.load(Ordering::Relaxed)
    }

    /// Counts a timeout; how many in a row that makes. Calls that started together count once: a server that stalls for a
    /// moment under a thousand calls has not failed a thousand times.
    pub(crate) fn strike(&self, at_start: u32) -> Option<u32> {
        let counted = self.strikes.compare_exchange(at_start, at_start + 1, Ordering::Relaxed, Ordering::Relaxed);
        counted.ok().map(|before| (before + 1) % FRESH)
    }

    /// Forgets the timeouts. True for the first answer on this connection.
    pub(crate) fn answered(&self) -> bool {
        // A plain load first: the common case must not pull the line away from the other cores.
        self.strikes.load(Ordering::Relaxed) != 0 && self.strikes.swap(0, Ordering::Relaxed) >= FRESH
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Left alone, the driver of a hung server would wait for its answers for ever.
        self.driver.abort();
    }
}

/// Marks the connection dead however its driver ends.
struct End {
    dead: Arc<AtomicBool>,
    lost: Option<Arc<Notify>>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.dead.store(true, Ordering::Relaxed);
        if let Some(lost) = &self.lost {
            lost.notify_one();
        }
    }
}

async fn socket(dial: &Dial) -> Result<Box<dyn Socket>, Fault> {
    let address = &dial.address;
    let failed = |error: io::Error| {
        Fault::NotSent(match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                format!("nobody answers at {address}: is the server running?")
            }
            _ => format!("cannot connect to {address}: {error}"),
        })
    };
    match address {
        Address::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            keep_alive(&stream).map_err(failed)?;
            match &dial.tls {
                Some(tls) => Ok(Box::new(tls.wrap(host, stream).await?)),
                None => Ok(Box::new(stream)),
            }
        }
        #[cfg(unix)]
        Address::Unix(path) => Ok(Box::new(tokio::net::UnixStream::connect(path).await.map_err(failed)?)),
        #[cfg(not(unix))]
        Address::Unix(_) => Err(failed(io::ErrorKind::Unsupported.into())),
    }
}

/// Notices within seconds a peer that vanished while nobody was calling.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
    let second = Duration::from_secs(1);
    SockRef::from(stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(5 * second).with_interval(second))
}

fn silent(dial: &Dial) -> Fault {
    let hint = if dial.tls.is_some() { ": is it hung, or does this port not speak TLS?" } else { "" };
    Fault::NotSent(format!("{} did not answer within {:?} of connecting{hint}", dial.address, dial.timeout))
}

/// Nothing of a call has been sent while a connection is being set up.
fn setup_fault(error: &RedisError, dial: &Dial) -> Fault {
    match error.kind() {
        ErrorKind::AuthenticationFailed => {
            Fault::Refused { reason: "that the user or password is wrong".into(), remedy: PASSWORD_REMEDY.into() }
        }
        ErrorKind::Server(_) => {
            let said = format!("{} {}", error.code().unwrap_or_default(), error.detail().unwrap_or_default());
            Fault::Refused { reason: said, remedy: "check the user, password and database of the store URL".into() }
        }
        _ => {
            let hint = if dial.tls.is_some() { "" } else { "does it want TLS (rediss://), or " };
            let address = &dial.address;
            Fault::NotSent(format!(
                "{address} closed the connection at once ({error}): {hint}has it reached its maxclients?"
            ))
        }
    }
}

fn first_word(role: &Value) -> &[u8] {
    match role {
        Value::Array(parts) => match parts.first() {
            Some(Value::BulkString(word)) => word,
            _ => b"stranger",
        },
        _ => b"stranger",
    }
}

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

/// Counts what is written, and lets calls that are ready at the same time share one packet.
struct Counted {
    inner: Box<dyn Socket>,
    written: Arc<AtomicU64>,
    gathered: bool,
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        // Without Nagle's delay every write is a packet, and the first caller of many would get one to itself. One turn of
        // the scheduler lets the others in: nothing is lost when there are none, and a call among 64 costs a third.
        if !self.gathered {
            self.gathered = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let polled = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.gathered = polled.is_pending();
        match &polled {
            Poll::Ready(Ok(bytes)) => drop(self.written.fetch_add(*bytes as u64, Ordering::Relaxed)),
            // A TLS session may have sent a part before it failed.
            Poll::Ready(Err(_)) => drop(self.written.fetch_add(1, Ordering::Relaxed)),
            Poll::Pending => {}
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
