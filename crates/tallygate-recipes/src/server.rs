//! The server that the recipes run on: a plain connection for them, a store for Tallygate.

use std::time::Duration;

use anyhow::bail;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, RedisResult, Value};
use tallygate::Limiter;
use tallygate_redis::{Audit, RedisStore, StoreUrl};

use crate::recipe::Call;

/// Calls sent at once. A larger batch would block the server with its replies.
const BATCH: usize = 500;
/// How long a command may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The subject of all keys of the recipes.
pub(crate) const SUBJECT: &str = "subject";

const PRELUDE: &str = "
local t, key, numbers = redis.call('TIME'), KEYS[1], {}
for i, text in ipairs(ARGV) do numbers[i] = tonumber(text) end
local amount, window_ms, cost, id, capacity, client_us = unpack(numbers)
local allowed
";
const END: &str = "\nreturn { allowed and 1 or 0, tonumber(t[1]), tonumber(t[2]) }";

/// One server without TLS, and the two ways it is used.
pub struct Server {
    pub(crate) audit: Audit,
    connection: MultiplexedConnection,
    pub(crate) prefix: String,
    pub(crate) ours: Limiter<RedisStore>,
}

impl Server {
    /// Connects; keys begin with `prefix`. Recipes are plain commands, so a URL for more than one server is an error.
    pub async fn connect(url: &str, prefix: &str) -> anyhow::Result<Self> {
        let client = redis::Client::open(plain_url(url)?)?;
        let store = RedisStore::builder(url).prefix(prefix).deadline(TIMEOUT).connect().await?;
        let config =
            AsyncConnectionConfig::new().set_response_timeout(Some(TIMEOUT)).set_connection_timeout(Some(TIMEOUT));
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let audit = Audit::connect(url).await?;
        Ok(Self { audit, connection, prefix: prefix.to_owned(), ours: Limiter::new(store) })
    }

    /// Runs commands: the server's time before them, and the numbers they answered.
    pub(crate) async fn run(&mut self, commands: &[String]) -> RedisResult<(u64, Vec<i64>)> {
        let mut pipeline = Pipeline::with_capacity(commands.len() + 1);
        pipeline.cmd("TIME");
        for command in commands {
            let mut words = command.split(' ');
            pipeline.cmd(words.next().unwrap_or_default());
            for word in words {
                pipeline.arg(word);
            }
        }
        let replies: Vec<Value> = pipeline.query_async(&mut self.connection).await?;
        let numbers =
            replies.iter().filter_map(|reply| if let Value::Int(number) = reply { Some(*number) } else { None });
        let (seconds, micros): (u64, u64) = redis::from_redis_value(replies[0].clone())?;
        Ok((seconds * 1_000_000 + micros, numbers.collect()))
    }

    /// Runs a script for each of many calls: when each was decided, and whether it was allowed.
    pub(crate) async fn run_script(&mut self, script: &str, calls: &[Call]) -> RedisResult<Vec<(u64, bool)>> {
        let script = [PRELUDE, script, END].concat();
        let mut answers = Vec::with_capacity(calls.len());
        for batch in calls.chunks(BATCH) {
            let mut pipeline = Pipeline::with_capacity(batch.len());
            for call in batch {
                let amount = call.amounts.last().copied().unwrap_or(0);
                pipeline.cmd("EVAL").arg(&script).arg(1).arg(&call.key).arg(amount).arg(call.window_ms);
                pipeline.arg(call.cost).arg(call.id).arg(call.capacity).arg(call.client_us);
            }
            let replies: Vec<(u8, u64, u64)> = pipeline.query_async(&mut self.connection).await?;
            answers.extend(replies.into_iter().map(|(allowed, s, us)| (s * 1_000_000 + us, allowed == 1)));
        }
        Ok(answers)
    }

    /// Deletes every key of a run.
    pub(crate) async fn delete_keys(&mut self, run: &str) -> RedisResult<()> {
        let pattern = format!("{}:{{{SUBJECT}}}:*-{run}-*", self.prefix);
        let mut cursor = 0;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(BATCH);
            let (next, keys): (u64, Vec<Vec<u8>>) = scan.query_async(&mut self.connection).await?;
            if !keys.is_empty() {
                redis::cmd("UNLINK").arg(keys).exec_async(&mut self.connection).await?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }
}

/// The URL in the form of the `redis` crate.
fn plain_url(url: &str) -> anyhow::Result<String> {
    let known: StoreUrl = url.parse()?;
    match url.trim().split_once("://") {
        Some(("redis" | "valkey", rest)) => Ok(format!("redis://{rest}")),
        Some(("unix" | "redis+unix" | "valkey+unix", rest)) => Ok(format!("redis+unix://{rest}")),
        _ => bail!("the recipes need one server without TLS: write redis://host:port, not {known}"),
    }
}
