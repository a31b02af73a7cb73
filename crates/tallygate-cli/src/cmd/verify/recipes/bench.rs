//! The server the recipes run on: a plain connection for them, a store for ours, and what to clean up.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, bail};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, Value};
use tallygate::history::Record;
use tallygate::{Limiter, ManualClock, Timestamp};
use tallygate_redis::RedisStore;

use super::PATIENCE;
use super::recipe::{Call, Code};
use crate::store;

/// Calls sent at once. More, and the replies of one batch would hold up the server.
const BATCH: usize = 500;

pub(crate) struct Bench {
    connection: MultiplexedConnection,
    url: String,
    pub(crate) prefix: String,
    pub(crate) ours: Limiter<RedisStore>,
    used: BTreeSet<Vec<u8>>,
}

impl Bench {
    pub(crate) async fn connect(plain_url: &str, url: &str, prefix: &str) -> anyhow::Result<Self> {
        let ours = Limiter::new(store::redis(url, prefix).await?);
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(PATIENCE))
            .set_connection_timeout(Some(Duration::from_secs(2)));
        let client = redis::Client::open(plain_url).context("--store")?;
        let connection = client.get_multiplexed_async_connection_with_config(&config).await.context("--store")?;
        Ok(Self { connection, url: url.to_owned(), prefix: prefix.to_owned(), ours, used: BTreeSet::new() })
    }

    /// Ours on a clock that is moved by hand.
    pub(crate) async fn ours_on(&self, clock: &ManualClock) -> anyhow::Result<Limiter<RedisStore>> {
        let store = RedisStore::builder(&self.url).prefix(&self.prefix).manual_clock(clock.clone());
        Ok(Limiter::new(store.deadline(PATIENCE).connect().await?))
    }

    pub(crate) async fn now(&mut self) -> anyhow::Result<u64> {
        let replies = self.send(&[redis::cmd("TIME")]).await?;
        replies.first().and_then(micros).context("no time")
    }

    /// Runs commands at once. An error of any of them ends the recipe.
    pub(crate) async fn send(&mut self, commands: &[Cmd]) -> anyhow::Result<Vec<Value>> {
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            self.note_key(command);
            pipeline.add_command(command.clone());
        }
        let replies = self.connection.send_packed_commands(&pipeline, 0, commands.len()).await?;
        for reply in &replies {
            if let Value::ServerError(error) = reply {
                bail!("the server said {} {}", error.code(), error.details().unwrap_or_default());
            }
        }
        Ok(replies)
    }

    /// Runs scripts for many calls, some at a time.
    pub(crate) async fn run_script(&mut self, script: &str, calls: &[Call]) -> anyhow::Result<Vec<Record>> {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script);
        let loaded = self.send(&[load]).await?;
        let [Value::BulkString(sha)] = loaded.as_slice() else { bail!("SCRIPT LOAD answered {loaded:?}") };
        let mut records = Vec::with_capacity(calls.len());
        for batch in calls.chunks(BATCH) {
            let command = |call: &Call| {
                let mut command = redis::cmd("EVALSHA");
                command.arg(sha).arg(1).arg(&call.key);
                let amount = call.amounts.last().copied().unwrap_or(0);
                command
                    .arg(amount)
                    .arg(call.window_ms)
                    .arg(call.cost)
                    .arg(call.id)
                    .arg(call.capacity)
                    .arg(call.client_us);
                command
            };
            let commands: Vec<Cmd> = batch.iter().map(command).collect();
            for (call, reply) in batch.iter().zip(self.send(&commands).await?) {
                let Value::Array(parts) = &reply else { bail!("a script answered {reply:?}") };
                let allowed = parts.first() == Some(&Value::Int(1));
                let at = parts.get(1..).map(<[Value]>::to_vec).map(Value::Array).as_ref().and_then(micros);
                records.extend(record(call, at.context("a script told no time")?, allowed));
            }
        }
        Ok(records)
    }

    /// The first commands of a call, all sent at once: when it was, and the numbers they answered.
    pub(crate) async fn begin(&mut self, commands: Vec<Cmd>) -> anyhow::Result<(u64, Vec<i64>)> {
        let mut timed = vec![redis::cmd("TIME")];
        timed.extend(commands);
        let replies = self.send(&timed).await?;
        let at = replies.first().and_then(micros).context("no time")?;
        let number = |reply: &Value| if let Value::Int(number) = reply { Some(*number) } else { None };
        Ok((at, replies.iter().skip(1).filter_map(number).collect()))
    }

    /// A whole call of a client that runs commands.
    pub(crate) async fn run_commands(&mut self, code: Code, call: &Call) -> anyhow::Result<Option<Record>> {
        let Code::Commands { first, then } = code else { bail!("not commands") };
        let (at, replies) = self.begin(first(call)).await?;
        let (allowed, rest) = then(call, &replies);
        if !rest.is_empty() {
            self.send(&rest).await?;
        }
        Ok(record(call, at, allowed))
    }

    fn note_key(&mut self, command: &Cmd) {
        let args =
            command.args_iter().filter_map(|arg| if let redis::Arg::Simple(arg) = arg { Some(arg) } else { None });
        let key = args.skip(1).find(|arg| arg.starts_with(self.prefix.as_bytes()));
        if let Some(key) = key
            && !self.used.contains(key)
        {
            self.used.insert(key.to_vec());
        }
    }

    /// Deletes every key a recipe has touched.
    pub(crate) async fn clean_up(&mut self) -> anyhow::Result<()> {
        let used: Vec<Vec<u8>> = std::mem::take(&mut self.used).into_iter().collect();
        for keys in used.chunks(BATCH) {
            let mut commands: Vec<Cmd> = Vec::new();
            for key in keys {
                let mut unlink = redis::cmd("UNLINK");
                unlink.arg(key);
                commands.push(unlink);
            }
            self.send(&commands).await?;
        }
        self.used.clear();
        Ok(())
    }
}

/// A call that gives units instead of taking them is no record of a limiter.
pub(crate) fn record(call: &Call, at: u64, allowed: bool) -> Option<Record> {
    let cost = u64::try_from(call.cost).ok()?;
    Some(Record::bare(Timestamp::from_micros(at), cost, allowed))
}

/// `[seconds, µs]`.
fn micros(reply: &Value) -> Option<u64> {
    let Value::Array(parts) = reply else { return None };
    let number = |part: &Value| match part {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    match parts.as_slice() {
        [seconds, micros] => Some(number(seconds)? * 1_000_000 + number(micros)?),
        _ => None,
    }
}
