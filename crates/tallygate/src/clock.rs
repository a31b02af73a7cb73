//! The clock, and instants as integer microseconds since 1970.
#![expect(clippy::disallowed_methods, reason = "the only place that reads the time")]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// An instant: whole microseconds since the Unix epoch.
///
/// Microseconds stay exact in a double until the year 2112, plus a century of waiting. That lets the Lua twins compute
/// with the same numbers. Nanoseconds would not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Creates the instant `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since the Unix epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// The clock of a store.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System(Arc<SystemTicks>),
    Monotonic(Arc<SystemTicks>),
    Wall,
    Manual(ManualClock),
}

impl Clock {
    /// The wall clock of the machine.
    pub fn system() -> Self {
        Self(Source::System(Arc::new(SystemTicks::start())))
    }

    /// The time since this process began to count, on a clock that is never set. For spans within the process.
    pub fn monotonic() -> Self {
        Self(Source::Monotonic(Arc::new(SystemTicks::start())))
    }

    /// The wall clock of the machine, read from the system each time. [`system`](Self::system) reads it faster, once it has measured
    /// the processor's counter, which takes milliseconds.
    pub fn wall() -> Self {
        Self(Source::Wall)
    }

    /// Whether the clock advances on its own. A manual clock does not.
    #[inline]
    pub(crate) fn runs(&self) -> bool {
        !matches!(self.0, Source::Manual(_))
    }

    /// The current instant.
    #[inline(always)]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System(ticks) => ticks.now(wall_micros),
            _ => self.unusual_now(),
        }
    }

    fn unusual_now(&self) -> Timestamp {
        match &self.0 {
            Source::System(ticks) => ticks.now(wall_micros),
            Source::Monotonic(ticks) => Timestamp(ticks.counted()),
            Source::Wall => Timestamp(wall_micros()),
            Source::Manual(manual) => manual.now(),
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl From<ManualClock> for Clock {
    fn from(manual: ManualClock) -> Self {
        Self(Source::Manual(manual))
    }
}

/// A manual clock for tests: it stands still until moved. Clones share the same time. By default it stands at the Unix epoch.
#[derive(Debug, Clone, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Creates a clock that stands at `start`.
    pub fn new(start: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(start.0)))
    }

    /// The current instant.
    pub fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let micros = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.0.fetch_add(micros, Ordering::SeqCst);
    }

    /// Sets the clock to any instant, including an earlier one.
    pub fn set(&self, to: Timestamp) {
        self.0.store(to.0, Ordering::SeqCst);
    }
}

/// The wall clock, read through the processor's counter and synchronised with the system clock once a second.
#[derive(Debug)]
struct SystemTicks {
    counter: quanta::Clock,
    start: u64,
    /// Wall time minus counted time, in microseconds.
    offset: AtomicU64,
    synced_at: AtomicU64,
}

impl SystemTicks {
    const SYNC_EVERY: u64 = 1_000_000;

    fn start() -> Self {
        Self::of(quanta::Clock::new(), wall_micros)
    }

    fn of(counter: quanta::Clock, wall: impl Fn() -> u64) -> Self {
        let start = counter.raw();
        let ticks = Self { counter, start, offset: AtomicU64::new(wall()), synced_at: AtomicU64::default() };
        ticks.sync(wall);
        ticks
    }

    #[inline]
    fn now(&self, wall: impl Fn() -> u64) -> Timestamp {
        let counted = self.counted();
        if counted.saturating_sub(self.synced_at.load(Ordering::Relaxed)) >= Self::SYNC_EVERY {
            self.sync(wall);
        }
        Timestamp(counted + self.offset.load(Ordering::Relaxed))
    }

    #[inline]
    fn counted(&self) -> u64 {
        self.counter.delta_as_nanos(self.start, self.counter.raw()) / 1000
    }

    /// Two clocks can be compared only if nothing ran between the two readings.
    #[cold]
    fn sync(&self, wall: impl Fn() -> u64) {
        const AT_ONCE: u64 = 100;
        for _ in 0..5 {
            let before = self.counted();
            let micros = wall();
            let counted = self.counted();
            self.synced_at.store(counted, Ordering::Relaxed);
            if counted - before <= AT_ONCE {
                self.offset.store(micros.saturating_sub(counted), Ordering::Relaxed);
                return;
            }
        }
    }
}

fn wall_micros() -> u64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const WALL: u64 = 1_700_000_000_000_000;

    /// A wall clock that stands still. A reading takes 100 microseconds of the counter, a slow one 101.
    struct Wall {
        counter: Arc<quanta::Mock>,
        micros: Cell<u64>,
        slow: Cell<u64>,
        readings: Cell<u64>,
    }

    impl Wall {
        fn new() -> (Self, SystemTicks) {
            let (clock, counter) = quanta::Clock::mock();
            let wall = Self { counter, micros: Cell::new(WALL), slow: Cell::default(), readings: Cell::default() };
            let ticks = SystemTicks::of(clock, || wall.read());
            (wall, ticks)
        }

        fn read(&self) -> u64 {
            let slow = self.slow.get().min(1);
            self.slow.set(self.slow.get() - slow);
            self.readings.set(self.readings.get() + 1);
            self.pass(100 + slow);
            self.micros.get()
        }

        fn pass(&self, micros: u64) {
            self.counter.increment(Duration::from_micros(micros));
        }
    }

    #[test]
    fn the_wall_clock_is_read_once_a_second() {
        let (wall, ticks) = Wall::new();
        let now = || ticks.now(|| wall.read()).as_micros();
        assert_eq!((now(), wall.readings.get()), (WALL, 2));
        wall.micros.set(2 * WALL);
        wall.pass(999_999);
        assert_eq!((now(), wall.readings.get()), (WALL + 999_999, 2));
        wall.pass(1);
        // The counter was read before the wall clock.
        assert_eq!((now(), wall.readings.get()), (2 * WALL - 100, 3));
        assert_eq!((now(), wall.readings.get()), (2 * WALL, 3));
    }

    #[test]
    fn a_slow_reading_is_repeated_and_the_fifth_is_the_last() {
        for slow in 0..7 {
            let (wall, ticks) = Wall::new();
            let now = || ticks.now(|| wall.read()).as_micros();
            wall.micros.set(2 * WALL);
            wall.slow.set(slow);
            wall.pass(1_000_000);
            now();
            // Without a quick reading the offset stays, and so does the time of the next attempt.
            let (readings, expected) = if slow < 5 { (slow + 1, 2 * WALL) } else { (5, WALL + 1_000_000 + 5 * 101) };
            assert_eq!((now(), wall.readings.get() - 2), (expected, readings), "{slow}");
        }
    }

    #[test]
    fn the_system_clock_is_the_wall_clock() {
        let clock = Clock::system();
        // Long enough for two synchronisations.
        for _ in 0..7 {
            let (before, now, after) = (wall_micros(), clock.now().as_micros(), wall_micros());
            assert!(now + 1000 >= before && now <= after + 1000, "{before} {now} {after}");
            std::thread::sleep(Duration::from_millis(350));
        }
    }

    #[test]
    fn the_wall_clock_is_read_each_time() {
        let (before, now, after) = (wall_micros(), Clock::wall().now().as_micros(), wall_micros());
        assert!((before..=after).contains(&now) && Clock::wall().runs());
    }

    #[test]
    fn clones_of_a_manual_clock_move_together() {
        let clock = ManualClock::new(Timestamp::from_micros(5));
        let other = clock.clone();
        other.advance(Duration::from_micros(7));
        assert_eq!(clock.now(), Timestamp::from_micros(12));
        assert_eq!(clock.now().to_string(), "0.000012");
    }
}
