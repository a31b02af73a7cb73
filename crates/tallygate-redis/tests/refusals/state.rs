//! A server that is full, and keys that hold what we did not write.

use std::sync::Arc;
use std::time::Duration;

use tallygate::{Algorithm, Check, CheckError, Counter, CounterError, Key, Limit, StoreError};
use tallygate_testkit::{Reply, Server};

use super::{check_refused, store_refused};
use crate::support::{every_key_expires, flavours, keys, patient, units, used, yearly};

fn check<'a>(limit: &'a Limit, subject: &'a str) -> Check<'a> {
    Check::new(Key::new(limit.algorithm().name(), subject).unwrap(), limit)
}

/// At `maxmemory` without eviction: denials are still answered, admissions refused, and all is there again afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_loses_nothing() {
    for flavour in flavours() {
        let server = Server::of(flavour).arg("--maxmemory-policy", "noeviction").start();
        let limiter = patient(&server.url()).await;
        let limits = Algorithm::ALL.map(|algorithm| yearly(algorithm, 5));
        for limit in &limits {
            limiter.check(check(limit, "spent").cost(units(5))).await.unwrap();
            limiter.check(check(limit, "half").cost(units(3))).await.unwrap();
        }
        let counter = Counter::new(Arc::clone(limiter.store()), "c").unwrap();
        counter.incr_by(7).await.unwrap();

        server.command(&["CONFIG", "SET", "maxmemory", "1"]).ok();
        for limit in &limits {
            let denied = limiter.check(check(limit, "spent")).await.unwrap();
            assert!(!denied.allowed() && denied.binding().retry_after().unwrap() > Duration::ZERO);
            assert_eq!(used(&limiter, limit.algorithm().name(), b"half", limit).await, 3);
            for subject in ["half", "new"] {
                check_refused(&limiter.check(check(limit, subject)).await.unwrap_err(), "noeviction");
                let both = [check(limit, subject), Check::new(Key::new("other", subject).unwrap(), limit)];
                check_refused(&limiter.check_all(&both).await.unwrap_err(), "noeviction");
            }
            // Other numbers ask for the state to be written anew: done or refused, but never lost.
            let wider = yearly(limit.algorithm(), 4);
            let _ = limiter.check(check(&wider, "half").cost(units(4))).await;
            let _ = limiter.refund(check(limit, "half"), None).await;
        }
        let Err(CounterError::Store(error)) = counter.incr_by_float(0.5).await else { panic!("it was written") };
        store_refused(&error, "noeviction");
        // A client that comes now is served as far as that is possible.
        patient(&server.url()).await;

        server.command(&["CONFIG", "SET", "maxmemory", "0"]).ok();
        for limit in &limits {
            let name = limit.algorithm().name();
            assert_eq!(used(&limiter, name, b"spent", limit).await, 5, "{limit}");
            let half = used(&limiter, name, b"half", limit).await;
            // A refund that needs no memory may have succeeded.
            assert!(half == 3 || half == 2, "{limit}: {half}");
            assert!(limiter.check(check(limit, "half").cost(units(5 - half))).await.unwrap().allowed());
            assert!(!limiter.check(check(limit, "half")).await.unwrap().allowed());
            assert!(limiter.check(check(limit, "new").cost(units(5))).await.unwrap().allowed());
        }
        assert_eq!(counter.delete().await.unwrap().to_string(), "7");
        every_key_expires(&server);
    }
}

/// Whatever lies under our key is reported, and left as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_tallygate_did_not_write_is_left_alone() {
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        let limiter = patient(&server.url()).await;
        for algorithm in Algorithm::ALL {
            let (limit, other) = (yearly(algorithm, 5), yearly(algorithm, 6));
            let check = check(&limit, "s");
            let key = check.key.encode("tallygate", algorithm.kind());
            limiter.check(check).await.unwrap();
            let future = match server.command(&["GET", &key]) {
                Reply::Bulk(mut state) => {
                    state[0] += 1;
                    state
                }
                _ => b"a string where a log should be".to_vec(),
            };
            // The right first byte and the right length, and nothing else right: as numbers, NaN and zero.
            let length = future.len();
            let (nan, zero) =
                ([&[1], vec![0xff; length - 1].as_slice()].concat(), [&[1], vec![0; length - 1].as_slice()].concat());
            let foreign: [&[&[u8]]; 9] = [
                &[b"LPUSH", key.as_bytes(), b"x"],
                &[b"HSET", key.as_bytes(), b"field", b"x"],
                &[b"ZADD", key.as_bytes(), b"1", b"x"],
                &[b"SET", key.as_bytes(), b"garbage"],
                &[b"SET", key.as_bytes(), b""],
                &[b"SET", key.as_bytes(), &[0xff; 200]],
                &[b"SET", key.as_bytes(), &future],
                &[b"SET", key.as_bytes(), &nan],
                &[b"SET", key.as_bytes(), &zero],
            ];
            for foreign in foreign {
                server.command(&["DEL", &key]);
                server.command(foreign).ok();
                let dump = || server.command(&["DUMP", &key]);
                let before = dump();
                let changed = Check::new(check.key, &other);
                let beside = Check::new(Key::new("beside", "s").unwrap(), &limit);
                let answers = [
                    limiter.check(check).await.map(drop),
                    limiter.check(changed).await.map(drop),
                    limiter.peek(&[check]).await.map(drop),
                    limiter.check_all(&[beside, check]).await.map(drop),
                    limiter.refund(check, None).await.map(drop),
                ];
                for (call, answer) in answers.into_iter().enumerate() {
                    let kind = String::from_utf8_lossy(foreign[0]);
                    let corrupt = matches!(answer, Err(CheckError::Store(StoreError::Corrupt { .. })));
                    assert!(corrupt, "{algorithm}, call {call} on what {kind} wrote: {answer:?}");
                    let said = answer.unwrap_err().to_string();
                    assert!(said.contains(&key) && said.contains("reset"), "{said}");
                }
                assert_eq!(dump(), before, "{algorithm}");
                assert_eq!(used(&limiter, "beside", b"s", &limit).await, 0, "none is charged when one is corrupt");
            }
            // An operator's remedy.
            assert!(limiter.reset(check).await.unwrap());
            assert_eq!(limiter.check(check).await.unwrap().binding().remaining(), 4);
            limiter.reset(check).await.unwrap();
        }
        assert_eq!(keys(&server).len(), 0);
    }
}
