//! Real calls on keys of the doctor's own: whether a charge can be made, whether every script may run, and how long it takes.

use std::time::Duration;

use redis::Value;
use serde::Serialize;
use tallygate::counter::{Counter, CounterError};
use tallygate::store::StoreErrorKind;
use tallygate::{Algorithm, Check, CheckError, Key, Limit, Limiter, StoreError};
use tokio::time::Instant;

use super::clock;
use super::facts::{items, text};
use super::finding::{DoctorCheck, Finding};
use crate::store::RedisStore;

/// The policy of the keys. They expire within two seconds.
pub(super) const POLICY: &str = "doctor";

/// Decisions that are timed on each server.
const DECISIONS: u32 = 200;

/// Removes what [`charge`] wrote, so that a watched store is as empty as before. If that fails, it expires.
pub(super) async fn forget(store: &RedisStore, subject: &str) {
    if let Ok(key) = key(subject) {
        let _ = Limiter::new(store.clone()).reset(Check::new(key, &limit())).await;
    }
}

fn limit() -> Limit {
    "1000000/s fixed_window".parse().expect("a limit as the documentation has it")
}

/// One call, charged. Never denied in practice: no limit of a million a second is used up by watching.
pub(super) async fn charge(store: &RedisStore, subject: &str) -> Result<(), StoreError> {
    let limit = limit();
    let check = Check::new(key(subject)?, &limit);
    Limiter::new(store.clone()).check(check).await.map_err(of_store)?;
    Ok(())
}

fn key(subject: &str) -> Result<Key<'_>, StoreError> {
    Key::new(POLICY, subject).map_err(|error| StoreError::corrupt(error.to_string()))
}

fn of_store(error: CheckError) -> StoreError {
    match error {
        CheckError::Store(error) => error,
        other => StoreError::corrupt(other.to_string()),
    }
}

/// Whether a server answered, and the answer was no. Silence is an outage, and others watch for that.
pub(super) fn is_refusal(error: &StoreError) -> bool {
    !matches!(error.kind(), StoreErrorKind::Unavailable | StoreErrorKind::Ambiguous | StoreErrorKind::Overloaded)
}

pub(super) fn judge_charge(result: &Result<(), StoreError>) -> Finding {
    let check = DoctorCheck::Charge;
    match result {
        Ok(()) => Finding::ok(check, "a call was charged"),
        Err(error) => {
            let (why, remedy) =
                error.reason().split_once("; ").unwrap_or((error.reason(), "correct what the reply names"));
            Finding::problem(check, format!("no call can be charged: {why}"))
                .means(6, "calls that would be allowed end in an error, and on_error answers them")
                .fix(remedy)
        }
    }
}

/// Whether every script may run.
pub(super) async fn permissions(store: &RedisStore, subject: &str) -> Finding {
    match first_failure(store, subject).await {
        Some((what, error)) => not_run(what, &error),
        None => Finding::ok(DoctorCheck::Permissions, "every script ran, writes included"),
    }
}

/// What a server refuses to run, unless it refuses every charge: that is reported as such.
pub(super) async fn refused_script(store: &RedisStore, subject: &str) -> Option<Finding> {
    charge(store, subject).await.ok()?;
    let (what, error) = first_failure(store, subject).await?;
    is_refusal(&error).then(|| not_run(what, &error))
}

/// Tries every verb of every algorithm, and counters.
async fn first_failure(store: &RedisStore, subject: &str) -> Option<(&'static str, StoreError)> {
    for algorithm in Algorithm::OVER_TIME {
        if let Err(error) = every_verb(store, subject, *algorithm).await {
            return Some((algorithm.name(), error));
        }
    }
    count(store, subject).await.err().map(|error| ("counters", error))
}

pub(super) fn not_run(what: &str, error: &StoreError) -> Finding {
    let (why, remedy) = error.reason().split_once("; ").unwrap_or((error.reason(), "correct what the reply names"));
    Finding::problem(DoctorCheck::Permissions, format!("{what}: {why}"))
        .means(6, "such calls end in an error, and on_error answers them")
        .fix(remedy)
}

async fn every_verb(store: &RedisStore, subject: &str, algorithm: Algorithm) -> Result<(), StoreError> {
    let limit = Limit::builder(1000, Duration::from_secs(1)).algorithm(algorithm).build();
    let limit = limit.map_err(|error| StoreError::corrupt(error.to_string()))?;
    let (limiter, check) = (Limiter::new(store.clone()), || Ok(Check::new(key(subject)?, &limit)));
    let checks = [check()?];
    let decision = limiter.check_all(&checks).await.map_err(of_store)?;
    limiter.peek(check()?).await.map_err(of_store)?;
    limiter.refund(&decision.receipts(&checks)).await.map_err(of_store)?;
    limiter.reset(check()?).await.map_err(of_store)?;
    Ok(())
}

async fn count(store: &RedisStore, subject: &str) -> Result<(), StoreError> {
    let counted = async {
        let counter = Counter::new(store.clone(), format!("{POLICY}/{subject}"))?;
        let counter = counter.expires_after(Duration::from_secs(1))?;
        counter.incr().await?;
        counter.incr_by_float(0.5).await?;
        counter.get().await?;
        counter.delete().await
    };
    match counted.await {
        Err(CounterError::Store(error)) => Err(error),
        Err(other) => Err(StoreError::corrupt(other.to_string())),
        Ok(_) => Ok(()),
    }
}

/// How long decisions took on one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Latency {
    /// How many were timed.
    pub decisions: u32,
    /// The shortest, in microseconds.
    pub min_us: u64,
    /// The median.
    pub median_us: u64,
    /// The 99th percentile.
    pub p99_us: u64,
}

impl Latency {
    fn of(mut took: Vec<u64>) -> Option<Self> {
        took.sort_unstable();
        let at = |percent: usize| took.get((took.len() * percent).div_ceil(100).saturating_sub(1)).copied();
        let decisions = u32::try_from(took.len()).ok()?;
        Some(Self { decisions, min_us: at(0)?, median_us: at(50)?, p99_us: at(99)? })
    }
}

/// One decision after the other.
pub(super) async fn time(
    store: &RedisStore,
    subject: &str,
    mut progress: impl FnMut(u32),
) -> Result<Latency, StoreError> {
    let mut took = Vec::new();
    for number in 0..DECISIONS {
        let began = Instant::now();
        charge(store, subject).await?;
        took.push(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
        progress(number + 1);
    }
    Latency::of(took).ok_or_else(|| StoreError::corrupt("no decision was timed"))
}

pub(super) fn judge_latency(latency: &Latency, deadline: Duration) -> Finding {
    let check = DoctorCheck::Latency;
    let Latency { decisions, min_us, median_us, p99_us } = *latency;
    let ms = |micros: u64| format!("{}.{:02} ms", micros / 1000, micros % 1000 / 10);
    let found = format!(
        "{decisions} decisions: min {}, median {}, p99 {}, deadline {deadline:?}",
        ms(min_us),
        ms(median_us),
        ms(p99_us)
    );
    let deadline = u64::try_from(deadline.as_micros()).unwrap_or(u64::MAX);
    let fix = format!(
        "move the store closer, relieve it, or set --store-deadline to {} or more",
        ms(p99_us.saturating_mul(3))
    );
    if median_us >= deadline {
        return Finding::problem(check, found)
            .means(6, "most calls miss the deadline: on_error answers them, and each may still be charged")
            .fix(fix);
    }
    if p99_us.saturating_mul(3) > deadline {
        return Finding::warning(check, found)
            .means(6, "under load calls will miss the deadline: on_error answers them, and each may still be charged")
            .fix(fix);
    }
    Finding::ok(check, found)
}

/// The entries of `SLOWLOG GET`: id, time, microseconds, and the command, which may contain a subject and is not shown.
pub(super) fn judge_slow(reply: &Value, deadline: Duration) -> Finding {
    let check = DoctorCheck::SlowCommands;
    let took = |entry: &Value| text(items(entry).get(2)?)?.parse::<u64>().ok();
    let took: Vec<u64> = items(reply).iter().filter_map(took).collect();
    let deadline = u64::try_from(deadline.as_micros()).unwrap_or(u64::MAX);
    let long = took.iter().filter(|took| **took >= deadline).count();
    match took.iter().max() {
        Some(longest) if long > 0 => {
            let longest = clock::seconds(i64::try_from(*longest).unwrap_or(i64::MAX));
            Finding::warning(check, format!("{long} commands took longer than the deadline, the longest {longest}"))
                .means(6, "while such a command runs, every call waits, and on_error answers")
                .fix("find them with SLOWLOG GET: KEYS, large DEL, or other programs on the server. SLOWLOG RESET forgets them")
        }
        _ => Finding::ok(check, "none longer than the deadline in the slow log"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{Ok as Fine, Problem, Warning};
    use super::*;

    #[test]
    fn latency_is_judged_against_the_deadline() {
        let latency = Latency::of((1..=200).map(|number| number * 10).collect()).unwrap();
        assert_eq!(latency, Latency { decisions: 200, min_us: 10, median_us: 1000, p99_us: 1980 });
        let judge = |deadline| judge_latency(&latency, Duration::from_micros(deadline)).severity;
        assert_eq!([judge(15_000), judge(5_939), judge(1_000)], [Fine, Warning, Problem]);
        assert_eq!(Latency::of(vec![]), None);
    }

    #[test]
    fn slow_commands_are_counted_and_never_shown() {
        let entry = |took| {
            let command = Value::Array(vec![Value::BulkString(b"GET secret-subject".to_vec())]);
            Value::Array(vec![Value::Int(1), Value::Int(1), Value::Int(took), command])
        };
        let deadline = Duration::from_millis(15);
        let found = judge_slow(&Value::Array(vec![entry(20_000), entry(10), Value::Nil]), deadline);
        assert!(found.severity == Warning && found.found.starts_with("1 commands") && !found.found.contains("secret"));
        assert_eq!(judge_slow(&Value::Nil, deadline).severity, Fine);
        assert_eq!(judge_slow(&Value::Array(vec![entry(-5)]), deadline).severity, Fine);
    }
}
