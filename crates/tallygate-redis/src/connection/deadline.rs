//! The deadline of a call.

use std::time::Duration;

use tokio::time::Instant;

/// The maximum wait, so that sums of instants cannot overflow.
const LONGEST: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// When the call began.
    pub(crate) began: Instant,
    /// Nothing is sent after this: too late for a reply, it would turn a known failure into an unknown one.
    pub(crate) send_by: Instant,
    pub(crate) answer_by: Instant,
}

impl Deadline {
    /// The last fifth of the time is reserved for the answer.
    pub(crate) fn after(patience: Duration) -> Self {
        let patience = patience.min(LONGEST);
        let began = Instant::now();
        let answer_by = began + patience;
        Self { began, send_by: answer_by - patience / 5, answer_by }
    }

    /// For commands that change nothing: they may be sent until the end.
    pub(crate) fn for_reading(patience: Duration) -> Self {
        let began = Instant::now();
        let answer_by = began + patience.min(LONGEST);
        Self { began, send_by: answer_by, answer_by }
    }

    /// For one plain command of an operator.
    pub(crate) fn for_command() -> Self {
        Self::for_reading(Duration::from_secs(5))
    }

    pub(crate) fn until(instant: std::time::Instant) -> Self {
        Self::after(Instant::from_std(instant).saturating_duration_since(Instant::now()))
    }

    pub(crate) fn earlier(self, other: Self) -> Self {
        let began = self.began.min(other.began);
        Self { began, send_by: self.send_by.min(other.send_by), answer_by: self.answer_by.min(other.answer_by) }
    }

    /// All the time that the call has.
    pub(crate) fn all(self) -> Duration {
        self.answer_by - self.began
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_fifth_is_for_the_answer() {
        let deadline = Deadline::after(Duration::from_millis(50));
        assert_eq!(deadline.answer_by - deadline.send_by, Duration::from_millis(10));
        let reading = Deadline::for_reading(Duration::MAX);
        assert_eq!(reading.send_by, reading.answer_by);
    }

    #[test]
    fn an_instant_in_the_past_is_now_and_the_earlier_of_two_counts() {
        let start = Instant::now();
        let past = Deadline::until(start.into_std());
        assert_eq!(past.send_by, past.answer_by);
        assert_eq!(Deadline::after(Duration::MAX).earlier(past).answer_by, past.answer_by);
    }
}
