//! Limits by calendar: instances whose clocks and time-zone databases differ, on one server.

use std::time::Duration;

use tallygate::call::{Call, UpTo, Verb};
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::limit::{Calendar, Period};
use tallygate::policy::Mode;
use tallygate::{Check, Decision, Key, Limit, Limiter, MemoryStore, Status};
use tallygate_redis::RedisStore;
use tallygate_testkit::wait::PATIENCE;
use tallygate_testkit::{Cluster, Flavour, Server};
use tokio::task::JoinSet;

use crate::support::{RedisLimiter, limit, patient, receipt, units};

const HOUR: i64 = 3_600_000_000;
const DAY: i64 = 24 * HOUR;
/// 2027-01-01, UTC.
const NEW_YEAR: i64 = 1_798_761_600_000_000;

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(u64::try_from(micros).unwrap())
}

/// An instance whose clock is ahead of the server's, or behind it.
async fn instance(url: &str, clock: &ManualClock, ahead: i64) -> (RedisLimiter, Ahead) {
    let here = ManualClock::new(Timestamp::from_micros(clock.now().as_micros().saturating_add_signed(ahead)));
    let store = RedisStore::builder(url).deadline(PATIENCE).manual_clock(clock.clone()).client_clock(here.clone());
    (Limiter::new(store.connect().await.unwrap()), Ahead { here, ahead })
}

/// The clock of an instance.
struct Ahead {
    here: ManualClock,
    ahead: i64,
}

/// Sets the clock of the server, and those of the instances with it.
fn set(clock: &ManualClock, instances: &[&Ahead], now: i64) {
    clock.set(at(now));
    instances.iter().for_each(|instance| instance.here.set(at(now + instance.ahead)));
}

fn check<'a>(subject: &'a str, limit: &'a Limit) -> Check<'a> {
    Check::new(Key::new("calendar", subject).unwrap(), limit)
}

/// How many scripts a server has run. It does not count those that it did not have.
fn runs(server: &Server) -> u64 {
    let said = server.command(&["INFO", "commandstats"]).text();
    let of = |name: &str| {
        let figures = said.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:")));
        let figure = |name: &str| {
            let figure = figures?.split(',').find_map(|figure| figure.strip_prefix(name)?.strip_prefix('='));
            figure?.parse::<u64>().ok()
        };
        figure("calls").unwrap_or(0) - figure("failed_calls").unwrap_or(0)
    };
    of("evalsha") + of("eval")
}

/// A year and a half in steps of hours, over every change of the clocks. The answers are those of one store with the right time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_with_skewed_clocks_agree_on_every_window() {
    let server = Server::redis().start();
    let clock = ManualClock::new(at(NEW_YEAR));
    let memory = Limiter::new(MemoryStore::builder().clock(clock.clone()).without_sweep().build());
    // Within the windows that are sent, and far beyond them.
    let (right, none) = instance(&server.url(), &clock, 0).await;
    let (late, behind) = instance(&server.url(), &clock, -2 * DAY - 5 * HOUR).await;
    let (wrong, years) = instance(&server.url(), &clock, 10 * 365 * DAY).await;
    let clocks = [&none, &behind, &years];
    let limits = [
        "7/day in Europe/Berlin",
        "30/week in America/New_York from sunday",
        "60/month in Australia/Lord_Howe from day 31",
        "999/year in Asia/Kathmandu from february 29",
    ];
    let limits = limits.map(limit);
    let before = runs(&server);
    let mut calls = 0;
    let mut now = NEW_YEAR;
    while now < NEW_YEAR + 500 * DAY {
        set(&clock, &clocks, now);
        for limit in &limits {
            let subject = limit.to_string();
            for limiter in [&right, &late, &wrong] {
                let expected = memory.check_now(check(&subject, limit)).unwrap();
                let decision = limiter.check(check(&subject, limit)).await.unwrap();
                assert_eq!(decision.binding(), expected.binding(), "{limit} at {now}");
                let end = limit.calendar().unwrap().window_at(at(now)).1;
                assert_eq!(decision.binding().reset_at(decision.decided_at().unwrap()), Some(end), "{limit} at {now}");
                calls += 1;
            }
        }
        // Every hour around the changes of the clocks, and else a prime number of them, so that all hours occur.
        let day = (now - NEW_YEAR) / DAY;
        now += if [86, 87, 303, 304].contains(&day) { HOUR } else { 53 * HOUR };
    }
    // The one that is years ahead was asked once more, and has then known the difference.
    assert_eq!(runs(&server) - before, calls + 1);
}

/// One database has Berlin on winter time for ever, the other has daylight saving time from 28 March on. The window of the instance that was first
/// stays until it ends, for both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_with_different_databases_count_in_one_window() {
    let server = Server::redis().start();
    let clock = ManualClock::new(at(NEW_YEAR));
    let (limiter, _) = instance(&server.url(), &clock, 0).await;
    for (period, least, most) in [(Period::Day, 41, 41 + 33), (Period::Month { day: 31 }, 2, 2 + 1)] {
        let known = Calendar::new(period, "Europe/Berlin").unwrap();
        let winter = known.with_rules("CET-1").unwrap();
        let databases = [known, winter].map(|calendar| Limit::in_calendar(5, calendar).build().unwrap());
        let subject = databases[0].to_string();
        let (mut end_of_window, mut admitted, mut windows) = (None, 0, 0);
        let mut now = NEW_YEAR + 80 * DAY;
        while now < NEW_YEAR + 120 * DAY {
            clock.set(at(now));
            // The one or the other is first after midnight.
            let first = usize::try_from(now / DAY % 2).unwrap();
            for limit in [&databases[first], &databases[1 - first]] {
                let decision = limiter.check(check(&subject, limit)).await.unwrap();
                let status = decision.binding();
                let end = status.reset_at(at(now)).unwrap();
                if end_of_window != Some(end) {
                    assert!(end_of_window.is_none_or(|end| end <= at(now)), "{subject} at {now}: it had not ended");
                    (end_of_window, admitted) = (Some(end), 0);
                    windows += 1;
                }
                admitted += u64::from(decision.allowed());
                assert!(admitted <= 5 && status.remaining() == 5 - admitted, "{subject} at {now}: {status:?}");
            }
            now += HOUR / 2;
        }
        // Between two instants about which they disagree, one more can begin.
        assert!((least..=most).contains(&windows), "{subject}: {windows} windows");
        assert!(period != Period::Day || windows > least, "{subject}: they have never disagreed");
    }
}

/// The answers to every kind of call of an instance whose clock is ten years ahead, and those of one whose clock is right. Each has its own
/// server, so that what was charged twice would show.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_asked_again_is_charged_once() {
    let clock = ManualClock::new(at(NEW_YEAR));
    let mut told = Vec::new();
    for ahead in [0, 10 * 365 * DAY, -20 * 365 * DAY] {
        let server = Server::redis().start();
        let mut story = Vec::new();
        // Each call is the first of its instance, which knows nothing of the clocks yet.
        for step in 0..11 {
            clock.set(at(NEW_YEAR + step * HOUR));
            let (limiter, _) = instance(&server.url(), &clock, ahead).await;
            let before = runs(&server);
            let decision = ask(&limiter, step).await;
            let again = runs(&server) - before - 1;
            assert_eq!(again, u64::from(ahead != 0 && step != 10), "{step}: asked {again} times more than once");
            story.push((decision.allowed(), decision.granted(), decision.statuses().to_vec()));
        }
        told.push(story);
    }
    assert_eq!(told[1], told[0]);
    assert_eq!(told[2], told[0]);
    let units: Vec<u64> = told[0].iter().flat_map(|(_, _, statuses)| statuses.iter().map(Status::units)).collect();
    assert!(units.iter().sum::<u64>() > 20, "{units:?}");
}

/// One call of each kind.
async fn ask(limiter: &RedisLimiter, step: i64) -> Decision {
    let (day, month, minute) = (limit("9/day in Asia/Tokyo"), limit("20/month in UTC from day 31"), limit("9/min"));
    let key = |policy| Key::new(policy, "one").unwrap();
    let checks = [
        Check::new(key("minute"), &minute).cost(units(2)),
        Check::new(key("day"), &day).cost(units(2)),
        Check::new(key("month"), &month).cost(units(2)),
    ];
    let [plain, daily, monthly] = checks;
    match step {
        // A shadow alone needs the windows of its calendar, and the others must not be charged before it has them.
        0 => limiter.check_all(&[plain, daily.with_mode(Mode::Shadow)]).await.unwrap(),
        1 => limiter.check_all(&checks).await.unwrap(),
        2 => limiter
            .check_up_to(&[plain, monthly.cost(units(1)).with_mode(Mode::Quota)], UpTo::new(units(6)))
            .await
            .unwrap(),
        3 => limiter.peek_all(&checks).await.unwrap(),
        4 => limiter.check(monthly).await.unwrap(),
        5 => limiter.check(daily.cost(units(5))).await.unwrap(),
        6 => limiter.check(daily.cost(units(9))).await.unwrap(),
        7 => {
            let call = [plain, daily, monthly].map(|check| check.with_charged_at(Some(at(NEW_YEAR + HOUR))));
            Call::new(Verb::Refund, &call).unwrap().ask(limiter.store().as_ref()).await.unwrap()
        }
        8 => Call::new(Verb::Reset, &[daily]).unwrap().ask(limiter.store().as_ref()).await.unwrap(),
        9 => limiter.check_all(&checks).await.unwrap(),
        _ => limiter.check(plain).await.unwrap(),
    }
}

/// Calls about one key that share runs, the first of an instance whose clock is wrong: each is decided once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_share_a_run_are_asked_again_together() {
    let server = Server::redis().start();
    let clock = ManualClock::new(at(NEW_YEAR));
    let (limiter, _) = instance(&server.url(), &clock, 3 * 365 * DAY).await;
    let mut calls = JoinSet::new();
    for _ in 0..200 {
        let limiter = limiter.clone();
        calls.spawn(async move {
            let limit = limit("150/month in Europe/Berlin");
            limiter.check(check("hot", &limit)).await.unwrap().allowed()
        });
    }
    let allowed = calls.join_all().await.into_iter().filter(|allowed| *allowed).count();
    assert_eq!(allowed, 150);
    let limit = limit("150/month in Europe/Berlin");
    assert_eq!(limiter.peek(check("hot", &limit)).await.unwrap().binding().remaining(), 0);
}

/// Over several slots of a cluster each slot is asked again by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_over_several_slots_is_asked_again_slot_by_slot() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let clock = ManualClock::new(at(NEW_YEAR));
    let limit = limit("5/day in Europe/Berlin");
    let subjects = ["a", "b", "c", "d"];
    for (round, ahead) in [0, 3 * 365 * DAY].into_iter().enumerate() {
        let (limiter, _) = instance(&cluster.url(), &clock, ahead).await;
        let checks = subjects.map(|subject| check(subject, &limit).cost(units(2)));
        let decision = limiter.check_all(&checks).await.unwrap();
        assert!(decision.allowed() && decision.split(), "{decision:?}");
        let left: Vec<u64> = decision.statuses().iter().map(Status::remaining).collect();
        assert_eq!(left, [3 - 2 * round as u64; 4]);
        let receipts = checks.map(|check| receipt(check.cost(units(1)), decision.decided_at()));
        if ahead != 0 {
            let (limiter, _) = instance(&cluster.url(), &clock, ahead).await;
            assert_eq!(limiter.refund(&receipts).await.unwrap(), [1; 4]);
        }
    }
}

/// The clocks of a real server and of this process: the windows that are sent allow for days, and the server's are used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_of_a_real_server_decides() {
    let server = Server::redis().skewed_clock().start();
    let limiter = patient(&server.url()).await;
    let limit = limit("100/day in Asia/Kathmandu");
    for days in [0, 2, -2, 400, -400] {
        server.skew(days * DAY);
        let decision = limiter.check(check(&format!("{days}"), &limit)).await.unwrap();
        let decided_at = decision.decided_at().unwrap();
        let (start, end) = limit.calendar().unwrap().window_at(decided_at);
        assert_eq!(decision.binding().reset_at(decided_at), Some(end));
        assert!(start <= decided_at && decision.binding().reset_after() <= Duration::from_secs(86_400));
        let here = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap();
        let there = i64::try_from(decided_at.as_micros()).unwrap();
        assert!((there - here - days * DAY).abs() < HOUR, "{days}: the server's clock was not moved");
    }
}
