//! What servers say about themselves. Nothing here trusts them: any reply is read as far as it can be.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use redis::{Pipeline, Value};

use crate::connection::{Deadline, Failure, Node, Refusal, Request};

/// Settings that `INFO` does not show. Asked one by one: only Redis 7 takes several names, and a pattern could match a
/// password.
const SETTINGS: [&str; 11] = [
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "save",
    "stop-writes-on-bgsave-error",
    "timeout",
    "tcp-keepalive",
    "lua-time-limit",
    "busy-reply-threshold",
    "cluster-require-full-coverage",
    "cluster-node-timeout",
    "maxmemory-policy",
];

/// `name:value` lines, or the pairs of a reply.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields(HashMap<String, String>);

impl Fields {
    pub(super) fn of_text(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        Self(pairs.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect())
    }

    /// Alternating names and values, as an array or as a map.
    pub(super) fn of_pairs(value: &Value) -> Self {
        let flat: Vec<&Value> = match value {
            Value::Array(items) => items.iter().collect(),
            Value::Map(pairs) => pairs.iter().flat_map(|(name, value)| [name, value]).collect(),
            _ => Vec::new(),
        };
        let pair = |pair: &[&Value]| Some((text(pair.first()?)?, text(pair.get(1)?)?));
        Self(flat.chunks(2).filter_map(pair).collect())
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    pub(super) fn is(&self, name: &str, value: &str) -> bool {
        self.text(name) == Some(value)
    }

    fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

/// Why a fact is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) why: String,
    pub(super) remedy: String,
    /// The server did not answer at all.
    pub(super) unreachable: bool,
}

pub(super) type Known<T> = Result<T, Missing>;

/// What is known of one server.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) address: String,
    pub(super) info: Known<Fields>,
    /// An error if not even one setting could be read. Not asked by the watch of a server.
    pub(super) settings: Known<Fields>,
}

impl Facts {
    /// A setting that may be unknown.
    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.as_ref().ok()?.text(name)
    }
}

/// Asks servers, and does not repeat what the user may not run: each attempt is a line in `ACL LOG`.
#[derive(Debug, Default)]
pub(super) struct Reader {
    forbidden: Mutex<BTreeSet<&'static str>>,
}

impl Reader {
    pub(super) async fn info(&self, node: &Arc<Node>) -> Known<Fields> {
        let reply = self.ask(node, "info", &["INFO"]).await?;
        Ok(Fields::of_text(&text(&reply).unwrap_or_default()))
    }

    pub(super) async fn settings(&self, node: &Arc<Node>) -> Known<Fields> {
        let rule = "config|get";
        self.permitted(rule)?;
        let mut all = Pipeline::with_capacity(SETTINGS.len());
        for name in SETTINGS {
            all.cmd("CONFIG").arg("GET").arg(name);
        }
        let replies = node.send(Request::Pipeline(&all), Deadline::for_command()).await;
        let Value::Array(replies) = replies.map_err(|failure| self.missing(node, rule, failure))? else {
            let why = format!("{} gave an unknown reply to CONFIG GET", node.address());
            return Err(Missing { why, remedy: String::new(), unreachable: false });
        };
        let mut fields = Fields::default();
        for reply in &replies {
            match reply {
                Value::ServerError(error) => return Err(self.missing(node, rule, Failure::of_reply(error))),
                pairs => fields.merge(Fields::of_pairs(pairs)),
            }
        }
        Ok(fields)
    }

    /// `rule` is the name of the command in an ACL.
    pub(super) async fn ask(&self, node: &Arc<Node>, rule: &'static str, words: &[&str]) -> Known<Value> {
        self.permitted(rule)?;
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        let reply = node.send(Request::Command(&command), Deadline::for_command()).await;
        reply.map_err(|failure| self.missing(node, rule, failure))
    }

    fn permitted(&self, rule: &'static str) -> Known<()> {
        let forbidden = self.forbidden.lock().unwrap_or_else(PoisonError::into_inner);
        if forbidden.contains(rule) { Err(not_permitted(rule)) } else { Ok(()) }
    }

    fn missing(&self, node: &Arc<Node>, rule: &'static str, failure: Failure) -> Missing {
        if let Failure::Refused(Refusal::Permission { .. }) = failure {
            self.forbidden.lock().unwrap_or_else(PoisonError::into_inner).insert(rule);
            return not_permitted(rule);
        }
        let remedy = match &failure {
            Failure::Refused(_) => "allow this command: hosting providers often disable it, so ask yours".to_owned(),
            _ => String::new(),
        };
        let unreachable = matches!(
            failure,
            Failure::NotSent(_)
                | Failure::Lost(_)
                | Failure::TimedOut { .. }
                | Failure::Down(_)
                | Failure::Late(_)
                | Failure::NotReady(_)
        );
        Missing { why: failure.at(node.address()).reason().to_owned(), remedy, unreachable }
    }
}

fn not_permitted(rule: &str) -> Missing {
    Missing {
        why: format!("the user may not run {}", rule.replace('|', " ").to_ascii_uppercase()),
        remedy: format!("to have it checked, give the user of the doctor the rule +{rule}"),
        unreachable: false,
    }
}

/// A string reply.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

pub(super) fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        _ => &[],
    }
}

#[cfg(test)]
impl Facts {
    /// Of `INFO` and settings as they are written.
    pub(super) fn of(info: &str, settings: &str) -> Self {
        let (info, settings) = (Ok(Fields::of_text(info)), Ok(Fields::of_text(settings)));
        Self { address: "h:1".into(), info, settings }
    }
}
