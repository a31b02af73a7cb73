//! The cap on requests under way.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Requests under way.
#[derive(Debug)]
pub(super) struct InFlight {
    max: usize,
    now: AtomicUsize,
}

/// One request under way.
#[derive(Debug)]
pub(super) struct InFlightGuard<'a>(&'a InFlight);

impl InFlight {
    pub(super) fn new(max: usize) -> Self {
        Self { max, now: AtomicUsize::new(0) }
    }

    /// `None` when there are too many.
    pub(super) fn enter(&self) -> Option<InFlightGuard<'_>> {
        let guard = InFlightGuard(self);
        // Dropping the guard takes back what did not fit.
        (self.now.fetch_add(1, Relaxed) < self.max).then_some(guard)
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_request_leaves_the_count_as_it_was() {
        let in_flight = InFlight::new(1);
        let held = in_flight.enter().unwrap();
        assert!(in_flight.enter().is_none());
        assert!(in_flight.enter().is_none());
        drop(held);
        assert!(in_flight.enter().is_some());
    }
}
