//! One open connection: its handshake, and the calls that share it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::failure::{Failure, NotSent, Refusal};
use super::pipe::{Pipe, Place, Pushes};
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
    /// How long an answer may take: a server that owes one for longer is down.
    pub(crate) deadline: Duration,
    /// How many calls may be in flight to the server.
    pub(crate) in_flight: usize,
    /// The prefix of the key that probes name.
    pub(crate) prefix: Arc<str>,
    /// Counts calls that were dropped after they were sent.
    pub(crate) abandoned: Arc<AtomicU64>,
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
    pipe: Pipe,
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
    pub(crate) async fn subscribe(options: &ConnectOptions, messages: Pushes, channel: &str) -> Result<Self, Failure> {
        let opening = async {
            let connection = Self::connect(options, None, Some(messages)).await?;
            connection.handshake(options).await?;
            connection.ask(redis::cmd("SUBSCRIBE").arg(channel), options).await?;
            Ok(connection)
        };
        timeout(options.timeout, opening).await.unwrap_or_else(|_| Err(timed_out(options)))
    }

    async fn connect(
        options: &ConnectOptions,
        lost: Option<Arc<Notify>>,
        messages: Option<Pushes>,
    ) -> Result<Self, Failure> {
        let socket = Socket::open(options).await?;
        Ok(Self { pipe: Pipe::start(socket, Arc::clone(&options.abandoned), lost, messages) })
    }

    /// One command of the handshake, which has the time limit of the whole.
    async fn ask(&self, command: &Cmd, options: &ConnectOptions) -> Result<Value, Failure> {
        let by = Instant::now() + options.timeout;
        self.send(Request::Command(command), by, None).await.map_err(|failure| handshake_failure(failure, options))
    }

    /// A server that hangs still accepts connections: only a reply proves that it is alive.
    async fn handshake(&self, options: &ConnectOptions) -> Result<(), Failure> {
        let Login { user, password, db } = &options.login;
        let mut commands = redis::pipe();
        if let Some(password) = password {
            commands.cmd("AUTH").arg(user).arg(password);
        }
        if *db != 0 {
            commands.cmd("SELECT").arg(*db);
        }
        commands.cmd("CLIENT").arg("SETNAME").arg("tallygate").cmd("PING");
        if options.master_only {
            commands.cmd("ROLE");
        }
        let by = Instant::now() + options.timeout;
        let replies = self.send(Request::Pipeline(&commands), by, None).await;
        let replies = match replies.map_err(|failure| handshake_failure(failure, options))? {
            Value::Array(replies) => replies,
            one => vec![one],
        };
        let mut replies = replies.iter();
        if password.is_some()
            && let Some(Value::ServerError(error)) = replies.next()
        {
            return Err(match Failure::of_reply(error) {
                failure @ (Failure::NotReady(_) | Failure::Refused(Refusal::Login { .. })) => failure,
                _ => Failure::Refused(Refusal::Login { reply: None, to_sentinel: false }),
            });
        }
        if *db != 0
            && let Some(Value::ServerError(error)) = replies.next()
        {
            return Err(match Failure::of_reply(error) {
                failure @ (Failure::NotReady(_) | Failure::Refused(_)) => failure,
                _ => {
                    let reply = format!("{} {}", error.code(), error.details().unwrap_or_default());
                    let remedy = "check the user, password and database of the store URL";
                    Failure::Refused(Refusal::Settings { reply, remedy })
                }
            });
        }
        // A user without the permission for CLIENT or PING gets a reply too, and that is enough.
        if let Some(Value::ServerError(error)) = replies.nth(1)
            && error.code() != "NOPERM"
        {
            return Err(match Failure::of_reply(error) {
                Failure::Corrupt(reply) => Failure::NotReady(reply),
                failure => failure,
            });
        }
        match replies.next() {
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
        match self.ask(redis::cmd("INFO").arg("replication"), options).await {
            Ok(Value::BulkString(text)) if String::from_utf8_lossy(&text).contains("role:slave") => {
                check_role(b"slave")
            }
            Err(failure @ Failure::NotSent(_)) => Err(failure),
            _ => Ok(()),
        }
    }

    /// Sends a request and waits for its answer. An error reply is a [`Failure`], but stays in place among several.
    pub(crate) async fn send(&self, request: Request<'_>, by: Instant, place: Option<Place>) -> Result<Value, Failure> {
        let (bytes, replies) = match request {
            Request::Command(command) => (command.get_packed_command(), 1),
            Request::Asking(command) => {
                let mut both = redis::cmd("ASKING").get_packed_command();
                command.write_packed_command(&mut both);
                (both, 2)
            }
            Request::Pipeline(commands) => (commands.get_packed_pipeline(), commands.len()),
        };
        let value = match (request, self.pipe.send(bytes, replies, by, place).await?) {
            (Request::Asking(_), Value::Array(mut both)) => both.pop().unwrap_or(Value::Nil),
            (Request::Pipeline(_), one) if replies == 1 => Value::Array(vec![one]),
            (_, value) => value,
        };
        match value {
            Value::ServerError(error) => Err(Failure::of_reply(&error)),
            value => Ok(value),
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.pipe.is_ended()
    }

    pub(crate) fn has_read_all(&self) -> bool {
        self.pipe.has_read_all()
    }

    /// Since when the server owes an answer, if it does.
    pub(crate) fn owes_since(&self) -> Option<Instant> {
        self.pipe.owes_since()
    }

    /// When the server last sent anything.
    pub(crate) fn heard_at(&self) -> Option<Instant> {
        self.pipe.heard_at()
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
fn handshake_failure(failure: Failure, options: &ConnectOptions) -> Failure {
    match failure {
        Failure::Lost(error) | Failure::NotSent(NotSent::Closed(error)) => {
            Failure::NotSent(NotSent::HandshakeCut { error, tls: options.tls.is_some() })
        }
        Failure::TimedOut { .. } | Failure::NotSent(NotSent::Queued { .. }) => timed_out(options),
        failure => failure,
    }
}
