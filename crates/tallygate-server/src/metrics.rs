//! Metrics in Prometheus' text format, rendered on each scrape.

mod process;
mod text;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tallygate::policy::Policy;
use tallygate_disk::Figures;

use crate::accept::ListenStats;
use crate::answer::AnswerError;
use crate::app::App;
use crate::decision_event::{Api, CallOutcome, DecisionEvent};
use crate::histogram::Histogram;
use crate::store::StoreWatch;
use text::Exposition;

#[derive(Debug, Default)]
pub(crate) struct CallCounters {
    outcomes: [[AtomicU64; CallOutcome::ALL.len()]; Api::ALL.len()],
    durations: [Histogram; Api::ALL.len()],
    /// Those that were repeated under their id.
    replayed: [AtomicU64; Api::ALL.len()],
}

impl CallCounters {
    pub(crate) fn observe(&self, event: &DecisionEvent<'_>) {
        self.outcomes[event.api as usize][event.outcome as usize].fetch_add(1, Relaxed);
        // Only decisions, and attempts: an unknown domain is refused at once, and would flatter the histogram.
        if let Some(asked) = event.asked.filter(|asked| !matches!(asked.result, Err(AnswerError::UnknownDomain { .. })))
        {
            self.durations[event.api as usize].observe(asked.took);
            self.replayed[event.api as usize].fetch_add(u64::from(asked.replayed()), Relaxed);
        }
    }
}

/// Reloads, by outcome.
#[derive(Debug, Default)]
pub(crate) struct ReloadCounters {
    pub(crate) applied: AtomicU64,
    pub(crate) unchanged: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Whether the last attempt failed, so that the policies in force are not those of the files.
    pub(crate) last_failed: AtomicU64,
    /// Microseconds since 1970.
    pub(crate) last_at: AtomicU64,
}

/// Where the numbers come from.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) app: Arc<App>,
    pub(crate) listeners: Arc<[(&'static str, Arc<ListenStats>)]>,
    #[cfg(feature = "otlp")]
    pub(crate) traces: Option<crate::telemetry::Traces>,
}

impl Sources {
    /// The page.
    pub(crate) fn render(&self) -> String {
        let mut page = Exposition::default();
        self.policies(&mut page);
        self.calls(&mut page);
        self.store(&mut page);
        self.overrides(&mut page);
        self.config(&mut page);
        self.listeners(&mut page);
        process::render(&mut page);
        #[cfg(feature = "otlp")]
        if let Some(traces) = &self.traces {
            page.counter("tallygate_spans_total", "Spans of sampled decisions, by outcome.");
            for (outcome, count) in traces.counts() {
                page.sample(&[("outcome", outcome)], count);
            }
        }
        page.gauge("tallygate_build_info", "The version of this server, as a label.");
        page.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
        page.into_text()
    }

    fn policies(&self, page: &mut Exposition) {
        let loaded = self.app.policies.load();
        // With the labels that all samples of a policy have.
        let policies = || {
            let labels = |policy| [("domain", Policy::domain(policy)), ("policy", policy.name())];
            loaded.counted().map(move |(policy, counters)| (labels(policy), policy, counters))
        };
        let estimates =
            || policies().filter_map(|(labels, policy, _)| Some((labels, loaded.learned(policy.key_name())?)));
        let limits = || policies().filter_map(|(labels, policy, _)| Some((labels, policy.limit()?)));
        page.counter(
            "tallygate_decisions_total",
            "Decisions of each policy, by outcome and source. A call under several policies counts once for each.",
        );
        for ([domain, name], policy, counters) in policies() {
            for (outcome, source, count) in counters.decisions(policy) {
                page.sample(&[domain, name, ("outcome", outcome.name()), ("source", source.name())], count);
            }
        }
        page.counter(
            "tallygate_units_total",
            "Units of allowed calls, and units that the policy denied. Units that another policy denied are not counted.",
        );
        for ([domain, name], policy, counters) in policies() {
            for (outcome, count) in counters.units(policy) {
                page.sample(&[domain, name, ("outcome", outcome.name())], count);
            }
        }
        page.counter(
            "tallygate_near_limit_total",
            "Allowed calls after which at least `near` percent of the limit were used.",
        );
        page.samples(policies().map(|(labels, _, counters)| (labels, counters.near.load(Relaxed))));
        page.counter(
            "tallygate_paid_units_total",
            "Units of allowed calls under policies with several payers, by who paid them.",
        );
        for (policy, payer, units) in loaded.paid() {
            page.sample(&[("domain", policy.domain()), ("policy", policy.name()), ("payer", payer)], units);
        }
        page.counter("tallygate_refunded_units_total", "Units that were refunded.");
        page.samples(policies().map(|(labels, _, counters)| (labels, counters.refunded.load(Relaxed))));
        page.counter("tallygate_holds_total", "Holds that were reserved, and what calls have made of them.");
        for ([domain, name], policy, counters) in policies() {
            for (outcome, count) in counters.holds.holds(policy.holds().is_some()) {
                page.sample(&[domain, name, ("outcome", outcome)], count);
            }
        }
        page.counter(
            "tallygate_hold_units_total",
            "Units of these holds, counted when they are reserved and when they end.",
        );
        for ([domain, name], policy, counters) in policies() {
            for (outcome, count) in counters.holds.units(policy.holds().is_some()) {
                page.sample(&[domain, name, ("outcome", outcome)], count);
            }
        }
        page.gauge("tallygate_hold_estimate_units", "What a reservation holds that does not say how many units.");
        page.samples(estimates().map(|(labels, learned)| (labels, learned.estimate())));
        page.counter(
            "tallygate_hold_estimates_total",
            "Settled holds of policies with `estimate`, by whether as much was reserved as was used.",
        );
        for ([domain, name], learned) in estimates() {
            let figures = learned.figures();
            for (outcome, count) in [("enough", figures.enough), ("short", figures.short)] {
                page.sample(&[domain, name, ("outcome", outcome)], count);
            }
        }
        page.counter("tallygate_hold_short_units_total", "Units that these holds have used beyond what was reserved.");
        page.samples(estimates().map(|(labels, learned)| (labels, learned.figures().short_units)));
        page.gauge("tallygate_limit_units", "The capacity of the limit: the most units at one instant.");
        page.samples(policies().filter_map(|(labels, policy, _)| Some((labels, policy.capacity()?))));
        page.gauge(
            "tallygate_limit_window_seconds",
            "The window of the limit, in seconds. A concurrency limit has none.",
        );
        page.samples(
            limits()
                .filter(|(_, limit)| !limit.is_concurrency())
                .map(|(labels, limit)| (labels, limit.window().as_secs_f64())),
        );
    }

    fn calls(&self, page: &mut Exposition) {
        let calls = &self.app.calls;
        page.counter("tallygate_calls_total", "Calls of any verb, by API and outcome.");
        for (api, outcomes) in Api::ALL.iter().zip(&calls.outcomes) {
            for (outcome, count) in CallOutcome::ALL.iter().zip(outcomes) {
                page.sample(&[("api", api.name()), ("outcome", outcome.name())], count.load(Relaxed));
            }
        }
        page.counter(
            "tallygate_replayed_calls_total",
            "Calls that were repeated under their request id: answered as before, and not charged.",
        );
        let replayed = Api::ALL.iter().zip(&calls.replayed);
        page.samples(replayed.map(|(api, count)| ([("api", api.name())], count.load(Relaxed))));
        page.counter(
            "tallygate_wrong_tokens_total",
            "Tokens that were refused: wrong ones, and those that were not looked at.",
        );
        let guesses = &self.app.access.guesses;
        page.samples(
            [("wrong", &guesses.wrong), ("unchecked", &guesses.unchecked)]
                .map(|(outcome, count)| ([("outcome", outcome)], count.load(Relaxed))),
        );
        page.histogram("tallygate_decision_duration_seconds", "Time from a call to its decision, in seconds.");
        for (api, histogram) in Api::ALL.iter().zip(&calls.durations) {
            page.distribution(&[("api", api.name())], histogram);
        }
    }

    fn store(&self, page: &mut Exposition) {
        let store = self.app.store();
        page.histogram("tallygate_store_duration_seconds", "Duration of calls to the store, in seconds, by verb.");
        for (op, histogram) in store.stats().durations() {
            page.distribution(&[("op", op)], histogram);
        }
        page.counter("tallygate_store_errors_total", "Calls that the store did not answer, by kind of error.");
        page.samples(store.stats().errors().map(|(kind, count)| ([("kind", kind)], count)));
        page.counter(
            "tallygate_store_abandoned_total",
            "Calls whose caller left after they were sent; each may have been charged.",
        );
        page.sample(&[], store.abandoned_calls());
        page.number(
            "tallygate_store_up",
            "1 if the store answers for any key, else 0.",
            u64::from(store.condition().is_ok()),
        );
        page.gauge("tallygate_store_served_ratio", "The share of the keys that the store answers for, from 0 to 1.");
        page.sample(&[], store.served());
        page.gauge("tallygate_store_server_up", "1 if a server of the store answers, else 0, by address.");
        match store.health() {
            Some(health) => health.servers.iter().for_each(|server| {
                page.sample(&[("server", &server.address)], u64::from(server.error.is_none()));
            }),
            None => page.sample(&[("server", store.place())], u64::from(store.condition().is_ok())),
        }
        self.watched(page);
        page.number(
            "tallygate_instances",
            "Instances that share the store, as last counted. `on_error: local` divides a limit by this number.",
            u64::from(self.app.stores.instances().get()),
        );
        page.number(
            "tallygate_deny_cache_entries",
            "Denials that are kept for policies with `cache_denials`, those that have ended included.",
            u64::try_from(self.app.stores.shared().store().len()).unwrap_or(u64::MAX),
        );
        let allotments = self.app.stores.shared();
        page.number(
            "tallygate_allotment_keys",
            "Hot keys of policies with `allotment`: units of them are taken in advance.",
            u64::try_from(allotments.len()).unwrap_or(u64::MAX),
        );
        page.number(
            "tallygate_allotment_units",
            "Units that were taken in advance and are not yet spent: what other instances could have had.",
            allotments.units(),
        );
        page.counter(
            "tallygate_allotment_dropped_units_total",
            "Units that were taken in advance, and neither spent nor given back.",
        );
        page.sample(&[], allotments.dropped());
        self.saved(page);
        if !store.audits() {
            return;
        }
        let audit = store.audit();
        page.number(
            "tallygate_audit_last_success_timestamp_seconds",
            "When the last audit finished, in seconds since 1970; 0 if none has.",
            audit.map_or(0, |audit| audit.finished_at.as_micros() / 1_000_000),
        );
        let Some(audit) = audit else { return };
        page.number("tallygate_keys", "Keys in the store, as of the last audit.", audit.keys);
        page.number(
            "tallygate_keys_without_ttl",
            "Keys without a TTL, as of the last audit; there must be none.",
            audit.keys_without_ttl,
        );
        page.counter(
            "tallygate_store_evicted_keys_total",
            "Keys evicted by the store, as of the last audit; each eviction resets a limit.",
        );
        page.sample(&[], audit.evicted_keys);
    }

    fn saved(&self, page: &mut Exposition) {
        let saved = self.app.store().saved();
        let number = |of: fn(&Figures) -> u64| saved.as_ref().map_or(0, of);
        page.number(
            "tallygate_saved_age_seconds",
            "How much of the past a crash would lose: the time since the last save to the data directory; 0 without one.",
            saved.as_ref().map_or(0.0, |saved| saved.age.as_secs_f64()),
        );
        page.counter("tallygate_save_failures_total", "Saves to the data directory that failed.");
        page.sample(&[], number(|saved| saved.failures));
        page.number(
            "tallygate_saved_entries",
            "Entries of the data directory, as of the last save.",
            number(|saved| saved.entries),
        );
        page.number("tallygate_saved_bytes", "Size of the file in the data directory.", number(|saved| saved.bytes));
    }

    fn watched(&self, page: &mut Exposition) {
        let receiver = self.app.store().watched();
        let watched = receiver.borrow();
        page.gauge(
            "tallygate_store_finding",
            "Servers of the store with this finding: something that breaks a guarantee (problem), weakens it (warning), or \
             could not be examined (unknown).",
        );
        for check in StoreWatch::CHECKS {
            for severity in StoreWatch::SEVERITIES {
                let labels = [("check", check.name()), ("severity", severity.name())];
                page.sample(&labels, watched.count(check, severity));
            }
        }
        page.number(
            "tallygate_store_clock_offset_seconds",
            "The clock of the store minus that of this machine, in seconds; of several servers the one furthest off.",
            watched.clock_offset_us() as f64 / 1e6,
        );
        page.number(
            "tallygate_store_memory_used_ratio",
            "Memory that the fullest server of the store uses, as a share of its maxmemory; 0 if none has one.",
            watched.memory_used_ratio(),
        );
    }

    fn overrides(&self, page: &mut Exposition) {
        let figures = self.app.live.figures();
        page.number(
            "tallygate_overrides",
            "Overrides of live limits that are in force, as this instance knows them.",
            u64::try_from(figures.in_force).unwrap_or(u64::MAX),
        );
        page.number(
            "tallygate_overrides_revision",
            "The revision of the overrides that this instance obeys; 0 if there never was one.",
            figures.revision,
        );
        page.number(
            "tallygate_overrides_age_seconds",
            "Time since the overrides were last read, or since the start if they never were, in seconds.",
            figures.age.as_secs_f64(),
        );
        page.counter("tallygate_overrides_read_failures_total", "Times that the overrides could not be read.");
        page.sample(&[], self.app.live.failures.load(Relaxed));
    }

    fn config(&self, page: &mut Exposition) {
        let reloads = &self.app.reloads;
        page.number(
            "tallygate_config_generation",
            "Number of policy sets that have been in force, this one included.",
            self.app.policies.load().generation,
        );
        page.number(
            "tallygate_config_last_reload_successful",
            "0 if a policy file or a certificate was refused at the last reload, else 1.",
            1 - reloads.last_failed.load(Relaxed).min(1),
        );
        page.number(
            "tallygate_config_last_reload_timestamp_seconds",
            "When a reload was last attempted, or the server started, in seconds since 1970.",
            reloads.last_at.load(Relaxed) / 1_000_000,
        );
        page.counter("tallygate_config_reloads_total", "Configuration reloads, by outcome.");
        let outcomes =
            [("applied", &reloads.applied), ("unchanged", &reloads.unchanged), ("refused", &reloads.refused)];
        page.samples(outcomes.map(|(outcome, count)| ([("outcome", outcome)], count.load(Relaxed))));
    }

    fn listeners(&self, page: &mut Exposition) {
        type Count = fn(&ListenStats) -> &AtomicU64;
        let samples = |count: Count| {
            let listeners = self.listeners.iter();
            listeners.map(move |(name, stats)| ([("listener", *name)], count(stats).load(Relaxed)))
        };
        page.counter("tallygate_requests_total", "Requests whose header was read, refused ones included.");
        page.samples(samples(|stats| &stats.requests));
        page.counter("tallygate_shed_total", "Connections and requests refused because there were too many.");
        page.samples(samples(|stats| &stats.shed));
        page.counter("tallygate_panics_total", "Requests whose handler panicked; any is a bug.");
        page.samples(samples(|stats| &stats.panics));
        page.gauge("tallygate_connections", "Open connections.");
        page.samples(samples(|stats| &stats.connections));
    }
}
