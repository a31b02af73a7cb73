//! Live limits: numbers that change at an instant of the server's clock, and the overrides that change them.

use std::time::Duration;

use tallygate::call::{Call, Verb};
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::hold::Reservation;
use tallygate::limit::Changes;
use tallygate::live::{Override, OverrideSet, Overrides, Replaced, Replacement, Target, change};
use tallygate::{Algorithm, Check, Cost, Decision, Key, Limit, Limiter, MemoryStore, Status, Store};
use tallygate_redis::RedisStore;

use tallygate_testkit::Server;
use tallygate_testkit::random::Random;
use tallygate_testkit::wait::PATIENCE;

use crate::support::{every_key_expires, flavours, limit};

const SECOND: u64 = 1_000_000;
const START: u64 = 1_800_000_000 * SECOND;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

/// A store on the clock of the server, of an instance whose own clock differs.
async fn instance(url: &str, clock: &ManualClock, own: &ManualClock) -> RedisStore {
    let store = RedisStore::builder(url).deadline(PATIENCE).manual_clock(clock.clone()).client_clock(own.clone());
    store.connect().await.unwrap()
}

fn seen(decision: &Decision) -> (bool, Vec<Status>, Option<Timestamp>) {
    (decision.allowed(), decision.statuses().to_vec(), decision.decided_at())
}

/// Whichever instance asks, and however wrong its clock is: the limit is the one of the server's time, from the first call after
/// the instant on, and the answers are those of one store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_is_decided_by_the_old_numbers_after_the_new_ones() {
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        let mut random = Random::new(12);
        for &algorithm in Algorithm::OVER_TIME {
            let text = |amount: u64, window: &str| limit(&format!("{amount}/{window} {}", algorithm.name()));
            let clock = ManualClock::new(at(START));
            let memory = MemoryStore::builder().clock(clock.clone()).without_sweep().build();
            // Right, a little and very wrong.
            let clocks = [0, 900_000, 4_000 * SECOND].map(|ahead| ManualClock::new(at(START + ahead)));
            let mut stores = Vec::new();
            for own in &clocks {
                stores.push(instance(&server.url(), &clock, own).await);
            }
            let then = vec![
                (at(START + 20 * SECOND), text(20, "10s")),
                (at(START + 40 * SECOND), text(4, "10s")),
                (at(START + 60 * SECOND), text(9, "5s")),
            ];
            let changes = Changes::new(text(8, "10s"), then).unwrap();
            let subject = format!("{flavour:?}");
            let key = Key::new(algorithm.name(), &subject).unwrap();
            while clock.now() < at(START + 90 * SECOND) {
                let step = random.between(0, 1_500_000);
                clock.advance(Duration::from_micros(step));
                clocks.iter().for_each(|own| own.advance(Duration::from_micros(step)));
                let cost = Cost::new(random.between(1, 12)).unwrap();
                let check = Check::new(key, changes.first()).cost(cost).with_changes(Some(&changes));
                let checks = [check];
                let call = match random.between(0, 7) {
                    0 => Call::new(Verb::Peek, &checks),
                    1 => Call::new(Verb::Refund, &checks),
                    2 => Call::reserve(&checks, Reservation::new(Duration::from_secs(3))),
                    _ => Call::new(Verb::Check, &checks),
                };
                // More than the first limit ever has is refused beforehand, as without changes.
                let Ok(call) = call else { continue };
                let asked = usize::try_from(random.between(0, 2)).unwrap();
                let (expected, answer) = (memory.call(&call).await.unwrap(), stores[asked].call(&call).await.unwrap());
                let story =
                    format!("{flavour:?} {algorithm} instance {asked} {:?} of {cost} at {}", call.verb(), clock.now());
                assert_eq!(seen(&answer), seen(&expected), "{story}");
                assert_eq!(answer.statuses()[0].limit(), changes.limit_at(clock.now()).capacity(), "{story}");
            }
        }
        every_key_expires(&server);
    }
}

fn override_of(user: &str, amount: u64) -> Override {
    let target = Target::new("api", "per-user", [("user".to_owned(), user.to_owned())]);
    Override::new(target, Some(limit(&format!("{amount}/min")))).because("a test").by("ada")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overrides_are_read_by_others_as_they_were_written_and_expire() {
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        let one = RedisStore::builder(&server.url()).deadline(PATIENCE).connect().await.unwrap();
        let other = RedisStore::builder(&server.url()).deadline(PATIENCE).connect().await.unwrap();
        let nothing = other.read_overrides(None).await.unwrap();
        assert_eq!((nothing.revision, nothing.record.as_deref()), (0, Some(&[][..])));
        let first = change(&one, Some(0), |set, now| set.put(override_of("1", 9), None, now)).await.unwrap();
        let reading = other.read_overrides(Some(0)).await.unwrap();
        assert_eq!(OverrideSet::of_reading(&reading).unwrap(), first);
        let known = other.read_overrides(Some(first.revision())).await.unwrap();
        assert_eq!((known.revision, known.record), (first.revision(), None));
        let second = change(&other, None, |set, now| set.put(override_of("2", 9), None, now)).await.unwrap();
        assert!(second.revision() > first.revision());
        assert!(change(&one, Some(first.revision()), |_, _| Ok(())).await.is_err(), "it was changed meanwhile");
        let late = Replacement::new(second.revision(), at(1), Vec::new());
        assert_eq!(one.replace_overrides(late).await.unwrap(), Replaced::NotDone);
        assert_eq!(every_key_expires(&server), 2);
        // Evicted: the set is what counts.
        server.command(&["UNLINK", "tallygate:{overrides}:overrides:o-revision"]);
        let healed = one.read_overrides(Some(second.revision())).await.unwrap();
        assert_eq!((healed.revision, healed.record), (second.revision(), None));
        assert_eq!(every_key_expires(&server), 2);
        // Lost altogether: everybody reads so, and no revision comes again.
        server.command(&["FLUSHALL"]);
        let lost = one.read_overrides(Some(second.revision())).await.unwrap();
        assert_eq!((lost.revision, lost.record.as_deref()), (0, Some(&[][..])));
        let third = change(&one, None, |set, now| set.put(override_of("3", 9), None, now)).await.unwrap();
        assert!(third.revision() > second.revision());
    }
}

/// Twenty writers at once: none is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_change_is_lost_to_another() {
    let server = Server::redis().start();
    let store = RedisStore::builder(&server.url()).deadline(PATIENCE).connect().await.unwrap();
    let writers = (0..20).map(|number| {
        let store = store.clone();
        tokio::spawn(async move {
            let one = override_of(&number.to_string(), 9);
            // Whom others got ahead of too often gets an error, and nothing of it was written.
            while change(&store, None, |set, now| set.put(one.clone(), None, now)).await.is_err() {}
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let set = OverrideSet::of_reading(&store.read_overrides(None).await.unwrap()).unwrap();
    assert_eq!(set.overrides().len(), 20);
}

/// A limiter of the library that knows no changes pays for none.
#[tokio::test]
async fn a_check_without_changes_is_one_run_of_its_own_script() {
    let server = Server::redis().start();
    let limiter = Limiter::new(RedisStore::builder(&server.url()).deadline(PATIENCE).connect().await.unwrap());
    let plain: Limit = limit("9/min");
    let check = Check::new(Key::new("p", "s").unwrap(), &plain).with_changes(None);
    assert!(check.is_plain() && limiter.check(check).await.unwrap().allowed());
}
