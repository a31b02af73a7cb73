//! Reports what a store holds, without disturbing it: keys, memory, and keys without a TTL.

mod report;
mod sweep;
mod tally;

use std::sync::Arc;
use std::time::Duration;

use redis::{Pipeline, Value};
use tallygate::StoreError;

use crate::builder::ConnectError;
use crate::connection::{Client, Deadline, Failure, Node, Refusal, Request, Settings};
use crate::holds::{OpenRecord, records, time};
use crate::url::StoreUrl;
pub use report::{AuditReport, LargeKey, ServerReport, Usage};
pub use sweep::Sweep;
pub(crate) use sweep::literal;
use tally::Tally;

/// Keys per request to a server: a fraction of a millisecond of its work.
const BATCH: usize = 500;

/// Sets a TTL only where there is none. `PEXPIRE … NX` does the same from Redis 7 on.
const GIVE_END: &str = "if redis.call('PTTL', KEYS[1]) ~= -1 then return 0 end \
                        return redis.call('PEXPIRE', KEYS[1], ARGV[1])";

/// Scans a store over its own connections, in small steps, without delaying decisions.
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
    client: Client,
}

impl Audit {
    /// Connects. See [`StoreUrl`] for the forms of the URL.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        let url: StoreUrl = url.parse()?;
        Ok(Self { client: Client::connect(&url, Settings::default()).await? })
    }

    /// Scans every master, one after the other. `progress` is called with the number of keys seen so far.
    ///
    /// Memory use does not depend on the number of keys. Keys that are moved or added during the scan may be missed or
    /// counted twice, as with any `SCAN`.
    pub async fn run(&self, sweep: &Sweep, mut progress: impl FnMut(u64)) -> Result<AuditReport, StoreError> {
        let mut tally = Tally::new(sweep);
        for server in self.client.masters().await {
            let before = tally.report.keys;
            let looked_through = async {
                let report = about(&server).await?;
                tally.now = time(&server).await?;
                look_through(&server, sweep, &mut tally, &mut progress).await?;
                Ok(report)
            };
            let failed = |failure| name_permissions(failure, sweep).at(server.address());
            let mut report = looked_through.await.map_err(failed)?;
            report.keys = tally.report.keys - before;
            tally.report.servers.push(report);
        }
        Ok(tally.into_report())
    }

    /// What the servers report about themselves, without scanning keys.
    pub async fn servers(&self) -> Result<Vec<ServerReport>, StoreError> {
        let mut servers = Vec::new();
        for server in self.client.masters().await {
            servers.push(about(&server).await.map_err(|failure| failure.at(server.address()))?);
        }
        Ok(servers)
    }
}

async fn look_through(
    server: &Arc<Node>,
    sweep: &Sweep,
    tally: &mut Tally<'_>,
    progress: &mut impl FnMut(u64),
) -> Result<(), Failure> {
    let pattern = sweep.pattern();
    let mut cursor = b"0".to_vec();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(BATCH);
        let reply = server.send(Request::Command(&scan), Deadline::for_command()).await?;
        let (next, keys): (Vec<u8>, Vec<Vec<u8>>) = redis::from_redis_value(reply)?;
        if !keys.is_empty() {
            let orphans = weigh(server, &keys, tally).await?;
            if let Some(ttl) = sweep.repair
                && !orphans.is_empty()
            {
                tally.report.repaired += give_end(server, &orphans, ttl).await?;
            }
        }
        progress(tally.report.keys);
        cursor = next;
        if cursor == b"0" {
            return Ok(());
        }
        if tally.is_full() {
            tally.report.complete = false;
            return Ok(());
        }
        if !sweep.rest.is_zero() {
            tokio::time::sleep(sweep.rest).await;
        }
    }
}

/// Inspects each key; returns our keys without a TTL.
async fn weigh(server: &Arc<Node>, keys: &[Vec<u8>], tally: &mut Tally<'_>) -> Result<Vec<Vec<u8>>, Failure> {
    let mut questions = Pipeline::with_capacity(2 * keys.len());
    for key in keys {
        questions.cmd("PTTL").arg(key);
        questions.cmd("MEMORY").arg("USAGE").arg(key);
    }
    let replies = send_all(server, &questions).await?;
    let holds: Vec<Vec<u8>> = keys.iter().filter(|key| tally.is_record(key)).cloned().collect();
    for reply in records(server, &holds).await? {
        if let Some(record) = OpenRecord::read(&reply, tally.now) {
            tally.add_hold(&record);
        }
    }
    let mut orphans = Vec::new();
    for (key, reply) in keys.iter().zip(replies.chunks(2)) {
        // Expired or moved since it was listed: no longer a key of this server.
        let [Some(ttl), Some(bytes)] = [number(&reply[0])?, number(&reply[1])?] else { continue };
        if ttl == -2 {
            continue;
        }
        if tally.add(key, u64::try_from(bytes).unwrap_or(0), ttl >= 0) {
            orphans.push(key.clone());
        }
    }
    Ok(orphans)
}

async fn give_end(server: &Arc<Node>, keys: &[Vec<u8>], ttl: Duration) -> Result<u64, Failure> {
    let mut repairs = Pipeline::with_capacity(keys.len());
    for key in keys {
        repairs.cmd("EVAL").arg(GIVE_END).arg(1).arg(key).arg(ttl.as_millis().max(1).to_string());
    }
    let mut repaired = 0;
    for reply in send_all(server, &repairs).await? {
        repaired += u64::from(number(&reply)? == Some(1));
    }
    Ok(repaired)
}

pub(crate) async fn send_all(server: &Arc<Node>, commands: &Pipeline) -> Result<Vec<Value>, Failure> {
    match server.send(Request::Pipeline(commands), Deadline::for_command()).await? {
        Value::Array(replies) => Ok(replies),
        other => Err(Failure::Corrupt(format!("{other:?}"))),
    }
}

async fn about(server: &Arc<Node>) -> Result<ServerReport, Failure> {
    let mut info = redis::cmd("INFO");
    info.arg("everything");
    let reply = server.send(Request::Command(&info), Deadline::for_command()).await?;
    let text: Vec<u8> = redis::from_redis_value(reply)?;
    Ok(ServerReport::read(server.address().to_string(), &String::from_utf8_lossy(&text)))
}

/// Names all permissions at once, so that the operator has to change the ACL only once.
fn name_permissions(failure: Failure, sweep: &Sweep) -> Failure {
    match failure {
        Failure::Refused(Refusal::Permission { reply, .. }) => {
            let repair = if sweep.repair.is_some() { " +eval +pexpire" } else { "" };
            let rules = format!("+scan +pttl +memory|usage +info +get +time{repair}");
            Failure::Refused(Refusal::Permission { reply, rules })
        }
        other => other,
    }
}

/// The number in a reply; `None` if the server does not have the key.
fn number(reply: &Value) -> Result<Option<i64>, Failure> {
    match reply {
        Value::Int(number) => Ok(Some(*number)),
        Value::Nil => Ok(None),
        Value::ServerError(error) => match Failure::of_reply(error) {
            Failure::Redirected(_) | Failure::TryAgain => Ok(None),
            failure => Err(failure),
        },
        other => Err(Failure::Corrupt(format!("{other:?}"))),
    }
}
