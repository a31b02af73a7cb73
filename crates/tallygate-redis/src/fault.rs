//! What a failed exchange with a server proves, and so what may be done next.

use std::fmt;

use redis::ServerError;
use tallygate::StoreError;

/// One failed exchange. Everything but [`Fault::Lost`], [`Fault::TimedOut`] and [`Fault::Broken`] proves that the script
/// changed nothing, and may therefore be asked again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server does not know the script: send its text.
    NoScript,
    /// The slot lives elsewhere for good.
    Moved { slot: u16, address: String },
    /// This key lives elsewhere already, the slot does not yet.
    Ask { slot: u16, address: String },
    /// Some keys of the call are here and some are there: the slot is being moved.
    TryAgain,
    /// Loading, cluster down, master down: passes by itself.
    NotReady(String),
    /// The server is a replica (now): find the master.
    ReadOnly(String),
    /// The server will go on saying so until someone changes its settings.
    Refused { reason: String, remedy: String },
    /// Our keys do not share a slot: a mistake of ours.
    CrossSlot(String),
    /// The script stopped half way, or the reply is none of ours.
    Broken(String),
    /// Not a byte of the call left this process.
    NotSent(String),
    /// Cut off after sending.
    Lost(String),
    /// Sent, and no answer in time.
    TimedOut(String),
}

/// The commands our scripts run: what to allow when the server does not name the one it refused.
const SCRIPT_COMMANDS: &str = "+time +get +set +unlink (for sliding_log also +zadd +zcard +zcount +zrange +zrem \
                               +zremrangebyrank +pexpire, for counters +incrby)";

impl Fault {
    /// What an error reply means.
    pub(crate) fn of_reply(error: &ServerError) -> Self {
        Self::of_text(error.code(), error.details().unwrap_or_default())
    }

    fn of_text(code: &str, text: &str) -> Self {
        let (code, text) = unwrap_script_error(code, text);
        let said = || format!("{code} {text}");
        let refused = |remedy: &str| Self::Refused { reason: said(), remedy: remedy.to_owned() };
        match code {
            "NOSCRIPT" => Self::NoScript,
            "MOVED" => {
                redirect(text).map_or_else(|| Self::Broken(said()), |(slot, address)| Self::Moved { slot, address })
            }
            "ASK" => redirect(text).map_or_else(|| Self::Broken(said()), |(slot, address)| Self::Ask { slot, address }),
            "TRYAGAIN" => Self::TryAgain,
            "LOADING" | "CLUSTERDOWN" | "MASTERDOWN" => Self::NotReady(said()),
            "READONLY" => Self::ReadOnly(said()),
            "CROSSSLOT" => Self::CrossSlot(said()),
            "NOPERM" => Self::Refused { reason: said(), remedy: missing_rule(text) },
            "NOAUTH" | "WRONGPASS" => refused(PASSWORD_REMEDY),
            "OOM" => refused(
                "the server is at maxmemory: raise it or give tallygate a server of its own; keep maxmemory-policy \
                 noeviction, any other forgets limits silently",
            ),
            "MISCONF" => refused(
                "the server cannot save to disk and so takes no writes: mend its disk or its persistence settings",
            ),
            "NOREPLICAS" => {
                refused("too few replicas are in step for min-replicas-to-write: bring them back or lower the setting")
            }
            "BUSY" => refused(
                "a script or function of some client runs for too long: wait for it, and find who sends it with \
                 SLOWLOG; tallygate never kills one, since that cannot undo what it wrote",
            ),
            "ERR" => Self::of_plain(text),
            _ => Self::Broken(said()),
        }
    }

    /// Errors without a code of their own. Their wording is all there is to go by.
    fn of_plain(text: &str) -> Self {
        let reason = format!("ERR {text}");
        let refused = |remedy: String| Self::Refused { reason: reason.clone(), remedy };
        if text.starts_with("ACL failure in script") || text.contains("The user executing the script can't") {
            refused(missing_rule(text))
        } else if text.starts_with("unknown command 'SENTINEL'") || text.starts_with("unknown command `SENTINEL`") {
            refused(
                "this server is no sentinel: write its port (26379), or redis://host:port for the server itself".into(),
            )
        } else if text.starts_with("unknown command") {
            refused(
                "allow this command: the server has it disabled, renamed, or is too old (6.2 is the oldest served)"
                    .into(),
            )
        } else if text.contains("cluster support disabled") {
            refused("this server is no cluster: write redis://host:port".into())
        } else if text.starts_with("max number of clients") {
            Self::NotReady(reason)
        } else {
            Self::Broken(reason)
        }
    }

    /// The fault in the words of the store. `address` is the server that was asked last.
    pub(crate) fn into_store_error(self, address: &dyn fmt::Display) -> StoreError {
        match self {
            Self::NotReady(said) | Self::ReadOnly(said) => {
                StoreError::Unavailable { reason: format!("{address} said {said}") }
            }
            Self::TryAgain => StoreError::Unavailable {
                reason: format!("{address} is moving the slot and said TRYAGAIN until the deadline"),
            },
            Self::Moved { address: to, .. } | Self::Ask { address: to, .. } => {
                StoreError::Unavailable { reason: format!("{address} pointed to {to}, and so on until the deadline") }
            }
            Self::NotSent(reason) => StoreError::Unavailable { reason },
            Self::Lost(reason) | Self::TimedOut(reason) => StoreError::Ambiguous { reason },
            Self::Refused { reason, remedy } => {
                StoreError::Refused { reason: format!("{address} said {reason}"), remedy }
            }
            Self::NoScript => {
                StoreError::Corrupt { reason: format!("{address} answered NOSCRIPT to a script sent in full") }
            }
            Self::CrossSlot(said) | Self::Broken(said) => {
                StoreError::Corrupt { reason: format!("{address} said {said}") }
            }
        }
    }
}

/// What to say when none of several servers would do. A refusal is worth more than the silence of the others: it says what
/// to change.
pub(crate) fn none_of(who: &str, mut failed: Vec<StoreError>) -> StoreError {
    if let Some(at) = failed.iter().position(|error| matches!(error, StoreError::Refused { .. })) {
        return failed.swap_remove(at);
    }
    let reasons: Vec<String> = failed
        .into_iter()
        .map(|error| match error {
            StoreError::Unavailable { reason } | StoreError::Ambiguous { reason } => reason,
            other => other.to_string(),
        })
        .collect();
    StoreError::Unavailable { reason: format!("no {who} will do: {}", reasons.join("; ")) }
}

/// What to do about a password that is missing or wrong.
pub(crate) const PASSWORD_REMEDY: &str = "put the user and password the server expects in the store URL: \
                                          redis://user:password@host (redis://:password@host without a user)";

/// Redis 6 hides the error a script met inside the text of its own: `ERR Error running script (…): … -READONLY You can't…`.
fn unwrap_script_error<'a>(code: &'a str, text: &'a str) -> (&'a str, &'a str) {
    if code != "ERR" || !text.starts_with("Error running script") {
        return (code, text);
    }
    let Some((_, inner)) = text.split_once(": -") else { return (code, text) };
    let (inner_code, inner_text) = inner.split_once(' ').unwrap_or((inner, ""));
    let is_code = !inner_code.is_empty() && inner_code.bytes().all(|b| b.is_ascii_uppercase());
    if is_code { (inner_code, inner_text) } else { (code, text) }
}

/// `3999 127.0.0.1:6381`: the slot, and where it lives.
fn redirect(text: &str) -> Option<(u16, String)> {
    let mut words = text.split_ascii_whitespace();
    let slot = words.next()?.parse().ok()?;
    Some((slot, words.next()?.to_owned()))
}

/// The ACL rule to add, as exactly as the reply lets us name it.
fn missing_rule(text: &str) -> String {
    // The apostrophe of "can't" opens no name: what follows it has blanks.
    let quoted = text.split('\'').nth(1).filter(|name| !name.contains(' '));
    let rule = |rule: &str| format!("add the missing rule: ACL SETUSER <user> {rule}");
    if text.contains("channel") {
        return rule("&+switch-master");
    }
    // "can't access at least one of the keys", "No permissions to access a key", "to access the 'tg:{a}' key".
    if text.contains("access") && text.contains("key") {
        let prefix = quoted.and_then(|key| key.split_once(':')).map(|(prefix, _)| prefix);
        return prefix.map_or_else(
            || format!("{} (the key prefix of this store)", rule("~<prefix>:*")),
            |prefix| rule(&format!("~{prefix}:*")),
        );
    }
    match quoted.map(str::to_ascii_lowercase).as_deref() {
        None => rule(SCRIPT_COMMANDS),
        // Who lacks one lacks the other sooner or later.
        Some("eval" | "evalsha") => rule("+evalsha +eval"),
        Some(name) => rule(&format!("+{name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Fault {
        let (code, text) = line.split_once(' ').unwrap_or((line, ""));
        Fault::of_text(code, text)
    }

    #[test]
    fn redirections_name_slot_and_address() {
        assert_eq!(of("MOVED 3999 127.0.0.1:6381"), Fault::Moved { slot: 3999, address: "127.0.0.1:6381".into() });
        assert_eq!(of("ASK 1 ::1:7000"), Fault::Ask { slot: 1, address: "::1:7000".into() });
        assert!(matches!(of("MOVED nonsense"), Fault::Broken(_)));
    }

    #[test]
    fn what_passes_by_itself_is_asked_again() {
        assert_eq!(of("NOSCRIPT No matching script. Please use EVAL."), Fault::NoScript);
        assert_eq!(of("TRYAGAIN Multiple keys request during rehashing of slot"), Fault::TryAgain);
        for line in [
            "LOADING Redis is loading the dataset in memory",
            "CLUSTERDOWN Hash slot not served",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "ERR max number of clients reached",
        ] {
            assert!(matches!(of(line), Fault::NotReady(_)), "{line}");
        }
    }

    #[test]
    fn readonly_is_found_inside_a_script_error_of_redis_6() {
        for line in [
            "READONLY You can't write against a read only replica.",
            "READONLY You can't write against a read only replica. script: 5b1e, on @user_script:1.",
            "ERR Error running script (call to f_5b1e): @user_script:1: @user_script: 1: -READONLY You can't write against \
             a read only replica.",
        ] {
            assert!(matches!(of(line), Fault::ReadOnly(_)), "{line}");
        }
    }

    #[test]
    fn every_refusal_names_its_remedy() {
        for (line, remedy) in [
            ("NOPERM this user has no permissions to run the 'evalsha' command", "+evalsha"),
            ("NOPERM this user has no permissions to run the 'evalsha' command or its subcommand", "+evalsha"),
            ("NOPERM User rl has no permissions to run the 'script|load' command", "+script|load"),
            ("NOPERM User rl has no permissions to access the 'tg:{a}' key", "~tg:*"),
            ("NOPERM No permissions to access a key", "~<prefix>:*"),
            ("NOPERM this user has no permissions to access one of the keys used as arguments", "~<prefix>:*"),
            (
                "ERR The user executing the script can't run this command or subcommand script: 5b1e, on @user_script:1.",
                "+set",
            ),
            (
                "ERR Error running script (call to f_5b1e): @user_script:1: The user executing the script can't run this \
                 command or subcommand",
                "+set",
            ),
            (
                "ERR The user executing the script can't access at least one of the keys mentioned in the command \
                 arguments script: 5b1e, on @user_script:1.",
                "~<prefix>:*",
            ),
            ("ERR ACL failure in script: User rl has no permissions to run the 'set' command", "+set"),
            ("NOPERM ACL failure in script: User rl has no permissions to run the 'zadd' command", "+zadd"),
            ("NOAUTH Authentication required.", "redis://user:password@host"),
            ("WRONGPASS invalid username-password pair or user is disabled.", "redis://user:password@host"),
            ("OOM command not allowed when used memory > 'maxmemory'. script: 5b1e, on @user_script:1.", "noeviction"),
            (
                "ERR Error running script (call to f_5b1e): @user_script:1: @user_script: 1: -OOM command not allowed when \
                 used memory > 'maxmemory'.",
                "noeviction",
            ),
            ("MISCONF Redis is configured to save RDB snapshots, but…", "disk"),
            ("NOREPLICAS Not enough good replicas to write.", "min-replicas-to-write"),
            ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", "wait for it"),
            ("ERR unknown command 'EVALSHA', with args beginning with: ", "allow this command"),
            ("ERR unknown command 'SENTINEL', with args beginning with: 'get", "no sentinel"),
            ("ERR This instance has cluster support disabled", "redis://"),
        ] {
            let Fault::Refused { remedy: named, .. } = of(line) else { panic!("{line}: {:?}", of(line)) };
            assert!(named.contains(remedy), "{line}: {named}");
        }
    }

    #[test]
    fn what_may_have_written_is_corrupt() {
        assert!(matches!(of("CROSSSLOT Keys in request don't hash to the same slot"), Fault::CrossSlot(_)));
        for line in [
            "WRONGTYPE Operation against a key holding the wrong kind of value script: 5b1e, on @user_script:1.",
            "ERR user_script:1: attempt to index a nil value script: 5b1e, on @user_script:1.",
            "ERR Error running script (call to f_5b1e): @user_script:1: user_script:1: attempt to perform arithmetic",
            "ERR Error running script (call to f_5b1e): @user_script:1: @user_script: 1: -WRONGTYPE Operation against",
            "STRANGE words",
        ] {
            let error = of(line).into_store_error(&"h:1");
            assert!(matches!(error, StoreError::Corrupt { .. }), "{line}: {error:?}");
        }
    }

    #[test]
    fn only_what_was_sent_is_ambiguous() {
        assert!(matches!(Fault::Lost("x".into()).into_store_error(&"h:1"), StoreError::Ambiguous { .. }));
        assert!(matches!(Fault::TimedOut("x".into()).into_store_error(&"h:1"), StoreError::Ambiguous { .. }));
        assert!(matches!(Fault::NotSent("x".into()).into_store_error(&"h:1"), StoreError::Unavailable { .. }));
    }
}
