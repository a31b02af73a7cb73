//! What is counted, as Prometheus reads it. Everything is put into words when it is asked for.

mod text;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::app::App;
use crate::histogram::Histogram;
use crate::listen::ListenStats;
use text::Exposition;

/// How a call came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Http,
    Json,
    ForwardAuth,
    Rls,
}

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    Allowed,
    Denied,
    Unavailable,
    Invalid,
}

impl Api {
    const ALL: [Self; 4] = [Self::Http, Self::Json, Self::ForwardAuth, Self::Rls];

    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Json => "json",
            Self::ForwardAuth => "forward_auth",
            Self::Rls => "rls",
        }
    }
}

impl CallOutcome {
    const ALL: [Self; 4] = [Self::Allowed, Self::Denied, Self::Unavailable, Self::Invalid];

    fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Unavailable => "unavailable",
            Self::Invalid => "invalid",
        }
    }
}

/// Calls by how they came in and what became of them.
#[derive(Debug, Default)]
pub(crate) struct CallCounters {
    outcomes: [[AtomicU64; CallOutcome::ALL.len()]; Api::ALL.len()],
    durations: [Histogram; Api::ALL.len()],
}

impl CallCounters {
    pub(crate) fn count(&self, api: Api, outcome: CallOutcome, took: Duration) {
        self.outcomes[api as usize][outcome as usize].fetch_add(1, Relaxed);
        self.durations[api as usize].observe(took);
    }

    /// A call that was refused before there was anything to decide.
    pub(crate) fn count_invalid(&self, api: Api) {
        self.outcomes[api as usize][CallOutcome::Invalid as usize].fetch_add(1, Relaxed);
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
    /// Seconds since 1970.
    pub(crate) last_at: AtomicI64,
}

/// Everything there is to tell.
pub(crate) struct Sources<'a> {
    pub(crate) app: &'a App,
    pub(crate) reloads: &'a ReloadCounters,
    pub(crate) listeners: &'a [(&'static str, Arc<ListenStats>)],
}

impl Sources<'_> {
    /// The page, in Prometheus' text format.
    pub(crate) fn render(&self) -> String {
        let mut page = Exposition::default();
        self.policies(&mut page);
        self.calls(&mut page);
        self.store(&mut page);
        self.config(&mut page);
        self.listeners(&mut page);
        page.gauge("tallygate_build_info", "The version that runs.");
        page.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
        page.into_text()
    }

    fn policies(&self, page: &mut Exposition) {
        let loaded = self.app.policies.load();
        let policies = || loaded.set.policies().zip(&loaded.counters);
        let name = |policy: &'_ tallygate::Policy| [policy.domain().to_owned(), policy.name().to_owned()];
        page.counter("tallygate_decisions_total", "Rulings of a policy, by outcome and by where the answer came from.");
        for (policy, counters) in policies() {
            let [domain, name] = name(policy);
            for (outcome, source, count) in counters.decisions() {
                let source = source.name();
                page.sample(
                    &[("domain", &domain), ("policy", &name), ("outcome", outcome.name()), ("source", source)],
                    count,
                );
            }
        }
        page.counter("tallygate_units_total", "Units that calls asked for, by what became of them.");
        for (policy, counters) in policies() {
            let [domain, name] = name(policy);
            for (outcome, count) in counters.units() {
                page.sample(&[("domain", &domain), ("policy", &name), ("outcome", outcome.name())], count);
            }
        }
        page.counter("tallygate_near_limit_total", "Allowed calls that left a limit nearly used up.");
        for (policy, counters) in policies() {
            let [domain, name] = name(policy);
            page.sample(&[("domain", &domain), ("policy", &name)], counters.near());
        }
        page.counter("tallygate_refunded_units_total", "Units that were given back.");
        for (policy, counters) in policies() {
            let [domain, name] = name(policy);
            page.sample(&[("domain", &domain), ("policy", &name)], counters.refunded());
        }
        page.gauge("tallygate_limit_units", "The most that a policy allows at one instant.");
        for (policy, limit) in policies().filter_map(|(policy, _)| Some((policy, policy.limit()?))) {
            let [domain, name] = name(policy);
            page.sample(&[("domain", &domain), ("policy", &name)], limit.capacity());
        }
        page.gauge("tallygate_limit_window_seconds", "The window of a policy's limit.");
        for (policy, limit) in policies().filter_map(|(policy, _)| Some((policy, policy.limit()?))) {
            let [domain, name] = name(policy);
            page.sample(&[("domain", &domain), ("policy", &name)], limit.window().as_secs_f64());
        }
    }

    fn calls(&self, page: &mut Exposition) {
        let calls = &self.app.calls;
        page.counter("tallygate_calls_total", "Calls by how they came in and what became of them.");
        for (api, outcomes) in Api::ALL.into_iter().zip(&calls.outcomes) {
            for (outcome, count) in CallOutcome::ALL.into_iter().zip(outcomes) {
                page.sample(&[("api", api.name()), ("outcome", outcome.name())], count.load(Relaxed));
            }
        }
        page.histogram("tallygate_decision_duration_seconds", "From a call to its verdict.");
        for (api, histogram) in Api::ALL.into_iter().zip(&calls.durations) {
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
        for (kind, count) in store.stats().errors() {
            page.sample(&[("kind", kind)], count);
        }
        page.gauge("tallygate_store_up", "Whether the store answers.");
        page.sample(&[], u64::from(store.up()));
        page.gauge(
            "tallygate_store_breaker_open",
            "Whether calls are answered without asking a store that keeps failing.",
        );
        page.sample(&[], u64::from(store.breaker_open()));
        let Some(audit) = store.audit() else { return };
        page.gauge("tallygate_keys", "Keys held, as the last look through the store found them.");
        page.sample(&[], audit.keys);
        page.gauge("tallygate_keys_without_ttl", "Keys that would never expire: there must be none.");
        page.sample(&[], audit.keys_without_ttl);
        page.gauge(
            "tallygate_store_evicted_keys",
            "Keys the store dropped for want of memory: each may have freed a caller.",
        );
        page.sample(&[], audit.evicted_keys);
        page.gauge("tallygate_audit_last_success_timestamp_seconds", "When the store was last looked through.");
        page.sample(&[], audit.finished_at.as_micros() / 1_000_000);
    }

    fn config(&self, page: &mut Exposition) {
        let reloads = self.reloads;
        page.gauge("tallygate_config_generation", "How many policy sets have been in force.");
        page.sample(&[], self.app.policies.load().generation);
        page.gauge("tallygate_config_last_reload_successful", "Whether the policies in force are those of the files.");
        page.sample(&[], 1 - reloads.last_failed.load(Relaxed).min(1));
        page.gauge("tallygate_config_last_reload_timestamp_seconds", "When the files were last read.");
        page.sample(&[], reloads.last_at.load(Relaxed));
        page.counter(
            "tallygate_config_reloads_total",
            "Readings of the files after the first, by what became of them.",
        );
        let outcomes =
            [("applied", &reloads.applied), ("unchanged", &reloads.unchanged), ("refused", &reloads.refused)];
        for (outcome, count) in outcomes {
            page.sample(&[("outcome", outcome)], count.load(Relaxed));
        }
    }

    fn listeners(&self, page: &mut Exposition) {
        page.counter("tallygate_shed_total", "Connections and requests turned away because there were too many.");
        for (name, stats) in self.listeners {
            page.sample(&[("listener", name)], stats.shed());
        }
        page.gauge("tallygate_connections", "Connections open now.");
        for (name, stats) in self.listeners {
            page.sample(&[("listener", name)], stats.connections());
        }
    }
}
