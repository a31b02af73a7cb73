//! Ways in which reservations have gone wrong elsewhere, each as a test of both stores.

use tallygate::clock::{ManualClock, Timestamp};
use tallygate::hold::{HoldPage, HoldQuery, OpenHold};
use tallygate::limiter::Reserved;
use tallygate::{Limiter, MemoryStore};
use tallygate_redis::RedisStore;
use tallygate_testkit::Reply;

use super::*;

const HOUR: u64 = 3_600_000_000;
const MINUTE: Duration = Duration::from_secs(60);

/// Runs a story on the embedded store, and then on Redis, on one clock that begins at a full hour.
macro_rules! pitfall {
    ($(#[$doc:meta])* $name:ident($limiter:ident, $clock:ident) $story:block) => {
        $(#[$doc])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let twins = Twins::start().await;
            twins.set(twins.clock.now().as_micros().next_multiple_of(HOUR));
            {
                let ($limiter, $clock) = (&twins.memory, &twins.clock);
                $story
            }
            twins.set(twins.clock.now().as_micros().next_multiple_of(HOUR) + 10 * HOUR);
            {
                let ($limiter, $clock) = (&twins.redis, &twins.clock);
                $story
            }
            assert!(every_key_expires(&twins.server) > 0);
        }
    };
}

async fn ask<S: Holds>(limiter: &Limiter<S>, check: Check<'_>, ttl: Duration) -> Reserved<S> {
    limiter.reserve(&[check], ttl).await.unwrap()
}

async fn hold<S: Holds>(limiter: &Limiter<S>, check: Check<'_>, ttl: Duration) -> Option<Hold> {
    ask(limiter, check, ttl).await.hold.map(HoldGuard::into_hold)
}

async fn left<S: Holds>(limiter: &Limiter<S>, check: Check<'_>) -> u64 {
    limiter.peek(check).await.unwrap().binding().remaining()
}

/// The first page of the open holds, on either store.
trait Lists: Holds {
    async fn page(&self, query: &HoldQuery) -> HoldPage;
}

impl Lists for MemoryStore {
    async fn page(&self, query: &HoldQuery) -> HoldPage {
        self.open_holds(query)
    }
}

impl Lists for RedisStore {
    async fn page(&self, query: &HoldQuery) -> HoldPage {
        self.open_holds(query).await.unwrap()
    }
}

async fn listed<S: Lists>(limiter: &Limiter<S>, query: &HoldQuery) -> Vec<OpenHold> {
    limiter.store().page(query).await.holds
}

fn later(clock: &ManualClock, by: Duration) {
    clock.set(Timestamp::from_micros(clock.now().as_micros() + u64::try_from(by.as_micros()).unwrap()));
}

fn tokens<'a>(limit: &'a Limit, subject: &'a str, cost: u64) -> Check<'a> {
    Check::new(Key::new("tokens", subject).unwrap(), limit).cost(units(cost))
}

pitfall! {
    /// Elsewhere the value was read before the lock, and the holds after it: a settlement in between was seen by neither.
    a_settlement_beside_a_reservation_is_seen_by_one_of_them(limiter, _clock) {
        let limit = limit("100/h fixed_window");
        let mut tasks = JoinSet::new();
        for _ in 0..16 {
            let (limiter, limit) = (limiter.clone(), limit.clone());
            tasks.spawn(async move {
                let mut settled = 0;
                for _ in 0..40 {
                    if let Some(hold) = hold(&limiter, tokens(&limit, "a", 3), MINUTE).await {
                        settled += limiter.settle(&hold, Units::Same(2)).await.unwrap().parts[0].settled;
                    }
                }
                settled
            });
        }
        let settled: u64 = tasks.join_all().await.into_iter().sum();
        assert!(settled >= 96, "{settled}");
        assert_eq!(left(limiter, tokens(&limit, "a", 1)).await, 100 - settled);
    }
}

pitfall! {
    /// Elsewhere the server made the id of a reservation: one that was repeated held twice, and a settlement charged twice.
    a_repeated_reservation_holds_once_and_a_repeated_settlement_charges_once(limiter, _clock) {
        let limit = limit("100/h fixed_window");
        let once = limiter.once(tallygate::request::RequestId::new("request 1").unwrap());
        let first = once.reserve(&[tokens(&limit, "b", 30)], MINUTE).await.unwrap();
        let again = once.reserve(&[tokens(&limit, "b", 30)], MINUTE).await.unwrap();
        assert!(again.decision.replayed());
        let (first, again) = (first.hold.unwrap().into_hold(), again.hold.unwrap().into_hold());
        assert!(first == again);
        assert_eq!(left(limiter, tokens(&limit, "b", 1)).await, 70);
        assert!(limiter.settle(&first, Units::Same(20)).await.unwrap().done);
        let twice = limiter.settle(&again, Units::Same(20)).await.unwrap();
        assert_eq!((twice.done, twice.state, twice.parts[0].settled), (false, HoldState::Settled, 20));
        assert_eq!(left(limiter, tokens(&limit, "b", 1)).await, 80);
    }
}

pitfall! {
    /// Elsewhere nothing extends a hold: a stream that outlived it was no longer held, and its tokens were promised twice.
    a_long_stream_stays_held_as_long_as_it_is_extended(limiter, clock) {
        let limit = limit("100 per 10h fixed_window");
        let stream = hold(limiter, tokens(&limit, "c", 80), MINUTE).await.unwrap();
        for _ in 0..20 {
            later(clock, MINUTE / 2);
            assert!(limiter.extend(&stream, MINUTE).await.unwrap().done);
            assert!(hold(limiter, tokens(&limit, "c", 30), MINUTE).await.is_none());
        }
        let ended = limiter.settle(&stream, Units::Same(50)).await.unwrap();
        assert_eq!((ended.state, ended.parts[0].refunded), (HoldState::Settled, 30));
    }
}

pitfall! {
    /// Elsewhere the first settlement moved the window, because it was the first write with an expiry.
    a_settlement_does_not_move_the_window(limiter, clock) {
        let limit = limit("100/h fixed_window");
        later(clock, 10 * MINUTE);
        let stream = hold(limiter, tokens(&limit, "d", 80), 30 * MINUTE).await.unwrap();
        later(clock, 20 * MINUTE);
        let ended = limiter.settle(&stream, Units::Same(50)).await.unwrap();
        assert_eq!(ended.parts[0].status.reset_after(), 30 * MINUTE);
        later(clock, 30 * MINUTE);
        assert_eq!(left(limiter, tokens(&limit, "d", 1)).await, 100);
    }
}

pitfall! {
    /// Elsewhere tokens were counted after the reply: all of a burst of parallel calls passed.
    parallel_calls_reserve_before_they_are_answered(limiter, _clock) {
        let limit = limit("1000/h sliding_window");
        let mut calls = JoinSet::new();
        for _ in 0..50 {
            let (limiter, limit) = (limiter.clone(), limit.clone());
            calls.spawn(async move { hold(&limiter, tokens(&limit, "e", 90), MINUTE).await.is_some() });
        }
        assert_eq!(calls.join_all().await.into_iter().filter(|allowed| *allowed).count(), 11);
    }
}

pitfall! {
    /// Elsewhere units were added before they were compared, and not taken back: a key that was refused often starved itself.
    a_refused_reservation_takes_nothing(limiter, _clock) {
        for &algorithm in Algorithm::OVER_TIME {
            let limit = yearly(algorithm, 10);
            let stream = hold(limiter, tokens(&limit, algorithm.name(), 6), MINUTE).await.unwrap();
            for _ in 0..20 {
                assert!(hold(limiter, tokens(&limit, algorithm.name(), 5), MINUTE).await.is_none());
            }
            assert!(hold(limiter, tokens(&limit, algorithm.name(), 4), MINUTE).await.is_some(), "{algorithm}");
            assert!(limiter.cancel(&stream).await.unwrap().done);
        }
    }
}

pitfall! {
    /// Elsewhere each reservation renewed the expiry of one counter: a single one that was lost counted for ever.
    each_hold_has_a_deadline_of_its_own(limiter, clock) {
        let terms = HoldTerms::DEFAULT.with_on_abandon(OnAbandon::Refund);
        let limit = limit("10 per 10h fixed_window");
        let check = tokens(&limit, "f", 4).with_holds(Some(&terms));
        drop(hold(limiter, check, MINUTE).await.unwrap());
        for _ in 0..3 {
            later(clock, MINUTE / 4);
            let busy = hold(limiter, check, MINUTE).await.unwrap();
            assert_eq!(left(limiter, check).await, 2);
            limiter.cancel(&busy).await.unwrap();
        }
        later(clock, MINUTE / 4);
        assert_eq!(left(limiter, check).await, 10, "the lost one came back at its deadline");
    }
}

pitfall! {
    /// Elsewhere a call that one limit refused had been charged by another.
    what_one_limit_refuses_is_reserved_from_none(limiter, _clock) {
        for &algorithm in Algorithm::OVER_TIME {
            let (many, few) = (yearly(algorithm, 100), limit("1/h fixed_window"));
            let name = algorithm.name();
            let checks = [tokens(&many, name, 10), Check::new(Key::new("streams", name).unwrap(), &few)];
            let first = limiter.reserve(&checks, MINUTE).await.unwrap().hold.unwrap().into_hold();
            assert!(limiter.reserve(&checks, MINUTE).await.unwrap().hold.is_none());
            assert_eq!(left(limiter, checks[0]).await, 90, "{algorithm}");
            limiter.cancel(&first).await.unwrap();
        }
    }
}

pitfall! {
    /// Elsewhere the window was reset by a plain write, and what was spent at the same time was lost.
    nothing_is_lost_at_the_edge_of_a_window(limiter, clock) {
        let limit = limit("50/h fixed_window");
        later(clock, 30 * MINUTE);
        let old = hold(limiter, tokens(&limit, "g", 50), 60 * MINUTE).await.unwrap();
        later(clock, 30 * MINUTE);
        let mut calls = JoinSet::new();
        for _ in 0..40 {
            let (limiter, limit) = (limiter.clone(), limit.clone());
            calls.spawn(async move { hold(&limiter, tokens(&limit, "g", 3), MINUTE).await.is_some() });
        }
        // A settlement of the window before gives nothing to this one.
        assert!(limiter.settle(&old, Units::Same(0)).await.unwrap().done);
        assert_eq!(calls.join_all().await.into_iter().filter(|allowed| *allowed).count(), 16);
        assert_eq!(left(limiter, tokens(&limit, "g", 1)).await, 2);
    }
}

pitfall! {
    /// Elsewhere keys stayed blocked for minutes after their window had ended.
    who_waits_as_long_as_was_said_is_admitted(limiter, clock) {
        for &algorithm in Algorithm::OVER_TIME {
            let limit = Limit::builder(10, Duration::from_secs(3600)).algorithm(algorithm).build().unwrap();
            let check = tokens(&limit, algorithm.name(), 10);
            let stream = hold(limiter, check, 2 * MINUTE).await.unwrap();
            limiter.settle(&stream, Units::Same(10)).await.unwrap();
            let refused = ask(limiter, check, MINUTE).await;
            assert!(refused.hold.is_none(), "{algorithm}");
            later(clock, refused.decision.binding().retry_after().unwrap());
            assert!(hold(limiter, check, MINUTE).await.is_some(), "{algorithm}");
        }
    }
}

pitfall! {
    /// Elsewhere a settlement had to send its limits again, and was counted under whatever they had become.
    a_settlement_needs_nothing_but_the_token(limiter, _clock) {
        for &algorithm in Algorithm::OVER_TIME {
            let (limit, name) = (yearly(algorithm, 100), format!("token {algorithm}"));
            let token = hold(limiter, tokens(&limit, &name, 80), MINUTE).await.unwrap().to_string();
            let read: Hold = token.parse().unwrap();
            let ended = limiter.settle(&read, Units::Same(50)).await.unwrap();
            assert_eq!((ended.done, ended.parts[0].settled, ended.parts[0].refunded), (true, 50, 30), "{algorithm}");
            assert_eq!(left(limiter, tokens(&limit, &name, 1)).await, 50, "{algorithm}");
        }
    }
}

pitfall! {
    /// Elsewhere nobody could see what was held: idle limits refused, and the only answer was to wait.
    what_is_held_is_shown_apart_and_listed_by_age(limiter, clock) {
        let limit = limit("100 per 10h fixed_window");
        let old = hold(limiter, tokens(&limit, "idle", 60), 10 * MINUTE).await.unwrap();
        later(clock, MINUTE);
        let _young = hold(limiter, tokens(&limit, "idle", 30), 10 * MINUTE).await.unwrap();
        limiter.settle_partial(&old, Units::Same(20)).await.unwrap();
        let seen = limiter.peek(tokens(&limit, "idle", 1)).await.unwrap().binding();
        assert_eq!((seen.held(), seen.remaining()), (70, 10), "20 are used");
        let query = HoldQuery::new().of_policy("tokens").unwrap().of_subject("idle").unwrap();
        let listed = listed(limiter, &query).await;
        let listed: Vec<_> = listed.iter().map(|hold| (hold.age, hold.expires_after(), hold.units())).collect();
        assert_eq!(listed, [(MINUTE, 9 * MINUTE, 40), (Duration::ZERO, 10 * MINUTE, 30)]);
    }
}

pitfall! {
    /// Elsewhere a worker was taken for dead and its units were released; then it released them again, and what it gave back was that of another.
    who_comes_back_after_the_deadline_frees_nobody_elses_units(limiter, clock) {
        let terms = HoldTerms::DEFAULT.with_on_abandon(OnAbandon::Refund);
        for &algorithm in Algorithm::OVER_TIME {
            let limit = yearly(algorithm, 10);
            let name = format!("late {algorithm}");
            let check = tokens(&limit, &name, 10).with_holds(Some(&terms));
            let dead = hold(limiter, check, MINUTE).await.unwrap();
            later(clock, MINUTE);
            let living = hold(limiter, check, MINUTE).await.unwrap();
            for _ in 0..2 {
                let late = limiter.cancel(&dead).await.unwrap();
                assert_eq!((late.done, late.state), (false, HoldState::Expired), "{algorithm}");
                assert!(hold(limiter, check.cost(units(1)), MINUTE).await.is_none(), "{algorithm}");
            }
            assert!(limiter.settle(&living, Units::Same(10)).await.unwrap().done, "{algorithm}");
        }
    }
}

pitfall! {
    /// Elsewhere a heartbeat that came too late brought back what had been given to another.
    an_extension_after_the_deadline_brings_nothing_back(limiter, clock) {
        let terms = HoldTerms::DEFAULT.with_on_abandon(OnAbandon::Refund);
        let limit = limit("10 per 10h fixed_window");
        let check = tokens(&limit, "paused", 6).with_holds(Some(&terms));
        let paused = hold(limiter, check, MINUTE).await.unwrap();
        later(clock, MINUTE);
        let other = hold(limiter, check, MINUTE).await.unwrap();
        let extended = limiter.extend(&paused, MINUTE).await.unwrap();
        assert_eq!((extended.done, extended.state), (false, HoldState::Expired));
        assert_eq!(left(limiter, check).await, 4);
        limiter.cancel(&other).await.unwrap();
        assert_eq!(left(limiter, check).await, 10);
    }
}

pitfall! {
    /// Elsewhere slots leaked on the paths that forgot to release them: a panic, an early return, a caller that left.
    what_is_dropped_gives_back_what_it_held(limiter, _clock) {
        let limit = limit("10 per 10h fixed_window");
        let check = tokens(&limit, "forgetful", 10);
        let reserved = ask(limiter, check, MINUTE).await;
        let task = tokio::spawn(async move {
            let _guard = reserved.hold.unwrap();
            panic!("between the reservation and its end");
        });
        assert!(task.await.is_err());
        while left(limiter, check).await < 10 {
            tokio::task::yield_now().await;
        }
        assert!(hold(limiter, check, MINUTE).await.is_some());
    }
}

/// Elsewhere a reservation that was refused still wrote, the script took the time from its caller, and it read every open hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_reservation_writes_nothing_and_reads_no_list_of_holds() {
    let server = Server::redis().start();
    let limiter = patient(&server.url()).await;
    let limit = yearly(Algorithm::FixedWindow, 100);
    for _ in 0..100 {
        reserve(&limiter, &[tokens(&limit, "h", 1)], MINUTE).await.unwrap();
    }
    let dump = || {
        let mut keys: Vec<String> = server.command(&["KEYS", "*"]).items().iter().map(Reply::text).collect();
        keys.sort();
        keys.into_iter().map(|key| (server.command(&["PEXPIRETIME", &key]).int(), key)).collect::<Vec<_>>()
    };
    let (before, writes) = (dump(), || server.info("rdb_changes_since_last_save"));
    let written = writes();
    server.command(&["CONFIG", "RESETSTAT"]);
    assert!(reserve(&limiter, &[tokens(&limit, "h", 1)], MINUTE).await.is_none());
    let calls = server.command(&["INFO", "commandstats"]).text();
    let ran: Vec<&str> = calls.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split(':').next()).collect();
    assert!(ran.contains(&"time") && !ran.contains(&"zrange"), "{ran:?}");
    assert_eq!((dump(), writes()), (before, written));
}
