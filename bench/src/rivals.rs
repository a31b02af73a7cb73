//! The contenders, each asked the way its own documentation asks it.

use std::collections::HashMap;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use tallygate::{Algorithm, Check, Key, Limit, Limiter, MemoryStore};

/// Takes one decision for each subject and answers how many were allowed.
///
/// The loop is inside, so that a call through this box is paid once for many decisions.
pub type Decide = Box<dyn Fn(&[String]) -> u64 + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rival {
    /// Reads the subject and does nothing: what the loop itself costs.
    Nothing,
    GovernorKeyed,
    GovernorInformed,
    GovernorDirect,
    Throttlecrab,
    Limitador,
    Tallygate(Algorithm),
}

/// Under which limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    /// Two million a year and a hundred million at once: nothing is denied, and no state expires while we look.
    Ample,
    /// One an hour and ten at once: soon everything is denied. (throttlecrab does not enforce a burst of one.)
    Tiny,
}

const YEAR: u64 = 365 * 86_400;
const AMPLE_AMOUNT: u64 = 2_000_000;
const AMPLE_BURST: u32 = 100_000_000;
const TINY_BURST: u32 = 10;

impl Rival {
    pub const BASELINE: Self = Self::GovernorKeyed;

    pub const ALL: [Self; 12] = [
        Self::Nothing,
        Self::GovernorKeyed,
        Self::Tallygate(Algorithm::TokenBucket),
        Self::GovernorInformed,
        Self::GovernorDirect,
        Self::Throttlecrab,
        Self::Limitador,
        Self::Tallygate(Algorithm::FixedWindow),
        Self::Tallygate(Algorithm::FixedWindowFromFirstCall),
        Self::Tallygate(Algorithm::SlidingWindow),
        Self::Tallygate(Algorithm::SlidingCounter),
        Self::Tallygate(Algorithm::SlidingLog),
    ];

    pub fn name(self) -> String {
        match self {
            Self::Nothing => "(the loop alone)".to_owned(),
            Self::GovernorKeyed => "governor keyed".to_owned(),
            Self::GovernorInformed => "governor keyed, telling what remains".to_owned(),
            Self::GovernorDirect => "governor direct (no key)".to_owned(),
            Self::Throttlecrab => "throttlecrab Periodic in a Mutex".to_owned(),
            Self::Limitador => "limitador in memory".to_owned(),
            Self::Tallygate(Algorithm::TokenBucket) => "**tallygate token_bucket**".to_owned(),
            Self::Tallygate(algorithm) => format!("tallygate {algorithm}"),
        }
    }

    pub fn has_keys(self) -> bool {
        !matches!(self, Self::Nothing | Self::GovernorDirect)
    }

    /// The share of the operations it gets, so that the slow do not hold up the run.
    pub fn share(self) -> f64 {
        match self {
            Self::Limitador => 0.03,
            // Every admitted call is an entry: fewer calls, less memory.
            Self::Tallygate(Algorithm::SlidingLog) => 0.4,
            _ => 1.0,
        }
    }

    /// A limiter meant for `keys` keys.
    pub fn build(self, quota: Quota, keys: usize) -> Result<Decide> {
        Ok(match self {
            Self::Nothing => each(|subject| {
                black_box(subject.as_bytes().first());
                true
            }),
            Self::GovernorKeyed => governor_keyed(quota),
            Self::GovernorInformed => governor_informed(quota),
            Self::GovernorDirect => governor_direct(quota),
            Self::Throttlecrab => throttlecrab(quota, keys),
            Self::Limitador => limitador(quota, keys),
            Self::Tallygate(algorithm) => tallygate(algorithm, quota, keys)?,
        })
    }
}

fn each(decide: impl Fn(&String) -> bool + Send + Sync + 'static) -> Decide {
    Box::new(move |subjects| {
        let mut allowed = 0;
        for subject in subjects {
            allowed += u64::from(decide(black_box(subject)));
        }
        allowed
    })
}

fn tallygate(algorithm: Algorithm, quota: Quota, keys: usize) -> Result<Decide> {
    let ample = Limit::builder(Limit::MAX_AMOUNT, Duration::from_secs(86_400));
    let limit = match (quota, algorithm) {
        (Quota::Tiny, Algorithm::TokenBucket) => Limit::per_hour(1).burst(TINY_BURST.into()),
        (Quota::Tiny, _) => Limit::builder(TINY_BURST.into(), Duration::from_secs(10 * 3600)),
        (_, Algorithm::TokenBucket) => {
            Limit::builder(AMPLE_AMOUNT, Duration::from_secs(YEAR)).burst(AMPLE_BURST.into())
        }
        // A log of one hot key would grow by a gigabyte a minute: its entries leave after 10 ms.
        (_, Algorithm::SlidingLog) if keys == 1 => Limit::builder(Limit::MAX_AMOUNT, Duration::from_millis(10)),
        _ => ample,
    };
    let limit = limit.algorithm(algorithm).build()?;
    // The capacity is a bound, not an allocation; twice the keys, as chance does not fill shards evenly.
    let limiter = Limiter::new(MemoryStore::builder().capacity((keys * 2).max(1_000_000)).build());
    Ok(each(move |subject| {
        let Ok(key) = Key::new("api", subject) else { return false };
        let decision = limiter.check_now(Check::new(key, &limit));
        black_box(&decision).as_ref().is_ok_and(tallygate::Decision::allowed)
    }))
}

fn governor_quota(quota: Quota) -> governor::Quota {
    let (each, burst) = match quota {
        Quota::Ample => (Duration::from_secs(YEAR) / AMPLE_AMOUNT as u32, AMPLE_BURST),
        Quota::Tiny => (Duration::from_secs(3600), TINY_BURST),
    };
    let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
    governor::Quota::with_period(each).unwrap_or(governor::Quota::per_second(burst)).allow_burst(burst)
}

fn governor_keyed(quota: Quota) -> Decide {
    let limiter = governor::RateLimiter::<String, _, _>::keyed(governor_quota(quota));
    each(move |subject| {
        let answer = limiter.check_key(subject);
        black_box(&answer).is_ok()
    })
}

fn governor_informed(quota: Quota) -> Decide {
    use governor::middleware::StateInformationMiddleware;

    let limiter = governor::RateLimiter::<String, _, _>::keyed(governor_quota(quota));
    let limiter = limiter.with_middleware::<StateInformationMiddleware>();
    each(move |subject| {
        let answer = limiter.check_key(subject);
        black_box(answer.as_ref().map(governor::middleware::StateSnapshot::remaining_burst_capacity)).is_ok()
    })
}

fn governor_direct(quota: Quota) -> Decide {
    let limiter = governor::RateLimiter::direct(governor_quota(quota));
    each(move |_| {
        let answer = limiter.check();
        black_box(&answer).is_ok()
    })
}

fn throttlecrab(quota: Quota, keys: usize) -> Decide {
    let (burst, amount, seconds) = match quota {
        Quota::Ample => (i64::from(AMPLE_BURST), AMPLE_AMOUNT as i64, YEAR as i64),
        Quota::Tiny => (TINY_BURST.into(), 1, 3600),
    };
    let store = throttlecrab::PeriodicStore::builder().capacity(keys).build();
    let limiter = Mutex::new(throttlecrab::RateLimiter::new(store));
    each(move |subject| {
        let now = SystemTime::now();
        let mut limiter = limiter.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = limiter.rate_limit(subject, burst, amount, seconds, 1, now);
        drop(limiter);
        black_box(&answer).as_ref().is_ok_and(|(allowed, _)| *allowed)
    })
}

fn limitador(quota: Quota, keys: usize) -> Decide {
    use limitador::limit::{Context, Limit, Namespace};

    let limiter = limitador::RateLimiter::new(keys as u64 * 2);
    let (amount, seconds) = match quota {
        Quota::Ample => (u64::from(AMPLE_BURST), YEAR),
        Quota::Tiny => (TINY_BURST.into(), 10 * 3600),
    };
    let by_user = "user".try_into().expect("a variable is an expression");
    limiter.add_limit(Limit::new("api", amount, seconds, vec![], vec![by_user]));
    let namespace = Namespace::from("api");
    each(move |subject| {
        let context = Context::from(HashMap::from([("user".to_owned(), subject.clone())]));
        let answer = limiter.check_rate_limited_and_update(&namespace, &context, 1);
        black_box(&answer).as_ref().is_ok_and(|answer| !answer.limited)
    })
}
