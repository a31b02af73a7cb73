//! The list of open holds: of one key from the sorted set beside its state, of others by `SCAN` over their records.

use std::sync::Arc;

use redis::{Pipeline, Value};
use tallygate::clock::Timestamp;
use tallygate::hold::{HoldCursor, HoldPage, HoldQuery, HoldTerms, OpenHold, OpenPart};
use tallygate::{Algorithm, Key, StoreError};

use super::record::{OpenRecord, age, read_entry};
use crate::audit::{literal, send_all};
use crate::connection::{Deadline, Failure, Node, Refusal, Request};
use crate::store::{Engine, RedisStore};

/// Keys of one step of a scan, and entries of one reply: a fraction of a millisecond of the server's work.
const STEP: usize = 500;

/// Steps of one page.
const STEPS: usize = 20;

impl RedisStore {
    /// A page of the open holds, the oldest first; the pages are in no order. It uses a connection of its own, so it delays no decision.
    ///
    /// With a policy and a subject, only the open holds of that key are read. Otherwise all keys are scanned, a few thousand for
    /// each page: holds that begin or end meanwhile may be missed, and some may be listed twice, as with any `SCAN`. A hold over several slots of a cluster
    /// is listed once for each of them. One that was closed, because its limit was changed or its state was reset, is then listed until it ends.
    pub async fn open_holds(&self, query: &HoldQuery) -> Result<HoldPage, StoreError> {
        match query.key() {
            Some(key) => self.engine.holds_of(&key, query).await,
            None => self.engine.scan_holds(query).await,
        }
    }
}

impl Engine {
    /// By deadline. The cursor has the place of the kind, a deadline, and how many of that deadline were listed.
    async fn holds_of(&self, key: &Key<'_>, query: &HoldQuery) -> Result<HoldPage, StoreError> {
        let mut kinds: Vec<&str> = Algorithm::ALL.iter().map(|algorithm| algorithm.kind()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let [kind, deadline, skipped] = query.cursor().map_or([0; 3], HoldCursor::place);
        let mut place = (usize::try_from(kind).unwrap_or(usize::MAX), deadline, skipped);
        let Some(server) = self.client.master_of(&key.encode(&self.prefix, "")).await else {
            return Err(StoreError::unavailable("no server is known for the slot of this subject".to_owned()));
        };
        let read = async {
            let now = self.now_on(&server).await?;
            let mut holds = Vec::new();
            for _ in 0..STEPS {
                let Some(kind) = kinds.get(place.0) else { return Ok((holds, None)) };
                let opens = format!("{}-open", key.encode(&self.prefix, kind));
                // One that expires now is no longer open.
                let from = place.1.max(now.as_micros() + 1);
                // Of a cursor that somebody made up it may be any number.
                let skip = if from == place.1 { place.2.min(u64::from(HoldTerms::MOST_OPEN)) } else { 0 };
                let mut ask = redis::cmd("ZRANGE");
                ask.arg(opens).arg(from).arg("+inf").arg("BYSCORE").arg("LIMIT").arg(skip).arg(STEP).arg("WITHSCORES");
                let reply = server.send(Request::Command(&ask), Deadline::for_command()).await?;
                let entries = scored(&reply)?;
                let part = |left| OpenPart::of_written(&key.written_policy(), &key.written_subject(), left);
                let all = entries.len() < STEP;
                let mut seen = (from, skip);
                for (entry, at) in entries {
                    if holds.len() == query.most() {
                        return Ok((holds, Some((place.0, seen.0, seen.1))));
                    }
                    seen = (at, if at == seen.0 { seen.1 + 1 } else { 1 });
                    let Some((left, charged_at)) = read_entry(entry) else { continue };
                    if query.wants_age(age(now, charged_at)) {
                        holds.push(OpenHold::new(charged_at, Timestamp::from_micros(at), now, vec![part(left)]));
                    }
                }
                place = if all { (place.0 + 1, 0, 0) } else { (place.0, seen.0, seen.1) };
            }
            Ok((holds, Some(place)))
        };
        let (holds, next) = read.await.map_err(|failure: Failure| failure.at(server.address()))?;
        let next = next.map(|(kind, deadline, skipped)| HoldCursor::new([kind as u64, deadline, skipped]));
        Ok(HoldPage::new(holds, next))
    }

    /// By the order of the servers' keys. The cursor has the place of a server among the masters, and the one of its scan.
    async fn scan_holds(&self, query: &HoldQuery) -> Result<HoldPage, StoreError> {
        let [server, mut cursor, _] = query.cursor().map_or([0; 3], HoldCursor::place);
        let mut at = usize::try_from(server).unwrap_or(usize::MAX);
        let mut servers = self.client.masters().await;
        servers.sort_by_cached_key(|server| server.address().to_string());
        let (pattern, mut holds, mut steps) = (self.pattern(query), Vec::new(), 0);
        while let Some(server) = servers.get(at) {
            let step = async {
                let now = self.now_on(server).await?;
                while holds.len() < query.most() && steps < STEPS {
                    steps += 1;
                    let (next, keys) = scan(server, &pattern, cursor).await?;
                    let records = records(server, &keys).await?;
                    let open = records.iter().filter_map(|reply| OpenRecord::read(reply, now));
                    holds.extend(open.filter_map(|record| record.listed(&self.prefix, query, now)));
                    cursor = next;
                    if cursor == 0 {
                        return Ok(true);
                    }
                }
                Ok(false)
            };
            if !step.await.map_err(|failure| name_permissions(failure).at(server.address()))? {
                return Ok(HoldPage::new(holds, Some(HoldCursor::new([at as u64, cursor, 0]))));
            }
            at += 1;
        }
        Ok(HoldPage::new(holds, None))
    }

    /// Of the records: any state of the subject may be the first of a hold, whatever policy is asked for.
    fn pattern(&self, query: &HoldQuery) -> String {
        let subject = query.written_subject().map_or_else(|| "*".to_owned(), |subject| literal(&subject));
        format!("{}:{{{subject}}}:*-{}", literal(&self.prefix), "?".repeat(32))
    }

    async fn now_on(&self, server: &Arc<Node>) -> Result<Timestamp, Failure> {
        #[cfg(feature = "manual-clock")]
        if let Some(clock) = &self.clock {
            return Ok(clock.now());
        }
        time(server).await
    }
}

/// The server's clock.
pub(crate) async fn time(server: &Arc<Node>) -> Result<Timestamp, Failure> {
    let reply = server.send(Request::Command(&redis::cmd("TIME")), Deadline::for_command()).await?;
    let (seconds, micros): (u64, u64) = redis::from_redis_value(reply)?;
    Ok(Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros)))
}

async fn scan(server: &Arc<Node>, pattern: &str, cursor: u64) -> Result<(u64, Vec<Vec<u8>>), Failure> {
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
    let reply = server.send(Request::Command(&scan), Deadline::for_command()).await?;
    Ok(redis::from_redis_value(reply)?)
}

/// What is stored under keys; an error for what has another type, or has moved.
pub(crate) async fn records(server: &Arc<Node>, keys: &[Vec<u8>]) -> Result<Vec<Value>, Failure> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let mut questions = Pipeline::with_capacity(keys.len());
    for key in keys {
        questions.cmd("GET").arg(key);
    }
    send_all(server, &questions).await
}

/// Members with their scores.
fn scored(reply: &Value) -> Result<Vec<(&Value, u64)>, Failure> {
    let garbled = || Failure::Corrupt(format!("{reply:?}"));
    let Value::Array(entries) = reply else { return Err(garbled()) };
    let score = |score: &Value| match score {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    };
    let pairs = entries.as_chunks::<2>().0.iter();
    pairs.map(|[member, at]| Some((member, score(at)?))).collect::<Option<_>>().ok_or_else(garbled)
}

fn name_permissions(failure: Failure) -> Failure {
    match failure {
        Failure::Refused(Refusal::Permission { reply, .. }) => {
            Failure::Refused(Refusal::Permission { reply, rules: "+scan +get +time".to_owned() })
        }
        other => other,
    }
}
