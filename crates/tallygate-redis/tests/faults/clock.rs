//! A server whose clock jumps: back, forward, and to and fro.

use std::time::{Duration, Instant};

use tallygate::{Algorithm, Check, Decision, Key, Limit};
use tallygate_testkit::Server;

use crate::support::{RedisLimiter, every_key_expires, flavours, patient, wall_micros};

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3600 * SECOND;
const AMOUNT: u64 = 10;
/// In seconds: far from both a step of one second and one of an hour.
const WINDOW: i64 = 1000;

/// A server with a movable clock, relative to a fixed position in the windows of the wall clock.
struct Rig {
    server: Server,
    limiter: RedisLimiter,
    /// The offset that puts the server's clock at the beginning of a window, up to the running time of the test.
    boundary: i64,
}

impl Rig {
    async fn start(server: Server) -> Self {
        let limiter = patient(&server.url()).await;
        let mut rig = Self { server, limiter, boundary: 0 };
        rig.anchor();
        rig
    }

    /// From now on positions are relative to the window that begins next.
    fn anchor(&mut self) {
        let now = i64::try_from(wall_micros()).unwrap();
        self.boundary = WINDOW * SECOND - now % (WINDOW * SECOND);
    }

    /// Sets the clock to this many microseconds after the beginning of a window.
    fn set(&self, micros: i64) {
        self.server.skew(self.boundary + micros);
    }

    async fn check(&self, limit: &Limit, subject: &str) -> Decision {
        let check = Check::new(Key::new(limit.algorithm().name(), subject).unwrap(), limit);
        self.limiter.check(check).await.unwrap()
    }

    /// How many of these calls are admitted.
    async fn admitted(&self, limit: &Limit, subject: &str, calls: u64) -> u64 {
        let mut admitted = 0;
        for _ in 0..calls {
            admitted += u64::from(self.check(limit, subject).await.allowed());
        }
        admitted
    }
}

fn limits() -> Vec<Limit> {
    let window = Duration::from_secs(WINDOW.unsigned_abs());
    let limit = |algorithm| Limit::builder(AMOUNT, window).algorithm(algorithm).build().unwrap();
    Algorithm::OVER_TIME.iter().copied().map(limit).collect()
}

/// A clock that steps back regains nothing and blocks nobody for longer than a refill; one far back is adopted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_back_regains_nothing_and_bounds_the_wait() {
    for flavour in flavours() {
        let rig = Rig::start(Server::of(flavour).skewed_clock().start()).await;
        for limit in limits() {
            for back in [SECOND, 500 * SECOND, HOUR] {
                let subject = format!("back {back}");
                let start = 700 * SECOND;
                rig.set(start);
                assert_eq!(rig.admitted(&limit, &subject, AMOUNT + 3).await, AMOUNT, "{limit}");
                rig.set(start - back);
                let denied = rig.check(&limit, &subject).await;
                let wait = denied.binding().retry_after().unwrap();
                assert!(!denied.allowed() && denied.binding().remaining() == 0, "{limit}: back by {back}");
                let full = limit.full_after();
                let held = Duration::from_micros(back.unsigned_abs());
                let most = if held <= full { full + held } else { full };
                assert!(wait <= most, "{limit}: back by {held:?} makes callers wait {wait:?}, {most:?} is the most");
                // The reported wait is still exact.
                rig.set(start - back + i64::try_from(wait.as_micros()).unwrap());
                assert!(rig.check(&limit, &subject).await.allowed(), "{limit}: denied after the wait of {wait:?}");
            }
        }
        every_key_expires(&rig.server);
    }
}

/// Each jump of more than a refill resets what was used, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jump_forward_admits_one_more_limit_at_most() {
    for flavour in flavours() {
        let rig = Rig::start(Server::of(flavour).skewed_clock().start()).await;
        for limit in limits() {
            for leap in 0..4 {
                rig.set(500 * SECOND + leap * HOUR);
                assert_eq!(rig.admitted(&limit, "ahead", AMOUNT + 3).await, AMOUNT, "{limit}: leap {leap}");
            }
        }
        every_key_expires(&rig.server);
    }
}

/// Two alternating clocks, as after repeated failovers: the later one counts, also around the edge of a window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_flaps_refills_nothing() {
    for flavour in flavours() {
        let mut rig = Rig::start(Server::of(flavour).skewed_clock().start()).await;
        for limit in limits() {
            // Within a window, across its edge from the later side, and from the earlier one; all within the time in
            // which a bucket regains one unit.
            for (name, one, other) in [("in", 500, 450), ("from after", 40, -40), ("from before", -40, 40)] {
                rig.anchor();
                rig.set(one * SECOND);
                let mut admitted = rig.admitted(&limit, name, AMOUNT + 3).await;
                for _ in 0..10 {
                    for at in [one, other] {
                        rig.set(at * SECOND);
                        admitted += rig.admitted(&limit, name, 4).await;
                    }
                }
                // Windows of the wall clock: the amount before the edge, and again after it.
                let twice = limit.algorithm() == Algorithm::FixedWindow && name == "from before";
                assert_eq!(admitted, if twice { 2 * AMOUNT } else { AMOUNT }, "{limit}, {name}");
            }
        }
        every_key_expires(&rig.server);
    }
}

/// The same while time passes: what is admitted is compared with real time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_flaps_does_not_run_faster() {
    const BURST: u64 = 20;
    let window = Duration::from_millis(200);
    let rig = Rig::start(Server::redis().skewed_clock().start()).await;
    for &algorithm in Algorithm::OVER_TIME {
        let limit = Limit::builder(BURST, window).algorithm(algorithm).build().unwrap();
        rig.set(0);
        let start = Instant::now();
        let mut admitted = 0;
        for flap in 0..100 {
            rig.set(if flap % 2 == 0 { 0 } else { -100_000 });
            admitted += rig.admitted(&limit, "flaps", 4).await;
        }
        let passed = start.elapsed();
        let windows = u64::try_from(passed.as_micros() / window.as_micros()).unwrap();
        let most = match algorithm {
            Algorithm::TokenBucket => {
                BURST + u64::try_from(passed.as_micros() * u128::from(BURST) / window.as_micros()).unwrap()
            }
            // A span of n whole windows touches n + 2 windows of the wall clock.
            Algorithm::FixedWindow | Algorithm::CalendarWindow | Algorithm::SlidingCounter => BURST * (windows + 2),
            _ => BURST * (windows + 1),
        };
        assert!(admitted <= most, "{limit}: {admitted} admitted in {passed:?}, {most} is the most");
        assert!(admitted >= BURST);
    }
    every_key_expires(&rig.server);
}
