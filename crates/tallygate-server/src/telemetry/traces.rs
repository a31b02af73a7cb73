//! Which decisions are traced, and the queue to whoever sends them.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;

use super::{SampleRatio, TraceParent, wall_clock};
use crate::decision_event::{Api, CallOutcome, DecisionEvent};
use tallygate::Verb;

/// Traces decisions. Clones share one queue.
#[derive(Debug, Clone)]
pub struct Traces(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: mpsc::Sender<Span>,
    ratio: SampleRatio,
    ids: Ids,
    counts: Arc<Counts>,
}

/// What became of spans.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) exported: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) refused: AtomicU64,
}

/// One decision, as a collector learns of it.
#[derive(Debug, Clone)]
pub(super) struct Span {
    pub(super) trace_id: u128,
    pub(super) span_id: u64,
    pub(super) parent: Option<u64>,
    pub(super) ended_at: SystemTime,
    pub(super) took: Duration,
    pub(super) verb: Verb,
    pub(super) api: Api,
    pub(super) outcome: CallOutcome,
    /// `None` for ad hoc questions.
    pub(super) domain: Option<Box<str>>,
    pub(super) binding_policy: Option<Box<str>>,
}

impl Traces {
    pub(super) fn new(queue: mpsc::Sender<Span>, ratio: SampleRatio, counts: Arc<Counts>) -> Self {
        Self(Arc::new(Shared { queue, ratio, ids: Ids::random(), counts }))
    }

    /// Spans that the collector took.
    pub fn exported(&self) -> u64 {
        self.0.counts.exported.load(Relaxed)
    }

    /// Spans that were dropped because too many waited.
    pub fn dropped(&self) -> u64 {
        self.0.counts.dropped.load(Relaxed)
    }

    /// Spans that the collector did not take, or that it could not be given.
    pub fn refused(&self) -> u64 {
        self.0.counts.refused.load(Relaxed)
    }

    /// Queues a span of the decision if its trace is sampled: as the parent says, else by the ratio. Never waits.
    pub(super) fn record(&self, parent: Option<TraceParent>, event: &DecisionEvent<'_>) {
        let Some(asked) = event.asked else { return };
        let ids = &self.0.ids;
        let trace_id = match parent {
            Some(parent) if parent.sampled() => parent.trace_id,
            Some(_) => return,
            None => {
                let low = ids.next();
                if !self.0.ratio.takes(low) {
                    return;
                }
                u128::from(ids.next()) << 64 | u128::from(low)
            }
        };
        // A place first: under a flood of sampled calls nothing is made only to be thrown away.
        let Ok(place) = self.0.queue.try_reserve() else {
            self.0.counts.dropped.fetch_add(1, Relaxed);
            return;
        };
        place.send(Span {
            trace_id,
            span_id: ids.next(),
            parent: parent.map(|parent| parent.span_id),
            ended_at: wall_clock(),
            took: asked.took,
            verb: asked.question.verb,
            api: event.api,
            outcome: event.outcome,
            domain: asked.question.domain().map(|domain| shortened(domain).into()),
            binding_policy: asked.binding().map(|binding| binding.policy.into()),
        });
    }
}

/// Callers write the domain; a queue full of long ones must stay small.
fn shortened(domain: &str) -> &str {
    const MOST: usize = 256;
    let end = (0..=MOST.min(domain.len())).rev().find(|end| domain.is_char_boundary(*end)).unwrap_or(0);
    &domain[..end]
}

/// Numbers that repeat neither in this process nor, but for a collision of 64 random bits, in another: a walk through
/// all of them from a random start, mixed so that neighbours look nothing alike.
#[derive(Debug)]
struct Ids(AtomicU64);

impl Ids {
    fn random() -> Self {
        Self(AtomicU64::new(RandomState::new().hash_one(0)))
    }

    /// Never zero, which means none.
    fn next(&self) -> u64 {
        // SplitMix64, of Steele, Lea and Flood.
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).max(1)
    }
}

/// A random name, for what must differ between processes.
pub(super) fn random_name() -> String {
    let ids = Ids::random();
    format!("{:016x}{:016x}", ids.next(), ids.next())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_do_not_repeat_and_are_sampled_by_the_ratio() {
        let ids = Ids::random();
        let drawn: HashSet<u64> = (0..100_000).map(|_| ids.next()).collect();
        assert_eq!(drawn.len(), 100_000);
        let ratio: SampleRatio = "10%".parse().unwrap();
        // Ten standard deviations either way.
        let taken = drawn.into_iter().filter(|low| ratio.takes(*low)).count();
        assert!((9_050..=10_950).contains(&taken), "{taken}");
    }

    #[test]
    fn a_long_domain_is_cut_between_characters() {
        let long = "ä".repeat(200);
        assert_eq!(shortened(&long), "ä".repeat(128));
        assert_eq!(shortened(&format!("x{long}")), format!("x{}", "ä".repeat(127)));
        assert_eq!(shortened("api"), "api");
    }
}
