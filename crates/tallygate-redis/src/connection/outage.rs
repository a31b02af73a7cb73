//! When a server that does not answer in time is down: it must be silent, or slow for long, while this process had the time to
//! see it.

use std::time::Duration;

/// How long no answer may come in time before only probes are sent, and how long nothing at all may come before that is an
/// outage. A flood can make any server late for a moment, and must not be able to declare it down.
const SILENT: Duration = Duration::from_millis(200);
/// How long a server that answers, but too late, is given. Meanwhile it is asked nothing but probes, so it is not our calls
/// that make it slow.
const SLOW: Duration = Duration::from_secs(5);
/// How late a timer of this process fires if it is short of CPU. What it sees then proves nothing: the server may be on the
/// same machine.
const STARVED: Duration = Duration::from_millis(5);

/// Whether something that should have taken `expected` was held up by this process.
pub(super) fn is_starved(took: Duration, expected: Duration) -> bool {
    took >= expected + STARVED
}

/// What was seen of a server while no answer came in time.
#[derive(Debug, Default)]
pub(super) struct Watch {
    late: Duration,
    late_without_pause: Duration,
    silent: Duration,
}

impl Watch {
    /// One look that took so long: whether this process was starved, and whether anything came from the server.
    pub(super) fn look(&mut self, took: Duration, starved: bool, heard: bool) {
        if heard {
            self.silent = Duration::ZERO;
        }
        if starved {
            self.late_without_pause = Duration::ZERO;
            return;
        }
        self.late += took;
        self.late_without_pause += took;
        if !heard {
            self.silent += took;
        }
    }

    /// Whether calls would only wait in vain.
    pub(super) fn is_late(&self) -> bool {
        self.late >= SILENT
    }

    /// Whether the server is at fault for certain.
    pub(super) fn is_outage(&self) -> bool {
        self.silent >= SILENT || self.late_without_pause >= SLOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(25);

    fn after(looks: u32, starved: impl Fn(u32) -> bool, heard: impl Fn(u32) -> bool) -> Watch {
        let mut watch = Watch::default();
        for look in 0..looks {
            watch.look(LOOK, starved(look), heard(look));
        }
        watch
    }

    #[test]
    fn a_silent_server_is_down_after_200_ms() {
        let watch = after(7, |_| false, |_| false);
        assert!(!watch.is_late() && !watch.is_outage());
        let watch = after(8, |_| false, |_| false);
        assert!(watch.is_late() && watch.is_outage());
    }

    #[test]
    fn a_slow_server_is_late_and_only_after_five_seconds_down() {
        let watch = after(199, |_| false, |_| true);
        assert!(watch.is_late() && !watch.is_outage());
        assert!(after(200, |_| false, |_| true).is_outage());
    }

    #[test]
    fn a_starved_process_does_not_judge() {
        assert!(!after(1000, |_| true, |_| false).is_late());
        // Now and then it has the time to look: enough to see silence, never enough to blame a server that answers.
        let now_and_then = |look: u32| !look.is_multiple_of(10);
        let watch = after(1000, now_and_then, |_| true);
        assert!(watch.is_late() && !watch.is_outage());
        assert!(after(100, now_and_then, |_| false).is_outage());
    }

    #[test]
    fn a_late_answer_ends_the_silence() {
        assert!(!after(30, |_| false, |look| look % 7 == 6).is_outage());
    }
}
