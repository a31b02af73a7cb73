//! A full server, and keys that Tallygate did not write.

use std::sync::Arc;
use std::time::Duration;

use tallygate::counter::CounterError;
use tallygate::decision::Source;
use tallygate::policy::{Ask, Descriptor, Domain, Mode, OnError, Policy, Rule, Ruling, Stores};
use tallygate::store::StoreErrorKind;
use tallygate::{Algorithm, Check, CheckError, Counter, Key, Limit, Limiter};
use tallygate_redis::RedisStore;
use tallygate_testkit::wait::PATIENCE;
use tallygate_testkit::{Reply, Server};

use super::{check_refused, store_refused};
use crate::support::{every_key_expires, flavours, keys, patient, receipt, units, used, yearly};

fn check<'a>(limit: &'a Limit, subject: &'a str) -> Check<'a> {
    Check::new(Key::new(limit.algorithm().name(), subject).unwrap(), limit)
}

/// At `maxmemory` without eviction: denials are still answered, charges refused, and no state is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_loses_nothing() {
    for flavour in flavours() {
        let server = Server::of(flavour).arg("--maxmemory-policy", "noeviction").start();
        let limiter = patient(&server.url()).await;
        let limits: Vec<Limit> = Algorithm::OVER_TIME.iter().map(|algorithm| yearly(*algorithm, 5)).collect();
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
            // Other numbers need the state to be rewritten: done or refused, but never lost.
            let wider = yearly(limit.algorithm(), 4);
            let _ = limiter.check(check(&wider, "half").cost(units(4))).await;
            let _ = limiter.refund(&[receipt(check(limit, "half"), None)]).await;
        }
        let Err(CounterError::Store(error)) = counter.incr_by_float(0.5).await else { panic!("it was written") };
        store_refused(&error, "noeviction");
        let Err(CounterError::Store(error)) = counter.incr().await else { panic!("it was written") };
        store_refused(&error, "noeviction");
        // A new client is served as far as possible.
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

/// A rolling upgrade: an instance that finds a state of a newer version reports it, and leaves it alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_of_a_newer_version_is_reported_and_left_alone() {
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        let store = RedisStore::builder(&server.url()).deadline(PATIENCE).connect().await.unwrap();
        let limiter = Limiter::new(store.clone());
        for &algorithm in Algorithm::OVER_TIME {
            let limit = yearly(algorithm, 5);
            let policy = Policy::new(algorithm.name(), "d", limit.clone()).unwrap();
            let key = Key::new(policy.key_name(), "all").unwrap();
            let check = Check::new(key, &limit);
            let written = check.key.encode("tallygate", algorithm.kind());
            limiter.check(check).await.unwrap();
            match server.command(&["GET", &written]) {
                Reply::Bulk(mut state) => {
                    // Newer formats may have another length. The second version is that of states of which units are held.
                    state[0] += 2;
                    state.extend([1, 2, 3]);
                    server.command(&[b"SET".as_slice(), written.as_bytes(), &state, b"KEEPTTL"]).ok();
                }
                _ => {
                    let members = server.command(&["ZRANGE", &written, "0", "-1"]);
                    let Reply::Bulk(mut member) = members.items()[0].clone() else { panic!("{members:?}") };
                    *member.last_mut().unwrap() += 2;
                    let score = server.command(&["ZRANGE", &written, "0", "0", "WITHSCORES"]).items()[1].text();
                    server.command(&["ZREMRANGEBYRANK", &written, "0", "0"]).ok();
                    server.command(&[b"ZADD".as_slice(), written.as_bytes(), score.as_bytes(), &member]).ok();
                    server.command(&["PEXPIRE", &written, "1000000"]).ok();
                }
            }
            let dump = || server.command(&["DUMP", &written]);
            let before = dump();
            let beside = Check::new(Key::new("beside", "all").unwrap(), &limit);
            for answer in [
                limiter.check(check).await.map(drop),
                limiter.peek(check).await.map(drop),
                limiter.check_all(&[beside, check]).await.map(drop),
                limiter.refund(&[receipt(check, None)]).await.map(drop),
            ] {
                let newer =
                    matches!(&answer, Err(CheckError::Store(error)) if error.kind() == StoreErrorKind::NewerFormat);
                assert!(newer, "{algorithm}: {answer:?}");
            }
            for (on_error, source) in [
                (OnError::Allow, Source::OnErrorAllow),
                (OnError::Deny, Source::OnErrorDeny),
                (OnError::Local, Source::OnErrorLocal),
            ] {
                let policy = policy.clone().with_on_error(on_error);
                let domain = Domain::new("d", [(policy, Rule::new())]).unwrap();
                let asks = [Ask::check(Descriptor::new(), units(1))];
                let verdict = domain.evaluate(&asks).decide(&Stores::new(store.clone()), None).await;
                assert_eq!(verdict.rulings()[0].source(), source, "{algorithm}");
            }
            // A shadow that cannot be read does not prevent the enforcing policy from being decided.
            let shadow = policy.clone().with_mode(Mode::Shadow).with_on_error(OnError::Deny);
            let real = Policy::new("real", "d", yearly(algorithm, 1)).unwrap();
            let domain = Domain::new("d", [(shadow, Rule::new()), (real, Rule::new())]).unwrap();
            for allowed in [true, false] {
                let asks = [Ask::check(Descriptor::new(), units(1))];
                let verdict = domain.evaluate(&asks).decide(&Stores::new(store.clone()), None).await;
                assert_eq!(verdict.allowed(), allowed, "{algorithm}");
                let sources: Vec<Source> = verdict.rulings().iter().map(Ruling::source).collect();
                assert_eq!(sources, [Source::OnErrorDeny, Source::Store], "{algorithm}");
            }
            assert_eq!(dump(), before, "{algorithm}");
            assert_eq!(used(&limiter, "beside", b"all", &limit).await, 0, "none is charged when one cannot be read");
            server.command(&["FLUSHALL"]).ok();
        }
    }
}

/// Anything else under our key is reported, and left alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_tallygate_did_not_write_is_left_alone() {
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        let limiter = patient(&server.url()).await;
        for &algorithm in Algorithm::OVER_TIME {
            let (limit, other) = (yearly(algorithm, 5), yearly(algorithm, 6));
            let check = check(&limit, "s");
            let key = check.key.encode("tallygate", algorithm.kind());
            limiter.check(check).await.unwrap();
            let length = match server.command(&["GET", &key]) {
                Reply::Bulk(state) => state.len(),
                _ => 20,
            };
            // The right first byte and the right length, but the numbers are NaN and zero.
            let (nan, zero) =
                ([&[1], vec![0xff; length - 1].as_slice()].concat(), [&[1], vec![0; length - 1].as_slice()].concat());
            // As of units held, with a head that can be read.
            let head = [1.0_f64, 1.0, 9e15, 9e15, 0.0].map(f64::to_le_bytes).concat();
            let marked = [&[2], vec![0; length - 1].as_slice(), &head].concat();
            let foreign: [&[&[u8]]; 9] = [
                &[b"LPUSH", key.as_bytes(), b"x"],
                &[b"HSET", key.as_bytes(), b"field", b"x"],
                &[b"ZADD", key.as_bytes(), b"1", b"x"],
                &[b"SET", key.as_bytes(), b"garbage"],
                &[b"SET", key.as_bytes(), b""],
                &[b"SET", key.as_bytes(), &[0xff; 200]],
                &[b"SET", key.as_bytes(), &nan],
                &[b"SET", key.as_bytes(), &zero],
                &[b"SET", key.as_bytes(), &marked],
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
                    limiter.peek(check).await.map(drop),
                    limiter.check_all(&[beside, check]).await.map(drop),
                    limiter.refund(&[receipt(check, None)]).await.map(drop),
                ];
                for (call, answer) in answers.into_iter().enumerate() {
                    let kind = String::from_utf8_lossy(foreign[0]);
                    let corrupt =
                        matches!(&answer, Err(CheckError::Store(error)) if error.kind() == StoreErrorKind::Corrupt);
                    assert!(corrupt, "{algorithm}, call {call} on what {kind} wrote: {answer:?}");
                    let said = answer.unwrap_err().to_string();
                    // The words of the server, whichever script met them.
                    let log = algorithm == Algorithm::SlidingLog;
                    let other_type = if log { foreign[0] != b"ZADD" } else { foreign[0] != b"SET" };
                    assert_eq!(said.contains("WRONGTYPE"), other_type, "{said}");
                    // A13: the subject was in it, and so in the log.
                    let pattern = key.replace("{s}", "{*}");
                    assert!(said.contains(&pattern) && said.contains("reset") && !said.contains(&key), "{said}");
                }
                assert_eq!(dump(), before, "{algorithm}");
                assert_eq!(used(&limiter, "beside", b"s", &limit).await, 0, "none is charged when one is corrupt");
            }
            // The operator's remedy.
            assert!(limiter.reset(check).await.unwrap());
            assert_eq!(limiter.check(check).await.unwrap().binding().remaining(), 4);
            limiter.reset(check).await.unwrap();
        }
        assert_eq!(keys(&server).len(), 0);
    }
}
