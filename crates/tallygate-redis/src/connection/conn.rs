//! One open connection: its handshake, the task that drives it, and the calls that share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError, Value,
};
use tokio::sync::{Notify, mpsc::UnboundedSender};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::failure::{Failure, NotSent, Refusal};
use super::socket::Socket;
use super::tls::Tls;
use crate::url::{Address, Login};

/// How to open a connection.
#[derive(Clone)]
pub(crate) struct ConnectOptions {
    pub(crate) address: Address,
    pub(crate) login: Login,
    pub(crate) tls: Option<Tls>,
    /// For all of it, handshake included.
    pub(crate) timeout: Duration,
    /// Calls that can wait for the socket without blocking their caller.
    pub(crate) queue: usize,
    /// Refuse a replica: a write there fails, a read there is stale.
    pub(crate) master_only: bool,
}

impl ConnectOptions {
    pub(crate) fn with_address(&self, address: Address) -> Self {
        Self { address, ..self.clone() }
    }
}

/// What is sent together, with nothing of any other call in between.
#[derive(Clone, Copy)]
pub(crate) enum Request<'a> {
    Command(&'a Cmd),
    /// `ASKING` and the command, for a slot that the node is importing.
    Asking(&'a Cmd),
    /// Answered by an array.
    Pipeline(&'a Pipeline),
}

/// A connection that many calls share. Dropping the last handle closes it.
pub(crate) struct Connection {
    inner: MultiplexedConnection,
    /// Bytes handed to the socket so far: a call that failed without moving it was never sent.
    written: Arc<AtomicU64>,
    dead: Arc<AtomicBool>,
    driver: AbortHandle,
    /// Consecutive timeouts.
    timeouts: AtomicU32,
    answered: AtomicBool,
}

impl Connection {
    /// Opens a connection and checks that the server answers. `lost` is notified when the connection ends.
    pub(crate) async fn open(options: &ConnectOptions, lost: Option<Arc<Notify>>) -> Result<Self, Failure> {
        let opening = async {
            let connection = Self::connect(options, lost, None).await?;
            connection.handshake(options).await?;
            Ok(connection)
        };
        timeout(options.timeout, opening).await.unwrap_or_else(|_| Err(timed_out(options)))
    }

    /// Opens a connection that receives what the server publishes on a channel.
    pub(crate) async fn subscribe(
        options: &ConnectOptions,
        messages: UnboundedSender<PushInfo>,
        channel: &str,
    ) -> Result<Self, Failure> {
        let opening = async {
            let connection = Self::connect(options, None, Some(messages)).await?;
            connection.inner.clone().subscribe(channel).await.map_err(|error| setup_failure(error, options))?;
            Ok(connection)
        };
        timeout(options.timeout, opening).await.unwrap_or_else(|_| Err(timed_out(options)))
    }

    async fn connect(
        options: &ConnectOptions,
        lost: Option<Arc<Notify>>,
        messages: Option<UnboundedSender<PushInfo>>,
    ) -> Result<Self, Failure> {
        let written = Arc::new(AtomicU64::new(0));
        let socket = Socket::open(options, Arc::clone(&written)).await?;
        let mut login = RedisConnectionInfo::default().set_skip_set_lib_name().set_db(options.login.db.into());
        if let Some(user) = &options.login.user {
            login = login.set_username(user);
        }
        if let Some(password) = &options.login.password {
            login = login.set_password(password);
        }
        // Calls have their own deadlines; a response timeout would only add a second timer to each.
        let mut config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_pipeline_buffer_size(options.queue)
            .set_write_backpressure_boundary(64 * 1024);
        if let Some(messages) = messages {
            login = login.set_protocol(ProtocolVersion::RESP3);
            config = config.set_push_sender(messages);
        }
        let (inner, driver) = MultiplexedConnection::new_with_config(&login, socket, config)
            .await
            .map_err(|error| setup_failure(error, options))?;
        let dead = Arc::new(AtomicBool::new(false));
        let guard = DriverGuard { dead: Arc::clone(&dead), lost };
        let driver = tokio::spawn(async move {
            // Dropped however the task ends, also when the runtime shuts down.
            let _guard = guard;
            driver.await;
        })
        .abort_handle();
        Ok(Self { inner, written, dead, driver, timeouts: AtomicU32::new(0), answered: AtomicBool::new(false) })
    }

    /// A server that hangs still accepts connections: only a reply proves that it is alive.
    async fn handshake(&self, options: &ConnectOptions) -> Result<(), Failure> {
        let mut commands = redis::pipe();
        commands.cmd("CLIENT").arg("SETNAME").arg("tallygate").cmd("PING");
        if options.master_only {
            commands.cmd("ROLE");
        }
        let replies = self.inner.clone().send_packed_commands(&commands, 0, commands.len()).await;
        let replies = replies.map_err(|error| setup_failure(error, options))?;
        // A user without the permission for CLIENT or PING gets a reply too, and that is enough.
        if let Some(Value::ServerError(error)) = replies.get(1)
            && error.code() != "NOPERM"
        {
            return Err(match Failure::of_reply(error) {
                Failure::Corrupt(reply) => Failure::NotReady(reply),
                failure => failure,
            });
        }
        match replies.get(2) {
            None => Ok(()),
            Some(Value::ServerError(_)) => self.check_role_by_info(options).await,
            Some(Value::Array(parts)) => match parts.first() {
                Some(Value::BulkString(role)) => check_role(role),
                _ => check_role(b""),
            },
            Some(_) => check_role(b""),
        }
    }

    /// For a user with `+info` but without `+role`. With neither, the first write finds out.
    async fn check_role_by_info(&self, options: &ConnectOptions) -> Result<(), Failure> {
        let reply = self.inner.clone().send_packed_command(redis::cmd("INFO").arg("replication")).await;
        match reply.map_err(|error| setup_failure(error, options))? {
            Value::BulkString(text) if String::from_utf8_lossy(&text).contains("role:slave") => check_role(b"slave"),
            _ => Ok(()),
        }
    }

    /// Sends a request and waits for its answer. An error reply is a [`Failure`], but stays in place among several.
    pub(crate) async fn send(&self, request: Request<'_>, deadline: Instant) -> Result<Value, Failure> {
        let mut inner = self.inner.clone();
        let reply = async {
            match request {
                Request::Command(command) => inner.send_packed_command(command).await,
                Request::Asking(command) => {
                    let mut both = redis::pipe();
                    both.cmd("ASKING").add_command(command.clone());
                    Ok(inner.send_packed_commands(&both, 0, 2).await?.pop().unwrap_or(Value::Nil))
                }
                Request::Pipeline(commands) => {
                    inner.send_packed_commands(commands, 0, commands.len()).await.map(Value::Array)
                }
            }
        };
        let written = self.written.load(Ordering::Relaxed);
        let timeouts = self.timeouts.load(Ordering::Relaxed);
        match timeout_at(deadline, reply).await {
            Ok(Ok(value)) => {
                // A load first: the common case must not take the cache line from the other cores.
                if self.timeouts.load(Ordering::Relaxed) != 0 {
                    self.timeouts.store(0, Ordering::Relaxed);
                }
                match value {
                    Value::ServerError(error) => Err(Failure::of_reply(&error)),
                    value => Ok(value),
                }
            }
            Ok(Err(error)) => {
                self.dead.store(true, Ordering::Relaxed);
                // The driver has ended: what it has not written by now will never be written.
                if self.written.load(Ordering::Relaxed) == written {
                    Err(Failure::NotSent(NotSent::Closed(error.into())))
                } else {
                    Err(Failure::Lost(error.into()))
                }
            }
            Err(_) => {
                // Concurrent calls count once: a server that stalls for a moment under a thousand calls has not failed a
                // thousand times.
                let (relaxed, next) = (Ordering::Relaxed, timeouts + 1);
                let _ = self.timeouts.compare_exchange(timeouts, next, relaxed, relaxed);
                Err(Failure::TimedOut)
            }
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    pub(crate) fn timeouts(&self) -> u32 {
        self.timeouts.load(Ordering::Relaxed)
    }

    /// True once, for the first call that was answered.
    pub(crate) fn is_first_answer(&self) -> bool {
        !self.answered.load(Ordering::Relaxed) && !self.answered.swap(true, Ordering::Relaxed)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Otherwise the driver of a server that hangs would wait for its answers for ever.
        self.driver.abort();
    }
}

/// Marks the connection dead when its driver ends.
struct DriverGuard {
    dead: Arc<AtomicBool>,
    lost: Option<Arc<Notify>>,
}

impl Drop for DriverGuard {
    fn drop(&mut self) {
        self.dead.store(true, Ordering::Relaxed);
        if let Some(lost) = &self.lost {
            lost.notify_one();
        }
    }
}

fn check_role(role: &[u8]) -> Result<(), Failure> {
    let role = match role {
        b"master" => return Ok(()),
        b"slave" => "replica".into(),
        b"" => "server of unknown role".into(),
        other => String::from_utf8_lossy(other).into_owned(),
    };
    Err(Failure::NotSent(NotSent::NotMaster(role)))
}

fn timed_out(options: &ConnectOptions) -> Failure {
    Failure::NotSent(NotSent::ConnectTimeout { after: options.timeout, tls: options.tls.is_some() })
}

/// Nothing of a call has been sent while a connection is being opened.
fn setup_failure(error: RedisError, options: &ConnectOptions) -> Failure {
    match error.kind() {
        ErrorKind::AuthenticationFailed => Failure::Refused(Refusal::Login { reply: None, to_sentinel: false }),
        ErrorKind::Server(_) => {
            let (code, text) = (error.code().unwrap_or_default(), error.detail().unwrap_or_default());
            let remedy = "check the user, password and database of the store URL";
            Failure::Refused(Refusal::Settings { reply: format!("{code} {text}"), remedy })
        }
        _ => Failure::NotSent(NotSent::HandshakeCut { error: error.into(), tls: options.tls.is_some() }),
    }
}
