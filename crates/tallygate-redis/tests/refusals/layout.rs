//! States whose layout is right and whose numbers are not: every number is checked before it is used.

use tallygate::store::StoreErrorKind;
use tallygate::{Algorithm, Check, CheckError, Key, Limit};
use tallygate_testkit::{Reply, Server};

use crate::support::{RedisLimiter, limit, patient, units, yearly};

/// A number in a state: its name, its place, the smallest one that can be read, and the first that is too large.
type Number = (&'static str, usize, f64, Option<f64>);

const NEVER: Option<f64> = Some(9_007_199_254_740_992.0);

fn numbers(algorithm: Algorithm) -> Vec<Number> {
    match algorithm {
        Algorithm::FixedWindow | Algorithm::FixedWindowFromFirstCall => {
            vec![("start", 1, 0.0, NEVER), ("used", 9, 0.0, None), ("window", 17, 1.0, None)]
        }
        Algorithm::TokenBucket => vec![
            ("at", 1, 0.0, NEVER),
            ("used", 9, 0.0, NEVER),
            ("tick", 17, 1.0, None),
            ("refill", 25, 1.0, None),
            ("unit", 33, 1.0, None),
        ],
        Algorithm::SlidingCounter => vec![
            ("start", 1, 0.0, NEVER),
            ("previous", 9, 0.0, None),
            ("current", 17, 0.0, None),
            ("window", 25, 1.0, None),
            ("tick", 33, 1.0, None),
        ],
        Algorithm::CalendarWindow => {
            vec![("start", 1, 0.0, None), ("end", 9, 1.0, NEVER), ("used", 17, 0.0, None), ("calendar", 25, 0.0, None)]
        }
        Algorithm::SlidingWindow => vec![("window", 1, 1.0, None), ("newest", 10, 0.0, NEVER)],
        _ => Vec::new(),
    }
}

struct State<'s> {
    server: &'s Server,
    limiter: &'s RedisLimiter,
    limit: Limit,
    key: String,
}

impl State<'_> {
    fn check(&self) -> Check<'_> {
        Check::new(Key::new("p", "s").unwrap(), &self.limit)
    }

    /// What a call says of this state. One that cannot be read is left as it is.
    async fn read(&self, state: &[u8]) -> Option<StoreErrorKind> {
        self.server.command(&[b"SET".as_slice(), self.key.as_bytes(), state, b"PX", b"1000000"]).ok();
        let kind = match self.limiter.check(self.check()).await {
            Ok(_) => return None,
            Err(CheckError::Store(error)) => error.kind(),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(self.server.command(&["GET", &self.key]), Reply::Bulk(state.to_vec()), "{}", self.limit);
        Some(kind)
    }

    async fn peek(&self) -> Option<StoreErrorKind> {
        match self.limiter.peek(self.check()).await {
            Ok(_) => None,
            Err(CheckError::Store(error)) => Some(error.kind()),
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_number_of_a_state_is_checked() {
    let server = Server::redis().start();
    let limiter = patient(&server.url()).await;
    for &algorithm in Algorithm::OVER_TIME.iter().filter(|algorithm| **algorithm != Algorithm::SlidingLog) {
        let limit = yearly(algorithm, 5);
        let key = Key::new("p", "s").unwrap().encode("tallygate", algorithm.kind());
        let state = State { server: &server, limiter: &limiter, limit, key };
        limiter.reset(state.check()).await.unwrap();
        assert!(limiter.check(state.check()).await.unwrap().allowed());
        let Reply::Bulk(good) = server.command(&["GET", &state.key]) else { panic!("a packed state") };
        assert_eq!(state.read(&good).await, None, "{algorithm}");
        for (name, at, least, above) in numbers(algorithm) {
            let with = |number: f64| {
                let mut state = good.clone();
                state[at..at + 8].copy_from_slice(&number.to_le_bytes());
                state
            };
            let (below, above_all) = (least - 1.0, above.map(|above| above - 1.0));
            for number in [Some(least), above_all].into_iter().flatten() {
                assert_eq!(state.read(&with(number)).await, None, "{algorithm}: {name} {number}");
            }
            // A sub-window need not be a whole number of microseconds long.
            let fraction = (name != "window" || algorithm != Algorithm::SlidingWindow).then_some(least + 0.5);
            for number in [Some(below), Some(-1.0), Some(f64::NAN), fraction, above].into_iter().flatten() {
                let read = state.read(&with(number)).await;
                assert_eq!(read, Some(StoreErrorKind::Corrupt), "{algorithm}: {name} {number}");
            }
        }
        if algorithm == Algorithm::TokenBucket {
            // At a multiple of its tick.
            for (tick, read) in [(3.0, None), (1.5, Some(StoreErrorKind::Corrupt))] {
                let numbers = [3.0, 0.0, tick, 1.0, 1.0].map(f64::to_le_bytes);
                let state = state.read(&[&[1], numbers.as_flattened()].concat()).await;
                assert_eq!(state, read, "a tick of {tick}");
            }
        }
        if algorithm == Algorithm::SlidingCounter {
            // Their product with the ticks of a window is exact.
            for (previous, current, read) in [
                (2_u64.pow(33) - 1, 0, None),
                (2_u64.pow(33), 0, Some(StoreErrorKind::Corrupt)),
                (2_u64.pow(32), 2_u64.pow(32), Some(StoreErrorKind::Corrupt)),
            ] {
                let (window, tick) = (2_u64.pow(21), 2);
                let numbers = [0, previous, current, window, tick].map(|number| (number as f64).to_le_bytes());
                let state = state.read(&[&[1], numbers.as_flattened()].concat()).await;
                assert_eq!(state, read, "{previous} and {current}");
            }
        }
        if algorithm == Algorithm::SlidingWindow {
            for (slots, read) in [(0, Some(StoreErrorKind::Corrupt)), (1, None)] {
                let mut other = good.clone();
                other[9] = slots;
                assert_eq!(state.read(&other).await, read, "{slots} slots");
            }
            // No cells at all.
            assert_eq!(state.read(&good[..18]).await, None);
            let now: u64 = server.command(&["TIME"]).items()[0].text().parse().unwrap();
            let year = 365 * 86_400;
            // Five sub-windows a year: at most one cell more than that, each older than the next.
            let newest = now * 5 / year;
            let with_cells = |slots: u8, newest: u64, behind: &[u64]| {
                let head = [&[1], good[1..9].as_ref(), &[slots], &(newest as f64).to_le_bytes()].concat();
                let cell = |behind: &u64| [(newest - behind) as u8, 1, 0, 0, 0];
                [head, behind.iter().flat_map(cell).collect()].concat()
            };
            for (behind, read) in [
                (&[5, 4, 3, 2, 1, 0][..], None),
                (&[6, 5, 4, 3, 2, 1, 0], Some(StoreErrorKind::Corrupt)),
                (&[1, 1], Some(StoreErrorKind::Corrupt)),
                (&[0, 1], Some(StoreErrorKind::Corrupt)),
            ] {
                assert_eq!(state.read(&with_cells(5, newest, behind)).await, read, "cells {behind:?}");
            }
            let oldest = with_cells(255, now * 255 / year, &[255, 0]);
            assert_eq!(state.read(&oldest).await, None, "the oldest cell that a byte can tell from the newest");
            // Other sub-windows of the same window are converted.
            assert_eq!(state.read(&with_cells(1, now / year, &[0])).await, None);
            assert_eq!(limiter.peek(state.check()).await.unwrap().binding().remaining(), 3);
        }
        let version = |version: u8| [&[version], &good[1..]].concat();
        assert_eq!(state.read(&version(3)).await, Some(StoreErrorKind::NewerFormat), "{algorithm}");
        // Units of it are held, but nothing says how many.
        assert_eq!(state.read(&version(2)).await, Some(StoreErrorKind::Corrupt), "{algorithm}");
        assert_eq!(state.read(&version(0)).await, Some(StoreErrorKind::Corrupt), "{algorithm}");
        let longer = [good.as_slice(), &[0]].concat();
        for wrong in [&good[..good.len() - 1], &longer, &good[..17], &good[..1], &[]] {
            assert_eq!(state.read(wrong).await, Some(StoreErrorKind::Corrupt), "{algorithm}: {} bytes", wrong.len());
            if let [_, rest @ ..] = wrong {
                let newer = state.read(&[&[9], rest].concat()).await;
                assert_eq!(newer, Some(StoreErrorKind::NewerFormat), "{algorithm}: {} bytes", wrong.len());
            }
        }
    }
}

/// The oldest and the newest member of a log are checked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_of_a_log_are_checked() {
    let server = Server::redis().start();
    let limiter = patient(&server.url()).await;
    let key = Key::new("p", "s").unwrap().encode("tallygate", Algorithm::SlidingLog.kind());
    let state = State { server: &server, limiter: &limiter, limit: limit("5/day sliding_log"), key };
    let add = |score: &str, member: &[u8]| {
        server.command(&[b"ZADD".as_slice(), state.key.as_bytes(), score.as_bytes(), member]).ok();
    };
    for (score, calls) in [("0", 1), ("0", 2), ("9e15", 1), ("9e15", 2)] {
        for (length, last, kind) in [
            (23, 1, StoreErrorKind::Corrupt),
            (25, 1, StoreErrorKind::Corrupt),
            (24, 0, StoreErrorKind::Corrupt),
            (24, 2, StoreErrorKind::Corrupt),
            (24, 3, StoreErrorKind::NewerFormat),
            (25, 3, StoreErrorKind::NewerFormat),
        ] {
            // Only the newest member tells the version.
            if score == "0" && length == 24 {
                continue;
            }
            limiter.reset(state.check()).await.unwrap();
            for _ in 0..calls {
                assert!(limiter.check(state.check().cost(units(1))).await.unwrap().allowed());
            }
            // Valid, but for its length or version.
            let mut member = vec![0; length];
            member[22] = 1;
            member[23.min(length - 1)] = 1;
            member[length - 1] = last;
            add(score, &member);
            let expected = if score == "0" { StoreErrorKind::Corrupt } else { kind };
            assert_eq!(state.peek().await, Some(expected), "{length} bytes, version {last}, at {score}");
        }
    }
}

/// The newest sum is below the end of the cycle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_running_sum_of_a_log_is_checked() {
    let server = Server::redis().start();
    let limiter = patient(&server.url()).await;
    let key = Key::new("p", "s").unwrap().encode("tallygate", Algorithm::SlidingLog.kind());
    let state = State { server: &server, limiter: &limiter, limit: limit("5/day sliding_log"), key };
    for (before, kind) in [(999_999_999_999_999_u64, None), (1_000_000_000_000_000, Some(StoreErrorKind::Corrupt))] {
        limiter.reset(state.check()).await.unwrap();
        assert!(limiter.check(state.check()).await.unwrap().allowed());
        let reply = server.command(&["ZRANGE", &state.key, "0", "0", "WITHSCORES"]);
        let [Reply::Bulk(member), score] = reply.items() else { panic!("{reply:?}") };
        let changed = [&member[..7], &before.to_be_bytes()[1..], &member[14..]].concat();
        server.command(&[b"ZREM".as_slice(), state.key.as_bytes(), member]).ok();
        server.command(&[b"ZADD".as_slice(), state.key.as_bytes(), score.text().as_bytes(), &changed]).ok();
        assert_eq!(state.peek().await, kind, "{before}");
    }
}
