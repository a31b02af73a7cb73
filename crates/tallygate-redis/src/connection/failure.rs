//! What a failed exchange with a server proves, and what to do next.

mod words;

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{ParsingError, ServerError};
use tallygate::StoreError;
use tallygate::store::StoreErrorKind;

/// One failed exchange. Everything but [`Failure::Lost`], [`Failure::TimedOut`] and [`Failure::Corrupt`] proves that the
/// script changed nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The server does not have the script: send its text.
    NoScript,
    /// Another node has the slot or the key.
    Redirected(Redirect),
    /// Some keys of the call have been moved and some have not: the slot is being moved.
    TryAgain,
    /// Loading, cluster down, master down, too many clients: temporary. With the reply.
    NotReady(String),
    /// The server is a replica: find the master. With the reply.
    ReadOnly(String),
    /// Permanent until someone changes a setting.
    Refused(Refusal),
    /// Not a byte of the call left this process.
    NotSent(NotSent),
    /// The connection ended after sending.
    Lost(Cause),
    /// Sent, and no answer in time. With the time that it waited in this process before.
    TimedOut { queued: Duration },
    /// The server is known to be down, and was not asked. With the reason.
    Down(Box<Failure>),
    /// The server answers too late, if at all, and was not asked. Whether it is at fault is not known yet. With the reason.
    Late(Box<Failure>),
    /// The script stopped half way, or the reply is not from our scripts. With the reply.
    Corrupt(String),
}

/// `MOVED` or `ASK`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) slot: u16,
    pub(crate) address: String,
    /// `ASK`: for this call only, while the slot is being moved.
    pub(crate) asking: bool,
}

/// What the configuration of the server or the store URL forbids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The user or password is missing, or wrong if there is no `reply`.
    Login { reply: Option<String>, to_sentinel: bool },
    /// The user lacks ACL rules.
    Permission { reply: String, rules: String },
    /// Any other error reply that a setting can fix.
    Settings { reply: String, remedy: &'static str },
    /// A cluster node behind the URL of a single server.
    ClusterNode { owner: String },
    /// The sentinel does not monitor a master of this name.
    UnknownMaster { name: String },
    /// The certificate of the server is not valid, or the host of the URL cannot be in a certificate.
    #[cfg(feature = "tls")]
    Certificate { error: Cause },
    /// The port answers, but not with TLS.
    #[cfg(feature = "tls")]
    NotTls,
}

/// Why nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotSent {
    NotListening(Cause),
    Connect(Cause),
    /// This process or machine has no file descriptor, port or memory for a connection.
    NoResources(Cause),
    #[cfg(feature = "tls")]
    TlsHandshake(Cause),
    ConnectTimeout {
        after: Duration,
        tls: bool,
    },
    HandshakeCut {
        error: Cause,
        tls: bool,
    },
    /// With its role.
    NotMaster(String),
    /// The deadline of the call came before the connection was open.
    StillConnecting,
    /// The server has owed an answer for too long.
    Unresponsive {
        longer_than: Duration,
    },
    /// It was still waiting in this process when its time was up.
    Queued {
        waited: Duration,
    },
    /// An open connection turned out to be closed.
    Closed(Cause),
    /// A cluster in which no node has a slot.
    NoSlots,
}

/// The error of a connection, kept as the source of ours.
#[derive(Debug, Clone)]
pub(crate) struct Cause(Arc<dyn Error + Send + Sync>);

impl<E: Error + Send + Sync + 'static> From<E> for Cause {
    fn from(error: E) -> Self {
        Self(Arc::new(error))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for Cause {}

/// Servers repeat arguments in some errors, and errors are logged: leaves out what is in the hash tag of a key, its subject.
fn without_subjects(text: &str) -> String {
    let mut parts = text.split('{');
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // An argument may be cut off anywhere.
        kept.push_str("{*}");
        kept.push_str(part.split_once('}').map_or("…", |(_, rest)| rest));
    }
    kept
}

impl Failure {
    /// Classifies an error reply.
    pub(crate) fn of_reply(error: &ServerError) -> Self {
        Self::of_text(error.code(), error.details().unwrap_or_default())
    }

    /// Classifies the text of an error, which starts with its code.
    pub(crate) fn of_error(error: &str) -> Self {
        let (code, text) = error.split_once(' ').unwrap_or((error, ""));
        Self::of_text(code, text)
    }

    fn of_text(code: &str, text: &str) -> Self {
        let (code, text) = unwrap_script_error(code, text);
        let text = &without_subjects(text);
        let reply = format!("{code} {text}");
        let refused = |remedy| Self::Refused(Refusal::Settings { reply: reply.clone(), remedy });
        match code {
            "NOSCRIPT" => Self::NoScript,
            "MOVED" | "ASK" => Redirect::parse(text, code == "ASK").map_or(Self::Corrupt(reply), Self::Redirected),
            "TRYAGAIN" => Self::TryAgain,
            "LOADING" | "CLUSTERDOWN" | "MASTERDOWN" => Self::NotReady(reply),
            "READONLY" => Self::ReadOnly(reply),
            "NOPERM" => Self::Refused(Refusal::Permission { reply, rules: missing_rules(text) }),
            "NOAUTH" => Self::Refused(Refusal::Login { reply: Some(reply), to_sentinel: false }),
            "WRONGPASS" => Self::Refused(Refusal::Login { reply: None, to_sentinel: false }),
            "OOM" => refused(
                "the server is at maxmemory: raise it, or use a dedicated server; keep maxmemory-policy \
                 noeviction, because any other policy silently resets limits",
            ),
            "MISCONF" => refused(
                "the server cannot save to disk and so rejects writes: fix its disk or its persistence settings",
            ),
            "NOREPLICAS" => {
                refused("too few replicas are in sync for min-replicas-to-write: bring them back or lower the setting")
            }
            "BUSY" => refused(
                "a script or function of some client has been running for too long: wait for it, and find its sender \
                 with SLOWLOG; tallygate never kills a script, because that cannot undo what it wrote",
            ),
            "ERR" => Self::of_plain(text, reply),
            // CROSSSLOT among them: keys of one run that do not share a slot are a bug in this crate.
            _ => Self::Corrupt(reply),
        }
    }

    /// Errors without a specific code: only their text tells them apart.
    fn of_plain(text: &str, reply: String) -> Self {
        let remedy = if text.starts_with("unknown command 'SENTINEL'") || text.starts_with("unknown command `SENTINEL`")
        {
            "this server is not a sentinel: use its port (26379), or redis://host:port for the server itself"
        } else if text.starts_with("unknown command") {
            "allow this command: the server has it disabled or renamed, or is older than 6.2"
        } else if text.contains("cluster support disabled") {
            "this server is not part of a cluster: use redis://host:port"
        } else if text.starts_with("ACL failure in script") || text.contains("The user executing the script can't") {
            return Self::Refused(Refusal::Permission { reply, rules: missing_rules(text) });
        } else if text.starts_with("max number of clients") {
            return Self::NotReady(reply);
        } else {
            return Self::Corrupt(reply);
        };
        Self::Refused(Refusal::Settings { reply, remedy })
    }

    /// The same failure of a call that is not sent because of it.
    pub(crate) fn into_down(self) -> Self {
        Self::Down(Box::new(self))
    }

    /// Whether it is the server that fails, and not time that was too short: that may have passed in this process. A connection that was
    /// closed says little, since another may be opened.
    pub(super) fn is_certain(&self) -> bool {
        use NotSent::{Closed, ConnectTimeout, NoResources, Queued, StillConnecting, Unresponsive};
        match self {
            Self::TimedOut { .. } => false,
            Self::NotSent(why) => !matches!(
                why,
                Closed(_)
                    | ConnectTimeout { .. }
                    | NoResources(_)
                    | Queued { .. }
                    | StillConnecting
                    | Unresponsive { .. }
            ),
            _ => true,
        }
    }

    /// Whether this process failed, so that the silence of the server means nothing.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self, Self::NotSent(NotSent::NoResources(_)))
    }

    /// Whether a call that ended with it was short of time, and the server may be well: it could have been sent again, or waited
    /// for longer.
    pub(super) fn ran_out(&self) -> bool {
        matches!(self, Self::NoScript | Self::Redirected(_) | Self::TryAgain) || !self.is_certain()
    }

    /// The error for users of the store, of a call to the server at `address`.
    pub(crate) fn at(self, address: &impl fmt::Display) -> StoreError {
        let cause = self.cause().cloned();
        let error = self.without_cause(address);
        match cause {
            Some(cause) => error.with_shared_source(cause.0),
            None => error,
        }
    }

    fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Down(why) | Self::Late(why) => why.cause(),
            Self::Lost(cause)
            | Self::NotSent(
                NotSent::NotListening(cause)
                | NotSent::Connect(cause)
                | NotSent::NoResources(cause)
                | NotSent::Closed(cause),
            ) => Some(cause),
            Self::NotSent(NotSent::HandshakeCut { error, .. }) => Some(error),
            #[cfg(feature = "tls")]
            Self::NotSent(NotSent::TlsHandshake(cause)) => Some(cause),
            #[cfg(feature = "tls")]
            Self::Refused(Refusal::Certificate { error }) => Some(error),
            _ => None,
        }
    }

    fn without_cause(self, address: &impl fmt::Display) -> StoreError {
        let replied = |reply: String| format!("{address} replied `{reply}`");
        let unavailable = |reason: String| StoreError::unavailable(reason);
        match self {
            Self::NoScript => unavailable(format!("{address} replied NOSCRIPT: the script did not run")),
            Self::Redirected(Redirect { address: to, .. }) => unavailable(format!(
                "{address} redirected the call to {to}, and its deadline passed before it was sent there"
            )),
            Self::TryAgain => {
                unavailable(format!("{address} is moving the slot and replied TRYAGAIN until the deadline"))
            }
            Self::NotReady(reply) | Self::ReadOnly(reply) => unavailable(replied(reply)),
            Self::NotSent(why) => unavailable(why.sentence(address)),
            Self::Lost(error) => {
                StoreError::ambiguous(format!("the connection to {address} was cut after sending the call: {error}"))
            }
            Self::TimedOut { .. } => StoreError::ambiguous(format!("{address} did not answer in time")),
            Self::Down(why) => match why.without_cause(address) {
                error if error.kind() == StoreErrorKind::Refused => error,
                error => unavailable(error.reason().to_owned()),
            },
            Self::Refused(refusal) => {
                let (reason, remedy) = refusal.reason_and_remedy(address);
                StoreError::refused(reason, remedy)
            }
            Self::Late(why) => Self::Down(why).without_cause(address).late(),
            Self::Corrupt(reply) => StoreError::corrupt(replied(reply)),
        }
    }
}

impl From<ParsingError> for Failure {
    fn from(error: ParsingError) -> Self {
        Self::Corrupt(error.to_string())
    }
}

impl Redirect {
    /// `3999 127.0.0.1:6381`: the slot, and the node that has it.
    fn parse(text: &str, asking: bool) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let slot = words.next()?.parse().ok()?;
        Some(Self { slot, address: words.next()?.to_owned(), asking })
    }
}

/// The error when none of several servers can be used. A refusal outranks the silence of the others: it says what to
/// change.
pub(crate) fn none_of(servers: &str, mut failed: Vec<StoreError>) -> StoreError {
    if let Some(at) = failed.iter().position(|error| error.kind() == StoreErrorKind::Refused) {
        return failed.swap_remove(at);
    }
    let reasons: Vec<String> = failed
        .into_iter()
        .map(|error| match error.kind() {
            StoreErrorKind::Unavailable | StoreErrorKind::Ambiguous => error.reason().to_owned(),
            _ => error.to_string(),
        })
        .collect();
    StoreError::unavailable(format!("no {servers} can be used: {}", reasons.join("; ")))
}

/// Redis 6 wraps the error of a command in that of the script: `ERR Error running script (…): … -READONLY You can't…`. What
/// the script caught itself begins with `@user_script: 66: -OOM command…`.
fn unwrap_script_error<'a>(code: &'a str, text: &'a str) -> (&'a str, &'a str) {
    if !(code == "ERR" && text.starts_with("Error running script") || code == "@user_script:") {
        return (code, text);
    }
    let Some((_, inner)) = text.split_once(": -") else { return (code, text) };
    let (inner_code, inner_text) = inner.split_once(' ').unwrap_or((inner, ""));
    let is_code = !inner_code.is_empty() && inner_code.bytes().all(|b| b.is_ascii_uppercase());
    if is_code { (inner_code, inner_text) } else { (code, text) }
}

/// The ACL rules to add, as precisely as the reply names what is missing.
fn missing_rules(text: &str) -> String {
    // The apostrophe of "can't" is not a quote: what follows it has blanks.
    let quoted = text.split('\'').nth(1).filter(|name| !name.contains(' '));
    if text.contains("channel") {
        return "&+switch-master".into();
    }
    // "can't access at least one of the keys", "No permissions to access a key", "to access the 'tg:{a}' key".
    if text.contains("access") && text.contains("key") {
        let prefix = quoted.and_then(|key| key.split_once(':')).map(|(prefix, _)| prefix);
        return prefix
            .map_or_else(|| "~<prefix>:* (with the key prefix of this store)".into(), |prefix| format!("~{prefix}:*"));
    }
    match quoted.map(str::to_ascii_lowercase).as_deref() {
        // The server does not name the command: all that the scripts run.
        None => "+time +get +set +unlink (for sliding_log also +zadd +zcard +zcount +zrange +zrem +zremrangebyrank \
                 +pexpire, for counters +incrby)"
            .into(),
        // A user who lacks one will need the other soon.
        Some("eval" | "evalsha") => "+evalsha +eval".into(),
        Some(name) => format!("+{name}"),
    }
}

#[cfg(test)]
mod tests;
