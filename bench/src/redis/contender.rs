//! The ways to decide in Redis: the floor, and the scripts that everybody copies.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use redis::aio::MultiplexedConnection;
use tallygate::hold::{HoldTerms, Units};
use tallygate::{Check, Key, Limit, Limiter};
use tallygate_redis::RedisStore;

use super::server::Server;

/// A measured server is a busy one: no call of ours may be given up for that.
const PATIENCE: Duration = Duration::from_secs(10);

type Answer = Pin<Box<dyn Future<Output = Result<bool>> + Send>>;

pub struct Contender {
    pub name: &'static str,
    /// Decides one call of the subject with this number: was it allowed?
    pub decide: Arc<dyn Fn(u32) -> Answer + Send + Sync>,
}

pub const BASELINE: &str = "hash token bucket";

pub const NOTES: &str = "
What each was asked:
- Every call waits for its answer and is allowed; limits are too large to deny. Each contender meets an empty server, makes its
  keys in one pass and is measured in a second one. The server's CPU is that of its main thread, from `INFO cpu`; server and
  callers share this machine, so the decisions per second are those of the pair.
- INCR: one command that decides nothing and sets no TTL; the floor of any design. Empty script: `return 1` by EVALSHA.
- INCR + EXPIRE: the fixed window of the Redis documentation, as a script so that no key can stay without a TTL.
- Hash token bucket and ZSET log: as found in most articles and many libraries: HMGET, HSET, EXPIRE; ZREMRANGEBYSCORE, ZCARD,
  ZADD, EXPIRE. They are called through the `redis` crate's multiplexed connection. The log of the hot key has a window of 1 ms, which holds about as many entries as it gets calls in one.
- tallygate, reserve: `Limiter::reserve` of one unit for a minute. The hold stays open; the hot key is another one after 8192 of them. Reserve and
  settle: two calls, the unit comes back. Reserve and abandon: for 50 ms, and nobody settles: later reservations of the key give the unit back.
- tallygate: `Limiter::check` over `RedisStore`, with remaining, retry and reset in the answer, on one connection.
";

/// All of them, for so many keys, in the order of the table. One more row is one more entry.
pub async fn all(server: &Server, keys: usize) -> Result<Vec<Contender>> {
    let connection = server.connect().await?;
    let incr = Contender {
        name: "INCR",
        decide: {
            let connection = connection.clone();
            Arc::new(move |subject| {
                let mut connection = connection.clone();
                Box::pin(async move {
                    let count: u64 = redis::cmd("INCR").arg(key("incr", subject)).query_async(&mut connection).await?;
                    Ok(count > 0)
                })
            })
        },
    };
    let script = |name, text, args| script(&connection, name, text, args);
    let mut all = vec![
        incr,
        script("empty script", include_str!("empty.lua"), &[]).await?,
        // limit, window in seconds
        script("INCR + EXPIRE", include_str!("incr_expire.lua"), &["1000000000", "3600"]).await?,
        // capacity, tokens per second, cost
        script(BASELINE, include_str!("hash_token_bucket.lua"), &["1000000000", "100", "1"]).await?,
        // limit, window in milliseconds: one hot key would fill a longer one with all its calls
        script(
            "ZSET log",
            include_str!("zset_log.lua"),
            if keys == 1 { &["1000000000", "1"] } else { &["1000000000", "60000"] },
        )
        .await?,
    ];
    let limiter = Limiter::new(RedisStore::builder(&server.url).deadline(PATIENCE).connect().await?);
    let log = if keys == 1 { "1000000000/ms sliding_log" } else { "1000000000/min sliding_log" };
    for (name, limit) in [
        ("**tallygate token_bucket**", "100/s burst 1000000000"),
        ("tallygate fixed_window", "1000000000/h fixed_window"),
        ("tallygate fixed_window_from_first_call", "1000000000/h fixed_window_from_first_call"),
        ("tallygate sliding_window", "1000000000/h sliding_window"),
        ("tallygate sliding_counter", "1000000000/h sliding_counter"),
        ("tallygate sliding_log", log),
    ] {
        all.push(ours(&limiter, name, limit.parse()?));
    }
    for (name, end) in [("reserve", End::Open), ("reserve and settle", End::Settled), ("reserve and abandon", End::Abandoned)] {
        all.push(reserving(&limiter, format!("tallygate token_bucket, {name}").leak(), end));
    }
    Ok(all)
}

/// What becomes of a hold.
#[derive(Clone, Copy, PartialEq)]
enum End {
    /// It stays open for longer than the measurement.
    Open,
    Settled,
    /// Nobody settles it, and its time is short: later calls resolve it.
    Abandoned,
}

/// No more holds than this are left open for one key.
const OPEN_FOR_ONE_KEY: u64 = 8_192;

/// Reserves a unit.
fn reserving(limiter: &Limiter<RedisStore>, name: &'static str, end: End) -> Contender {
    let (limiter, limit) = (limiter.clone(), "100/s burst 1000000000".parse::<Limit>());
    let calls = Arc::new(AtomicU64::new(0));
    let decide = move |subject: u32| -> Answer {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        let generation = match end {
            End::Open => calls.fetch_add(1, Ordering::Relaxed) / OPEN_FOR_ONE_KEY,
            End::Settled | End::Abandoned => 0,
        };
        Box::pin(async move {
            let subject = match subject {
                0 => format!("user:{generation:011}"),
                many => format!("user:{many:011}"),
            };
            let terms = HoldTerms::DEFAULT.with_most_open(HoldTerms::MOST_OPEN);
            let limit = limit?;
            let check = Check::new(Key::new("bench", &subject)?, &limit).with_holds(Some(&terms));
            let ttl = Duration::from_millis(if end == End::Abandoned { 50 } else { 60_000 });
            let Some(hold) = limiter.reserve(&[check], ttl).await?.hold else { return Ok(false) };
            if end != End::Settled {
                hold.into_hold();
                return Ok(true);
            }
            Ok(hold.settle(Units::Same(0)).await?.done)
        })
    };
    Contender { name, decide: Arc::new(decide) }
}

/// Ours, through its library: the same server, one connection of its own.
fn ours(limiter: &Limiter<RedisStore>, name: &'static str, limit: Limit) -> Contender {
    let limiter = limiter.clone();
    let decide = move |subject: u32| -> Answer {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        Box::pin(async move {
            let subject = format!("user:{subject:011}");
            let decision = limiter.check(Check::new(Key::new("bench", &subject)?, &limit)).await?;
            Ok(decision.allowed())
        })
    };
    Contender { name, decide: Arc::new(decide) }
}

/// A script called by its digest, one key, always the same arguments; a reply of 1, alone or first, is "allowed".
async fn script(
    connection: &MultiplexedConnection,
    name: &'static str,
    text: &str,
    args: &'static [&'static str],
) -> Result<Contender> {
    let loaded = redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async::<String>(&mut connection.clone()).await?;
    let digest: Arc<str> = loaded.into();
    let connection = connection.clone();
    let decide = move |subject| -> Answer {
        let (mut connection, digest) = (connection.clone(), Arc::clone(&digest));
        Box::pin(async move {
            let mut command = redis::cmd("EVALSHA");
            command.arg(&*digest).arg(1).arg(key(name, subject)).arg(args);
            let reply: redis::Value = command.query_async(&mut connection).await?;
            let first = match &reply {
                redis::Value::Array(replies) => replies.first(),
                alone => Some(alone),
            };
            Ok(first == Some(&redis::Value::Int(1)))
        })
    };
    Ok(Contender { name, decide: Arc::new(decide) })
}

fn key(name: &str, subject: u32) -> String {
    format!("{}:user:{subject:011}", &name[..2])
}
