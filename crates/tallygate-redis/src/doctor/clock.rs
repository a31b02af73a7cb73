//! The clocks of the servers: against this machine, against each other, and against themselves.

use redis::Value;
use tallygate::clock::Clock;
use tokio::time::Instant;

use super::facts::{items, text};
use super::finding::{DoctorCheck, Finding};

/// A clock of a server this far from that of this machine is worth a warning, in microseconds.
const OFF: i64 = 1_000_000;
/// Two servers this far apart: a failover from one to the other is a jump.
const APART: i64 = 100_000;
const FAR_APART: i64 = 1_000_000;
/// Smaller steps are those of NTP, and of the `TIME` of Valkey.
const JUMP: i64 = 100_000;

/// One reading of a server's clock. Durations in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    /// The middle of the round trip.
    at: Instant,
    server: i64,
    /// The server's clock minus that of this machine.
    pub(super) offset: i64,
    /// Half the round trip: the offset may be wrong by so much.
    pub(super) uncertainty: i64,
}

/// A reading that has begun.
pub(super) struct Begun {
    wall: i64,
    at: Instant,
}

impl Begun {
    pub(super) fn new(clock: &Clock) -> Self {
        Self { wall: i64::try_from(clock.now().as_micros()).unwrap_or(i64::MAX), at: Instant::now() }
    }

    /// `None` if the reply is not that of `TIME`.
    pub(super) fn end(self, reply: &Value) -> Option<Reading> {
        let half = self.at.elapsed() / 2;
        let [seconds, micros] = items(reply) else { return None };
        let seconds: i64 = text(seconds)?.parse().ok()?;
        let micros: i64 = text(micros)?.parse().ok()?;
        let server = seconds.checked_mul(1_000_000)?.checked_add(micros)?;
        let uncertainty = i64::try_from(half.as_micros()).ok()?;
        let offset = server.checked_sub(self.wall.checked_add(uncertainty)?)?;
        Some(Reading { at: self.at + half, server, offset, uncertainty })
    }
}

impl Reading {
    /// How far the server's clock has moved beyond the time that has passed since `earlier`, if that is a jump.
    pub(super) fn jump_since(&self, earlier: &Self) -> Option<i64> {
        let passed = i64::try_from(self.at.saturating_duration_since(earlier.at).as_micros()).ok()?;
        let jump = self.server.checked_sub(earlier.server)?.checked_sub(passed)?;
        (jump.saturating_abs() > JUMP + self.uncertainty + earlier.uncertainty).then_some(jump)
    }
}

/// The reading with the shortest round trip.
pub(super) fn best(readings: &[Reading]) -> Option<Reading> {
    readings.iter().min_by_key(|reading| reading.uncertainty).copied()
}

/// The first jump in a series.
pub(super) fn jump(readings: &[Reading]) -> Option<i64> {
    readings.windows(2).find_map(|pair| pair[1].jump_since(&pair[0]))
}

pub(super) fn judge(reading: &Reading) -> Finding {
    let Reading { offset, uncertainty, .. } = reading;
    let found = format!("{} against this machine, ± {}", signed(*offset), seconds(*uncertainty));
    if offset.saturating_abs().saturating_sub(*uncertainty) <= OFF {
        return Finding::ok(DoctorCheck::Clock, found);
    }
    Finding::warning(DoctorCheck::Clock, found)
        .means(8, "limits go by the server's clock, and on_error: local and the logs by this machine's: windows of the two do not agree")
        .fix("run NTP (chronyd, systemd-timesyncd) on both machines")
}

pub(super) fn judge_jump(jump: Option<i64>) -> Finding {
    let check = DoctorCheck::ClockJump;
    match jump {
        None => Finding::ok(check, "steady while it was watched"),
        Some(jump) => Finding::warning(check, format!("the clock of the server jumped by {}", signed(jump)))
            .means(
                8,
                "forward, limits refill by that much at once; back, they stand still until the clock has caught up",
            )
            .fix("let NTP slew the clock instead of stepping it, and do not suspend the machine"),
    }
}

/// The clocks of all servers that may be master, each with its best reading.
pub(super) fn judge_spread(readings: &[(String, Reading)]) -> Option<Finding> {
    let check = DoctorCheck::ClockSpread;
    let (slow, early) = readings.iter().min_by_key(|(_, reading)| reading.offset)?;
    let (fast, late) = readings.iter().max_by_key(|(_, reading)| reading.offset)?;
    if readings.len() < 2 {
        return None;
    }
    let (apart, unsure) = (late.offset.saturating_sub(early.offset), late.uncertainty + early.uncertainty);
    let found = format!("{} apart at most, ± {}", seconds(apart), seconds(unsure));
    let sure = apart.saturating_sub(unsure);
    if sure <= APART {
        return Some(Finding::ok(check, format!("{} servers, {found}", readings.len())));
    }
    let found = format!("{fast} is ahead of {slow}: {found}");
    let finding = if sure > FAR_APART { Finding::problem(check, found) } else { Finding::warning(check, found) };
    Some(
        finding
            .means(
                8,
                "a failover between them is a jump of the clock: limits refill by that much, or stand still that long",
            )
            .fix("run NTP (chronyd, systemd-timesyncd) on every machine of the store"),
    )
}

fn signed(micros: i64) -> String {
    format!("{}{}", if micros < 0 { "-" } else { "+" }, seconds(micros))
}

/// `0.035 ms`, `3.500 s`.
pub(super) fn seconds(micros: i64) -> String {
    match micros.unsigned_abs() {
        micros @ 0..1_000_000 => format!("{}.{:03} ms", micros / 1000, micros % 1000),
        micros => format!("{}.{:03} s", micros / 1_000_000, micros % 1_000_000 / 1000),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::finding::Severity::{Ok, Problem, Warning};
    use super::*;

    fn reading(server: i64, offset: i64, uncertainty: i64) -> Reading {
        Reading { at: Instant::now(), server, offset, uncertainty }
    }

    #[test]
    fn offsets_within_the_uncertainty_are_no_finding() {
        assert_eq!(judge(&reading(0, 999_999, 0)).severity, Ok);
        assert_eq!(judge(&reading(0, 5_000_000, 4_500_000)).severity, Ok);
        assert_eq!(judge(&reading(0, -1_100_000, 10)).severity, Warning);
        assert_eq!(judge(&reading(0, i64::MIN, 10)).severity, Warning);
        let spread = |a, b, unsure| {
            let servers = [("a".to_owned(), reading(0, a, unsure)), ("b".to_owned(), reading(0, b, unsure))];
            judge_spread(&servers).unwrap().severity
        };
        assert_eq!([spread(0, 90_000, 0), spread(0, 150_000, 0), spread(0, -2_000_000, 5)], [Ok, Warning, Problem]);
        assert_eq!(spread(0, 150_000, 30_000), Ok);
        assert!(judge_spread(&[("a".to_owned(), reading(0, 0, 0))]).is_none());
    }

    #[test]
    fn a_jump_is_what_the_monotonic_clock_did_not_see() {
        let first = reading(1_000_000, 0, 10);
        let later = |passed, server| Reading { at: first.at + Duration::from_micros(passed), ..reading(server, 0, 10) };
        assert_eq!(later(500_000, 1_500_000).jump_since(&first), None);
        assert_eq!(later(500_000, 500_000).jump_since(&first), Some(-1_000_000));
        assert_eq!(jump(&[first, later(500_000, 1_500_000), later(600_000, 9_600_000)]), Some(8_000_000));
        assert_eq!(later(1, i64::MIN).jump_since(&first), None, "nonsense is no finding");
    }

    #[test]
    fn nonsense_from_the_server_is_no_reading() {
        let (clock, bulk) = (Clock::system(), |text: &str| Value::BulkString(text.as_bytes().to_vec()));
        for reply in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![bulk("1"), bulk("x")]),
            Value::Array(vec![bulk("9223372036854775807"), bulk("1")]),
            Value::Array(vec![bulk("1"), bulk("1"), bulk("1")]),
        ] {
            assert!(Begun::new(&clock).end(&reply).is_none(), "{reply:?}");
        }
        assert!(Begun::new(&clock).end(&Value::Array(vec![bulk("1"), bulk("-5")])).is_some());
    }
}
