//! Shared by the tests on real servers: stores, load, and verification of answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tallygate::check::Receipt;
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::history::{self, Record};
use tallygate::store::StoreErrorKind;
use tallygate::{Algorithm, Check, CheckError, Cost, Key, Limit, Limiter, MemoryStore, Store, StoreError};
use tallygate_redis::{RedisStore, RedisStoreBuilder};
use tallygate_testkit::wait::PATIENCE;
use tallygate_testkit::{Flavour, Reply, Server, valkey_available};
use tokio::task::JoinSet;

pub type RedisLimiter = Limiter<RedisStore>;

/// The servers available here.
pub fn flavours() -> Vec<Flavour> {
    let mut flavours = vec![Flavour::Redis];
    if valkey_available() {
        flavours.push(Flavour::Valkey);
    }
    flavours
}

/// A limiter with a long deadline, so that temporary faults pass: an error it reports is a real one.
pub async fn patient(url: &str) -> RedisLimiter {
    connect(RedisStore::builder(url).deadline(PATIENCE).connect_timeout(PATIENCE)).await
}

/// A limiter with this deadline.
pub async fn within(url: &str, deadline: Duration) -> RedisLimiter {
    connect(RedisStore::builder(url).deadline(deadline).connect_timeout(Duration::from_secs(2))).await
}

async fn connect(builder: RedisStoreBuilder) -> RedisLimiter {
    Limiter::new(builder.clone().connect().await.unwrap_or_else(|error| panic!("{builder:?}: {error}")))
}

/// A window so long that nothing is regained during a test.
pub fn yearly(algorithm: Algorithm, amount: u64) -> Limit {
    let year = Duration::from_secs(365 * 86_400);
    Limit::builder(amount, year).algorithm(algorithm).build().unwrap()
}

pub fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

pub fn units(cost: u64) -> Cost {
    Cost::new(cost).unwrap()
}

/// Units of `limit` used by `subject`, as a peek reports them.
pub async fn used<S: Store>(limiter: &Limiter<S>, policy: &str, subject: &[u8], limit: &Limit) -> u64 {
    let check = Check::new(Key::new(policy, subject).unwrap(), limit);
    let peeked = limiter.peek(check).await.unwrap();
    limit.capacity() - peeked.binding().remaining()
}

/// Microseconds on the clock of this machine, which servers without a skewed clock share.
pub fn wall_micros() -> u64 {
    u64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap()
}

/// How often the server has run this command, for any client.
pub fn calls_of(server: &Server, command: &str) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).text();
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// Every key of the server with the prefix `tallygate:`.
pub fn keys(server: &Server) -> Vec<Vec<u8>> {
    let (mut keys, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        let reply = server.command(&["SCAN", &cursor, "MATCH", "tallygate:*", "COUNT", "1000"]).ok();
        keys.extend(reply.items()[1].items().iter().map(|key| match key {
            Reply::Bulk(bytes) => bytes.clone(),
            other => panic!("not a key: {other:?}"),
        }));
        cursor = reply.items()[0].text();
        if cursor == "0" {
            return keys;
        }
    }
}

/// The TTL of each key in milliseconds; -1 means none. Keys that vanish in the meantime are left out.
pub fn lifetimes(server: &Server) -> Vec<(String, i64)> {
    let mut connection = server.connect().unwrap();
    let left = keys(server).into_iter().map(|key| {
        let left = connection.call(&[b"PTTL".as_slice(), &key]).unwrap().int();
        (String::from_utf8_lossy(&key).into_owned(), left)
    });
    left.filter(|(_, left)| *left != -2).collect()
}

/// The number of keys, all of which have a TTL.
#[track_caller]
pub fn every_key_expires(server: &Server) -> usize {
    let lifetimes = lifetimes(server);
    for (key, left) in &lifetimes {
        assert!(*left >= 0, "{key} of {} would live for ever", server.addr());
    }
    lifetimes.len()
}

/// The bound of the algorithm, over every span.
#[track_caller]
pub fn within_bound(limit: &Limit, records: &[Record]) {
    let bound = history::bound(limit, records);
    assert!(bound.holds(), "{limit}: {} violations, the first: {}", bound.violations.len(), bound.violations[0]);
}

/// Every answer is what the algorithm says, to the unit and the microsecond.
#[track_caller]
pub fn replays(limit: &Limit, records: &[Record]) {
    within_bound(limit, records);
    let wrong = history::replay(limit, records, history::SERVER_STEP_BACK);
    assert!(
        wrong.is_empty(),
        "{limit}: {} of {} answers are wrong, the first: {}",
        wrong.len(),
        records.len(),
        wrong[0]
    );
}

/// The answers that callers got.
#[derive(Debug, Default)]
pub struct Answers {
    pub records: Vec<Record>,
    pub errors: Vec<StoreError>,
    /// The time of the slowest answer, errors included.
    pub slowest: Duration,
}

impl Answers {
    pub fn allowed(&self) -> u64 {
        self.records.iter().filter(|record| record.allowed).map(|record| record.cost).sum()
    }

    /// Calls that may have been charged without an answer.
    pub fn ambiguous(&self) -> u64 {
        self.errors.iter().filter(|error| error.may_have_charged()).count() as u64
    }

    pub fn merge(&mut self, other: Self) {
        self.records.extend(other.records);
        self.errors.extend(other.errors);
        self.slowest = self.slowest.max(other.slowest);
    }

    /// Makes one call and records the answer.
    pub async fn ask(&mut self, limiter: &RedisLimiter, check: Check<'_>) -> bool {
        let start = Instant::now();
        let answer = limiter.check(check).await;
        self.slowest = self.slowest.max(start.elapsed());
        match answer {
            Ok(decision) => {
                self.records.push(Record::new(check.cost, &decision));
                true
            }
            Err(CheckError::Store(error)) => {
                self.errors.push(error);
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Only errors that a lost server explains, or calls that ran out of time before they were sent.
    #[track_caller]
    pub fn only_outages(&self) {
        for error in &self.errors {
            let outage = matches!(error.kind(), StoreErrorKind::Unavailable | StoreErrorKind::Ambiguous);
            assert!(outage || error.is_late(), "not the word of a lost server: {error:?}");
        }
    }

    #[track_caller]
    pub fn no_errors(&self) {
        assert!(self.errors.is_empty(), "{} errors, the first: {}", self.errors.len(), self.errors[0]);
    }
}

/// Callers that check one key, as fast as they are answered, until stopped.
pub struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    callers: JoinSet<Answers>,
}

impl Load {
    pub fn start(limiter: &RedisLimiter, limit: &Limit, policy: &str, subject: &str, callers: u64) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut set = JoinSet::new();
        for _ in 0..callers {
            let (limiter, limit) = (limiter.clone(), limit.clone());
            let (policy, subject) = (policy.to_owned(), subject.to_owned());
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            set.spawn(async move {
                let check = Check::new(Key::new(&policy, &subject).unwrap(), &limit);
                let mut answers = Answers::default();
                while !stop.load(Ordering::Relaxed) {
                    if answers.ask(&limiter, check).await {
                        answered.fetch_add(1, Ordering::Relaxed);
                    } else {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
                answers
            });
        }
        Self { stop, answered, callers: set }
    }

    /// Calls answered so far, without errors.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Waits until this many more calls are answered: the store serves, or serves again.
    pub async fn serves(&self, calls: u64) {
        let (target, start) = (self.answered() + calls, Instant::now());
        while self.answered() < target {
            assert!(start.elapsed() < PATIENCE, "the store does not serve (again)");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub async fn finish(self) -> Answers {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Answers::default();
        for answers in self.callers.join_all().await {
            all.merge(answers);
        }
        all
    }
}

/// The receipt of a charge by `check`.
pub fn receipt(check: Check<'_>, charged_at: Option<Timestamp>) -> Receipt<'_> {
    Receipt::new(check, check.cost, charged_at)
}

/// Both stores, on one clock.
pub struct Twins {
    pub server: Server,
    pub clock: ManualClock,
    pub redis: RedisLimiter,
    pub memory: Limiter<MemoryStore>,
}

impl Twins {
    pub async fn start() -> Self {
        let server = Server::redis().start();
        let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
        let redis = RedisStore::builder(&server.url()).deadline(PATIENCE).manual_clock(clock.clone());
        let redis = Limiter::new(redis.connect().await.unwrap());
        let memory = Limiter::new(MemoryStore::builder().clock(clock.clone()).without_sweep().build());
        Self { server, clock, redis, memory }
    }

    pub fn set(&self, micros: u64) {
        self.clock.set(Timestamp::from_micros(micros));
    }

    /// Both answer alike. Returns what is left.
    pub async fn check(&self, check: Check<'_>, story: &str) -> u64 {
        let (one, two) = (self.redis.check(check).await.unwrap(), self.memory.check_now(check).unwrap());
        assert_eq!(one.binding(), two.binding(), "{story}");
        one.binding().remaining()
    }

    /// As [`Twins::check`].
    pub async fn peek(&self, check: Check<'_>, story: &str) -> u64 {
        let (one, two) = (self.redis.peek(check).await.unwrap(), self.memory.peek(check).await.unwrap());
        assert_eq!(one.binding(), two.binding(), "{story}");
        one.binding().remaining()
    }

    /// Returns what both have given back.
    pub async fn refund(&self, check: Check<'_>, charged_at: Option<Timestamp>, story: &str) -> u64 {
        let receipts = [receipt(check, charged_at)];
        let given = self.redis.refund(&receipts).await.unwrap();
        assert_eq!(given, self.memory.refund(&receipts).await.unwrap(), "{story}");
        given[0]
    }
}
