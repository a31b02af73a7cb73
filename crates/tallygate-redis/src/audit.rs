//! A look at what a store holds, without disturbing it: keys, memory, and keys that would never expire.

mod report;
mod sweep;
mod tally;

use std::time::Duration;

use redis::{Pipeline, Value};
use tallygate::StoreError;

use crate::link::{Link, Server, Settings};
use crate::script::corrupt;
use crate::store::ConnectError;
use crate::url::StoreUrl;
pub use report::{AuditReport, LargeKey, ServerReport, Usage};
pub use sweep::Sweep;
use tally::{Found, Tally};

/// Keys a server is asked for at a time: a fraction of a millisecond of its work.
const BATCH: usize = 500;

/// Nothing but an end, and only where there is none: `PEXPIRE … NX` would do the same from Redis 7 on.
const GIVE_END: &str = "if redis.call('PTTL', KEYS[1]) ~= -1 then return 0 end \
                        return redis.call('PEXPIRE', KEYS[1], ARGV[1])";

/// Looks through a store over connections of its own, in small steps: decisions go on undelayed meanwhile.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tallygate_redis::{Audit, Sweep};
///
/// let audit = Audit::connect("redis://127.0.0.1:6379").await?;
/// let report = audit.run(&Sweep::of("tallygate")?, |keys_seen| println!("{keys_seen}")).await?;
/// assert_eq!(report.orphans, 0, "every key expires");
/// # Ok(()) }
/// ```
pub struct Audit {
    link: Link,
}

impl Audit {
    /// Connects; see [`StoreUrl`] for the forms of the URL.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        let url: StoreUrl = url.parse()?;
        Ok(Self { link: Link::connect(&url, Settings::default()).await? })
    }

    /// Looks through every master, one after the other; `progress` is told how many keys have been seen so far.
    ///
    /// It takes the same memory however many keys there are. Keys that move or are added meanwhile may be missed or be
    /// counted twice, as `SCAN` has it.
    pub async fn run(&self, sweep: &Sweep, mut progress: impl FnMut(u64)) -> Result<AuditReport, StoreError> {
        let mut tally = Tally::new(sweep);
        let mut servers = Vec::new();
        for server in self.link.masters().await? {
            let mut told = about(&server).await.map_err(|error| name_rights(error, sweep))?;
            let before = tally.keys();
            look_through(&server, sweep, &mut tally, &mut progress).await.map_err(|error| name_rights(error, sweep))?;
            told.keys = tally.keys() - before;
            servers.push(told);
        }
        Ok(tally.into_report(servers))
    }

    /// What the servers say of themselves; no key is looked at.
    pub async fn servers(&self) -> Result<Vec<ServerReport>, StoreError> {
        let mut servers = Vec::new();
        for server in self.link.masters().await? {
            servers.push(about(&server).await?);
        }
        Ok(servers)
    }
}

async fn look_through(
    server: &Server,
    sweep: &Sweep,
    tally: &mut Tally<'_>,
    progress: &mut impl FnMut(u64),
) -> Result<(), StoreError> {
    let pattern = sweep.pattern();
    let mut cursor = b"0".to_vec();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(BATCH);
        let (next, keys) = read_scan(server.ask(&scan).await?)?;
        if !keys.is_empty() {
            let orphans = weigh(server, &keys, tally).await?;
            if let Some(ttl) = sweep.repair_with()
                && !orphans.is_empty()
            {
                tally.repaired(give_end(server, &orphans, ttl).await?);
            }
        }
        progress(tally.keys());
        cursor = next;
        if cursor == b"0" {
            return Ok(());
        }
        if tally.is_full() {
            tally.stopped_early();
            return Ok(());
        }
        if !sweep.rest_between().is_zero() {
            tokio::time::sleep(sweep.rest_between()).await;
        }
    }
}

/// Looks at each key; returns those of ours that would never expire.
async fn weigh(server: &Server, keys: &[Vec<u8>], tally: &mut Tally<'_>) -> Result<Vec<Vec<u8>>, StoreError> {
    let mut questions = Pipeline::with_capacity(2 * keys.len());
    for key in keys {
        questions.cmd("PTTL").arg(key);
        questions.cmd("MEMORY").arg("USAGE").arg(key);
    }
    let replies = server.ask_all(&questions).await?;
    let mut orphans = Vec::new();
    for (key, reply) in keys.iter().zip(replies.chunks(2)) {
        // Expired or moved since it was listed: then it is no key of this server any more.
        let [Some(ttl), Some(bytes)] = [server.number(&reply[0])?, server.number(&reply[1])?] else { continue };
        if ttl == -2 {
            continue;
        }
        let bytes = u64::try_from(bytes).unwrap_or(0);
        if tally.add(key, bytes, ttl >= 0) == Found::Orphan {
            orphans.push(key.clone());
        }
    }
    Ok(orphans)
}

async fn give_end(server: &Server, keys: &[Vec<u8>], ttl: Duration) -> Result<u64, StoreError> {
    let mut repairs = Pipeline::with_capacity(keys.len());
    for key in keys {
        repairs.cmd("EVAL").arg(GIVE_END).arg(1).arg(key).arg(ttl.as_millis().max(1).to_string());
    }
    let mut repaired = 0;
    for reply in server.ask_all(&repairs).await? {
        repaired += u64::from(server.number(&reply)? == Some(1));
    }
    Ok(repaired)
}

async fn about(server: &Server) -> Result<ServerReport, StoreError> {
    let reply = server.ask(redis::cmd("INFO").arg("everything")).await?;
    let Value::BulkString(text) = reply else { return Err(corrupt(&format!("it answered INFO with {reply:?}"))) };
    Ok(ServerReport::read(server.address(), &String::from_utf8_lossy(&text)))
}

/// `[cursor, [key…]]`.
fn read_scan(reply: Value) -> Result<(Vec<u8>, Vec<Vec<u8>>), StoreError> {
    let strange = |reply: &dyn std::fmt::Debug| corrupt(&format!("it answered SCAN with {reply:?}"));
    let parts = match reply {
        Value::Array(parts) => parts,
        other => return Err(strange(&other)),
    };
    match <[Value; 2]>::try_from(parts) {
        Ok([Value::BulkString(cursor), Value::Array(keys)]) => {
            let key = |key| match key {
                Value::BulkString(key) => Some(key),
                _ => None,
            };
            Ok((cursor, keys.into_iter().filter_map(key).collect()))
        }
        other => Err(strange(&other)),
    }
}

/// All rights at once: an operator should not have to come back for each.
fn name_rights(error: StoreError, sweep: &Sweep) -> StoreError {
    match error {
        StoreError::Refused { reason, .. } if reason.contains("NOPERM") => {
            let repair = if sweep.repair_with().is_some() { " +eval +pexpire" } else { "" };
            let remedy = format!("an audit needs: ACL SETUSER <user> +scan +pttl +memory|usage +info{repair}");
            StoreError::Refused { reason, remedy }
        }
        other => other,
    }
}

impl Server {
    async fn ask_all(&self, commands: &Pipeline) -> Result<Vec<Value>, StoreError> {
        let replies = self.node.ask_all(commands, tokio::time::Instant::now() + self.timeout).await;
        replies.map_err(|fault| fault.into_store_error(self.node.address()))
    }

    /// The number in a reply; `None` if there is no such key here.
    fn number(&self, reply: &Value) -> Result<Option<i64>, StoreError> {
        use crate::fault::Fault;
        match reply {
            Value::Int(number) => Ok(Some(*number)),
            Value::Nil => Ok(None),
            Value::ServerError(error) => match Fault::of_reply(error) {
                Fault::Moved { .. } | Fault::Ask { .. } | Fault::TryAgain => Ok(None),
                fault => Err(fault.into_store_error(self.node.address())),
            },
            other => Err(corrupt(&format!("it answered {other:?}"))),
        }
    }
}
