//! The memory store under controlled interleavings. `cargo xtask test` runs this with `--cfg tallygate_shuttle`, which
//! replaces the real lock with shuttle's.
#![cfg(tallygate_shuttle)]

use std::sync::Arc;

use shuttle::{check_pct, check_random, future::block_on, thread};
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::store::Overflow;
use tallygate::{Algorithm, Check, Counter, Key, Limit, Limiter, MemoryStore};

const SCHEDULES: usize = 10_000;
/// The number of scheduling points that a bug may need, for the search that favours rare orders.
const DEPTH: usize = 3;

type Job = Box<dyn FnOnce() -> u64 + Send>;

fn everywhere(test: fn()) {
    check_random(test, SCHEDULES);
    check_pct(test, SCHEDULES, DEPTH);
}

fn store(keys: usize) -> Arc<MemoryStore> {
    let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
    Arc::new(MemoryStore::builder().capacity(keys).overflow(Overflow::Deny).clock(clock).build())
}

fn run_all(jobs: impl IntoIterator<Item = Job>) -> u64 {
    let threads: Vec<_> = jobs.into_iter().map(thread::spawn).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).sum()
}

#[test]
fn threads_on_one_key_admit_exactly_the_limit() {
    everywhere(|| {
        for &algorithm in Algorithm::OVER_TIME {
            let limiter = Limiter::over(store(1 << 16));
            let limit = Limit::per_minute(5).algorithm(algorithm).build().unwrap();
            let job = |_| -> Job {
                let (limiter, limit) = (limiter.clone(), limit.clone());
                Box::new(move || {
                    let check = Check::new(Key::new("p", "s").unwrap(), &limit);
                    (0..3).map(|_| u64::from(limiter.check_now(check).unwrap().allowed())).sum()
                })
            };
            assert_eq!(run_all((0..3).map(job)), 5, "{algorithm}");
        }
    });
}

/// Two limits taken in opposite orders: no deadlock, and never one without the other.
#[test]
fn several_limits_are_charged_all_or_none() {
    everywhere(|| {
        let limiter = Limiter::over(store(1 << 16));
        let (tight, wide): (Limit, Limit) = ("2/min".parse().unwrap(), "9/min sliding_log".parse().unwrap());
        let job = |turned: bool| -> Job {
            let (limiter, tight, wide) = (limiter.clone(), tight.clone(), wide.clone());
            Box::new(move || {
                let mut checks = [
                    Check::new(Key::new("tight", "s").unwrap(), &tight),
                    Check::new(Key::new("wide", "another subject").unwrap(), &wide),
                ];
                if turned {
                    checks.reverse();
                }
                (0..2).map(|_| u64::from(block_on(limiter.check_all(&checks)).unwrap().allowed())).sum()
            })
        };
        assert_eq!(run_all([job(false), job(true)]), 2);
        let check = Check::new(Key::new("wide", "another subject").unwrap(), &wide);
        assert_eq!(block_on(limiter.peek(check)).unwrap().binding().remaining(), 7);
    });
}

#[test]
fn no_order_of_calls_lifts_the_cap_on_keys() {
    everywhere(|| {
        let store = store(2);
        let limiter = Limiter::over(Arc::clone(&store));
        let limit: Limit = "3/min".parse().unwrap();
        let job = |from: u64| -> Job {
            let (limiter, limit) = (limiter.clone(), limit.clone());
            Box::new(move || {
                let admitted = (from..from + 2).map(|subject| {
                    let subject = subject.to_string();
                    let check = Check::new(Key::new("p", &subject).unwrap(), &limit);
                    u64::from(limiter.check_now(check).unwrap().allowed())
                });
                admitted.sum()
            })
        };
        assert_eq!(run_all([job(0), job(2)]), 2);
        assert_eq!(store.len(), 2);
    });
}

#[test]
fn counters_lose_nothing() {
    everywhere(|| {
        let store = store(1 << 16);
        let job = |delta: i64| -> Job {
            let counter = Counter::new(Arc::clone(&store), "n").unwrap();
            Box::new(move || {
                for _ in 0..3 {
                    block_on(counter.incr_by(delta)).unwrap();
                }
                0
            })
        };
        run_all([job(5), job(-2), job(1)]);
        let counter = Counter::new(Arc::clone(&store), "n").unwrap();
        assert_eq!(block_on(counter.get()).unwrap().to_string(), "12");
    });
}
