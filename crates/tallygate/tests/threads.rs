//! Many threads and tasks on one key get exactly the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tallygate::clock::ManualClock;
use tallygate::{Algorithm, Check, Cost, Counter, Key, Limit, Limiter, MemoryStore, history};

use crate::START;

const TASKS: u64 = 64;
const CALLS: u64 = 500;

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn tasks_on_one_key_get_exactly_the_limit() {
    for &algorithm in Algorithm::OVER_TIME {
        let limit = Limit::per_hour(10_007).algorithm(algorithm).build().unwrap();
        let limiter = Limiter::new(MemoryStore::builder().clock(ManualClock::new(START)).build());
        let tasks = (0..TASKS).map(|task| {
            let (limiter, limit) = (limiter.clone(), limit.clone());
            tokio::spawn(async move {
                let mut records = Vec::new();
                for call in 0..CALLS {
                    let cost = Cost::new(1 + (task + call) % 3).unwrap();
                    let check = Check::new(Key::new("p", "one").unwrap(), &limit).cost(cost);
                    records.push(history::Record::new(cost, &limiter.check(check).await.unwrap()));
                }
                records
            })
        });
        let tasks: Vec<_> = tasks.collect();
        let mut records = Vec::new();
        for task in tasks {
            records.extend(task.await.unwrap());
        }
        assert_eq!(history::bound(&limit, &records).admitted, 10_007, "{limit}");
        let wrong = history::replay(&limit, &records, Duration::ZERO);
        assert!(
            wrong.is_empty(),
            "{limit}: {} of {} answers are wrong, first {}",
            wrong.len(),
            records.len(),
            wrong[0]
        );
    }
}

#[test]
fn threads_on_the_real_clock_stay_within_the_bound_and_are_answered_in_order() {
    for &algorithm in Algorithm::OVER_TIME {
        let limit = Limit::builder(500, std::time::Duration::from_millis(20)).algorithm(algorithm).build().unwrap();
        let limiter = Limiter::new(MemoryStore::new());
        let ask = |calls: u64| {
            let check = Check::new(Key::new("p", "one").unwrap(), &limit);
            let answers = (0..calls).map(|_| history::Record::new(Cost::ONE, &limiter.check_now(check).unwrap()));
            answers.collect::<Vec<_>>()
        };
        let records: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| ask(20_000))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let report = history::bound(&limit, &records);
        assert!(report.holds(), "{limit}: {}", report.violations[0]);
        assert!(report.admitted >= 500);
        let wrong = history::replay(&limit, &records, Duration::ZERO);
        assert!(wrong.is_empty(), "{limit}: {} answers are out of order, first {:?}", wrong.len(), wrong[0]);
    }
}

/// Two calls with the same two limits in opposite order must not deadlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn calls_of_several_limits_are_all_or_none_under_load() {
    let limiter = Limiter::new(MemoryStore::builder().capacity(1_000_000).clock(ManualClock::new(START)).build());
    let (wide, tight): (Limit, Limit) = ("100000/h sliding_log".parse().unwrap(), "9999/h".parse().unwrap());
    let passed = Arc::new(AtomicU64::new(0));
    let tasks = (0..TASKS).map(|task| {
        let (limiter, wide, tight, passed) = (limiter.clone(), wide.clone(), tight.clone(), Arc::clone(&passed));
        tokio::spawn(async move {
            let mut checks = [
                Check::new(Key::new("wide", "s").unwrap(), &wide),
                Check::new(Key::new("tight", "s").unwrap(), &tight),
            ];
            if task % 2 == 0 {
                checks.reverse();
            }
            for _ in 0..CALLS {
                let allowed = limiter.check_all(&checks).await.unwrap().allowed();
                passed.fetch_add(u64::from(allowed), Ordering::Relaxed);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(passed.load(Ordering::Relaxed), 9999);
    let left = limiter.peek(Check::new(Key::new("wide", "s").unwrap(), &wide)).await.unwrap();
    assert_eq!(left.binding().remaining(), 100_000 - 9999, "the wide limit was charged for what the tight one refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn no_increment_is_lost() {
    let store = Arc::new(MemoryStore::new());
    let tasks = (0..TASKS).map(|_| {
        let counter = Counter::new(Arc::clone(&store), "n").unwrap();
        tokio::spawn(async move {
            for _ in 0..CALLS {
                counter.incr().await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(Counter::new(store, "n").unwrap().incr_by(0).await.unwrap(), i64::try_from(TASKS * CALLS).unwrap());
}
