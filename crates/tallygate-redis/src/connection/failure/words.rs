//! What the operator reads about a failure.

use std::fmt;

use super::{NotSent, Refusal};

impl NotSent {
    pub(super) fn sentence(self, at: &impl fmt::Display) -> String {
        match self {
            Self::NotListening(_) => format!("nothing is listening on {at}: is the server running?"),
            Self::Connect(error) => format!("cannot connect to {at}: {error}"),
            Self::NoResources(error) => format!(
                "cannot connect to {at}: {error}; raise the limit of open files (ulimit -n), or allow fewer connections"
            ),
            #[cfg(feature = "tls")]
            Self::TlsHandshake(error) => format!("cannot connect to {at}: the TLS handshake failed: {error}"),
            Self::ConnectTimeout { after, tls: true } => {
                format!("{at} did not answer within {after:?}: is it hung, or does this port not speak TLS?")
            }
            Self::ConnectTimeout { after, tls: false } => {
                format!("{at} did not answer within {after:?}: is it hung or overloaded?")
            }
            Self::HandshakeCut { error, tls } => {
                let hint = if tls { "" } else { "does it expect TLS (rediss://), or " };
                format!("{at} closed the connection during the handshake ({error}): {hint}has it reached maxclients?")
            }
            Self::NotMaster(role) => format!(
                "{at} is a {role}, not the master: use the address of the master, or of the sentinels that monitor it \
                 (redis+sentinel://host:26379/master-name)"
            ),
            Self::StillConnecting => format!("connecting to {at} takes longer than the deadline of the call"),
            Self::Unresponsive { longer_than } => {
                format!("{at} has left calls unanswered for longer than {longer_than:?}; probes go on")
            }
            Self::Queued { waited } => format!("the call waited for {waited:?} in this process, and was not sent"),
            Self::Closed(error) => format!("the connection to {at} was closed before the call was sent: {error}"),
            Self::NoSlots => format!("{at} is in a cluster in which no node has a slot: assign the slots first"),
        }
    }
}

impl Refusal {
    pub(super) fn reason_and_remedy(self, at: &impl fmt::Display) -> (String, String) {
        let replied = |reply: String| format!("{at} replied `{reply}`");
        match self {
            Self::Login { reply, to_sentinel } => {
                let whose = if to_sentinel {
                    "password of the sentinels in the store URL: ?sentinel_password=… (and sentinel_user=…)"
                } else {
                    "user and password in the store URL: redis://user:password@host \
                     (redis://:password@host without a user)"
                };
                match reply {
                    Some(reply) => (replied(reply), format!("put the {whose}")),
                    None => (
                        format!("{at} rejected the login: the user or password is wrong"),
                        format!(
                            "check the {whose}, and percent-encode `@`, `/`, `#` and `%` in them: %40, %2F, %23, %25"
                        ),
                    ),
                }
            }
            Self::Permission { reply, rules } => {
                (replied(reply), format!("add the missing rules: ACL SETUSER <user> {rules}"))
            }
            Self::Settings { reply, remedy } => (replied(reply), remedy.into()),
            Self::ClusterNode { owner } => (
                format!("{at} redirected the call to {owner}"),
                "the server is part of a cluster: use redis+cluster://host:port".into(),
            ),
            Self::UnknownMaster { name } => (
                format!("the sentinel at {at} does not monitor a master named `{name}`"),
                "put the name from `sentinel monitor` in its configuration after the hosts: \
                 redis+sentinel://host:26379/master-name"
                    .into(),
            ),
            #[cfg(feature = "tls")]
            Self::Certificate { error } => (
                format!("the certificate of {at} is not valid: {error}"),
                "specify its CA with ?ca=/path/ca.pem, and connect by a name that is in the certificate".into(),
            ),
            #[cfg(feature = "tls")]
            Self::NotTls => (
                format!("{at} does not speak TLS on this port"),
                "use redis:// instead of rediss://, or the TLS port".into(),
            ),
        }
    }
}
