//! Says that the embedded store is full, now and then.

use tallygate::decision::Source;
use tallygate::{Check, Key, Limit, Limiter, MemoryStore};

use crate::decision_event::DecisionEvent;

#[derive(Debug)]
pub(crate) struct FullStore {
    log: Limiter<MemoryStore>,
    limit: Limit,
}

impl Default for FullStore {
    fn default() -> Self {
        let log = Limiter::new(MemoryStore::builder().capacity(1).build());
        Self { log, limit: "1/min".parse().expect("a limit") }
    }
}

impl FullStore {
    pub(crate) fn observe(&self, event: &DecisionEvent<'_>) {
        let rulings = event.asked.and_then(|asked| asked.verdict()).map_or(&[][..], |verdict| verdict.rulings());
        if rulings.iter().any(|ruling| ruling.source() == Source::Overflow) {
            self.warn();
        }
    }

    /// A key or a counter had no room.
    pub(crate) fn warn(&self) {
        let key = Key::new("log", "full").expect("both are short");
        if self.log.check_now(Check::new(key, &self.limit)).is_ok_and(|decision| decision.allowed()) {
            tracing::warn!(
                "the embedded store is full: new callers share counts, and new counters are refused; let counters expire \
                 (ttl_ms), delete those without a TTL, or use Redis or Valkey"
            );
        }
    }
}
