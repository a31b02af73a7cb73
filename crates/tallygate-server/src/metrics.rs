//! What is counted, as Prometheus reads it. Everything is put into words when it is asked for.

mod text;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::accept::ListenStats;
use crate::answer::AnswerError;
use crate::app::App;
use crate::decision_event::{Api, CallOutcome, DecisionEvent};
use crate::histogram::Histogram;
use text::Exposition;

#[derive(Debug, Default)]
pub(crate) struct CallCounters {
    outcomes: [[AtomicU64; CallOutcome::ALL.len()]; Api::ALL.len()],
    durations: [Histogram; Api::ALL.len()],
}

impl CallCounters {
    pub(crate) fn observe(&self, event: &DecisionEvent<'_>) {
        self.outcomes[event.api as usize][event.outcome as usize].fetch_add(1, Relaxed);
        // Only what was decided, or tried to: an unknown domain is refused at once, and would flatter the histogram.
        if let Some(asked) = event.asked.filter(|asked| !matches!(asked.result, Err(AnswerError::UnknownDomain { .. })))
        {
            self.durations[event.api as usize].observe(asked.took);
        }
    }
}

/// What became of attempts to load policies.
#[derive(Debug, Default)]
pub(crate) struct ReloadCounters {
    pub(crate) applied: AtomicU64,
    pub(crate) unchanged: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Whether the last attempt left the policies as the files say.
    pub(crate) last_failed: AtomicU64,
    /// Microseconds since 1970.
    pub(crate) last_at: AtomicU64,
}

/// Where the figures come from.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) app: Arc<App>,
    pub(crate) listeners: Arc<[(&'static str, Arc<ListenStats>)]>,
    #[cfg(feature = "otlp")]
    pub(crate) traces: Option<crate::telemetry::Traces>,
}

impl Sources {
    /// The page, in Prometheus' text format.
    pub(crate) fn render(&self) -> String {
        let mut page = Exposition::default();
        self.policies(&mut page);
        self.calls(&mut page);
        self.store(&mut page);
        self.config(&mut page);
        self.listeners(&mut page);
        #[cfg(feature = "otlp")]
        if let Some(traces) = &self.traces {
            page.counter("tallygate_spans_total", "Spans of sampled decisions, by what became of them.");
            for (outcome, count) in traces.counts() {
                page.sample(&[("outcome", outcome)], count);
            }
        }
        page.gauge("tallygate_build_info", "The version that runs.");
        page.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
        page.into_text()
    }

    fn policies(&self, page: &mut Exposition) {
        let loaded = self.app.policies.load();
        // With the labels that all samples of a policy have.
        let policies = || {
            let policies = loaded.set.policies().zip(&loaded.counters);
            policies.map(|(policy, counters)| {
                ([("domain", policy.domain()), ("policy", policy.name())], policy.limit(), counters)
            })
        };
        let limits = || policies().filter_map(|(labels, limit, _)| Some((labels, limit?)));
        page.counter("tallygate_decisions_total", "Rulings of a policy, by outcome and by where the answer came from.");
        for ([domain, policy], _, counters) in policies() {
            for (outcome, source, count) in counters.decisions() {
                page.sample(&[domain, policy, ("outcome", outcome.name()), ("source", source.name())], count);
            }
        }
        page.counter("tallygate_units_total", "Units that calls asked for, by what became of them.");
        for ([domain, policy], _, counters) in policies() {
            for (outcome, count) in counters.units() {
                page.sample(&[domain, policy, ("outcome", outcome.name())], count);
            }
        }
        page.counter("tallygate_near_limit_total", "Allowed calls that left a limit nearly used up.");
        page.samples(policies().map(|(labels, _, counters)| (labels, counters.near.load(Relaxed))));
        page.counter("tallygate_refunded_units_total", "Units that were given back.");
        page.samples(policies().map(|(labels, _, counters)| (labels, counters.refunded.load(Relaxed))));
        page.gauge("tallygate_limit_units", "The most that a policy allows at one instant.");
        page.samples(limits().map(|(labels, limit)| (labels, limit.capacity())));
        page.gauge("tallygate_limit_window_seconds", "The window of a policy's limit.");
        page.samples(limits().map(|(labels, limit)| (labels, limit.window().as_secs_f64())));
    }

    fn calls(&self, page: &mut Exposition) {
        let calls = &self.app.calls;
        page.counter("tallygate_calls_total", "Calls by how they came in and what became of them.");
        for (api, outcomes) in Api::ALL.iter().zip(&calls.outcomes) {
            for (outcome, count) in CallOutcome::ALL.iter().zip(outcomes) {
                page.sample(&[("api", api.name()), ("outcome", outcome.name())], count.load(Relaxed));
            }
        }
        page.histogram("tallygate_decision_duration_seconds", "From a call to its verdict.");
        for (api, histogram) in Api::ALL.iter().zip(&calls.durations) {
            page.distribution(&[("api", api.name())], histogram);
        }
    }

    fn store(&self, page: &mut Exposition) {
        let store = self.app.store();
        page.histogram("tallygate_store_duration_seconds", "One question to the store.");
        for (op, histogram) in store.stats().durations() {
            page.distribution(&[("op", op)], histogram);
        }
        page.counter("tallygate_store_errors_total", "Questions that the store did not answer.");
        page.samples(store.stats().errors().map(|(kind, count)| ([("kind", kind)], count)));
        page.number("tallygate_store_up", "Whether the store answers.", u64::from(store.condition().is_ok()));
        page.number(
            "tallygate_store_breaker_open",
            "Whether calls are answered without asking a store that keeps failing.",
            u64::from(store.breaker_open()),
        );
        let Some(audit) = store.audit() else { return };
        page.number("tallygate_keys", "Keys held, as the last look through the store found them.", audit.keys);
        page.number(
            "tallygate_keys_without_ttl",
            "Keys that would never expire: there must be none.",
            audit.keys_without_ttl,
        );
        page.number(
            "tallygate_store_evicted_keys",
            "Keys evicted by the store; each eviction resets a limit.",
            audit.evicted_keys,
        );
        page.number(
            "tallygate_audit_last_success_timestamp_seconds",
            "When the store was last looked through.",
            audit.finished_at.as_micros() / 1_000_000,
        );
    }

    fn config(&self, page: &mut Exposition) {
        let reloads = &self.app.reloads;
        page.number(
            "tallygate_config_generation",
            "How many policy sets have been in force.",
            self.app.policies.load().generation,
        );
        page.number(
            "tallygate_config_last_reload_successful",
            "Whether the policies in force are those of the files.",
            1 - reloads.last_failed.load(Relaxed).min(1),
        );
        page.number(
            "tallygate_config_last_reload_timestamp_seconds",
            "When the files were last read.",
            reloads.last_at.load(Relaxed) / 1_000_000,
        );
        page.counter("tallygate_config_reloads_total", "Configuration reloads, by outcome.");
        let outcomes =
            [("applied", &reloads.applied), ("unchanged", &reloads.unchanged), ("refused", &reloads.refused)];
        page.samples(outcomes.map(|(outcome, count)| ([("outcome", outcome)], count.load(Relaxed))));
    }

    fn listeners(&self, page: &mut Exposition) {
        page.counter("tallygate_shed_total", "Connections and requests turned away because there were too many.");
        page.samples(self.listeners.iter().map(|(name, stats)| ([("listener", *name)], stats.shed.load(Relaxed))));
        page.gauge("tallygate_connections", "Connections open now.");
        page.samples(
            self.listeners.iter().map(|(name, stats)| ([("listener", *name)], stats.connections.load(Relaxed))),
        );
    }
}
