//! Watches the store for what could break a guarantee: its settings, its clocks, and whether a charge can really be made.
//!
//! A probe that only reads sees nothing of a full memory or of a missing permission to write. So each master is charged
//! every few seconds, on a key that expires within two.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tallygate::StoreError;
use tallygate_redis::{Charge, Doctor, DoctorCheck, Finding, ServerFigures, Severity};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::backoff::jitter;
use super::{Condition, Parts};

/// Between two charges of each master.
const CHARGE_EVERY: Duration = Duration::from_secs(2);
/// Between two readings of settings and clocks.
const READ_EVERY: Duration = Duration::from_secs(60);

/// What the watch of a store knows. Empty before the first look, and for the embedded store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreWatch {
    /// What needs attention.
    pub findings: Vec<Finding>,
    /// The masters, in figures.
    pub servers: Vec<ServerFigures>,
    /// Masters that refused the last charge: out of memory, a missing permission, no disk, too few replicas. Those that
    /// did not answer are not among them; [`condition`](super::ServedStore::condition) tells of those.
    pub refusing: Vec<Refusing>,
    /// Masters that let themselves be charged.
    pub chargeable: usize,
}

/// A master that answers, and refuses to be charged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusing {
    /// Its address.
    pub server: String,
    /// Why, and what to do.
    pub error: StoreError,
}

impl StoreWatch {
    /// The checks that a server watches.
    pub const CHECKS: [DoctorCheck; 13] = [
        DoctorCheck::Reachable,
        DoctorCheck::Version,
        DoctorCheck::EvictionPolicy,
        DoctorCheck::Evictions,
        DoctorCheck::Memory,
        DoctorCheck::Replication,
        DoctorCheck::Persistence,
        DoctorCheck::Clock,
        DoctorCheck::ClockSpread,
        DoctorCheck::ClockJump,
        DoctorCheck::Charge,
        DoctorCheck::Permissions,
        DoctorCheck::Cluster,
    ];
    /// The severities that are counted.
    pub const SEVERITIES: [Severity; 3] = [Severity::Problem, Severity::Warning, Severity::Unknown];

    /// How many servers have a finding of this kind.
    pub fn count(&self, check: DoctorCheck, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| (finding.check, finding.severity) == (check, severity)).count()
    }

    /// The offset that is furthest from zero, of the servers' clocks against this machine's, in microseconds.
    pub fn clock_offset_us(&self) -> i64 {
        let offsets = self.servers.iter().filter_map(|server| server.clock_offset_us);
        offsets.max_by_key(|offset| offset.unsigned_abs()).unwrap_or(0)
    }

    /// How much of its `maxmemory` the fullest server uses; 0 if none has one.
    #[expect(clippy::cast_precision_loss, reason = "a ratio needs no 53 bits")]
    pub fn memory_used_ratio(&self) -> f64 {
        let ratio = |server: &ServerFigures| {
            let most = server.maxmemory.filter(|most| *most > 0)?;
            Some(server.used_memory? as f64 / most as f64)
        };
        self.servers.iter().filter_map(ratio).fold(0.0, f64::max)
    }

    fn charged(&mut self, charges: &[Charge]) {
        let result = |charge: &Charge| charge.result.clone().map(|result| (charge.server.clone(), result));
        let results: Vec<_> = charges.iter().filter_map(result).collect();
        self.chargeable = results.iter().filter(|(_, result)| result.is_ok()).count();
        let refused = results.into_iter().filter_map(|(server, result)| Some((server, result.err()?)));
        self.refusing = refused.map(|(server, error)| Refusing { server, error }).collect();
        self.findings.retain(|finding| finding.check != DoctorCheck::Charge);
        self.findings.extend(charges.iter().filter_map(Charge::finding).filter(Finding::needs_attention));
    }
}

pub(super) async fn run(parts: Arc<Parts>, url: String, prefix: String, deadline: Duration) {
    let mut condition = parts.condition.subscribe();
    let mut log = FindingLog { place: parts.place.clone(), reported: BTreeSet::new() };
    loop {
        if condition.wait_for(Result::is_ok).await.is_err() {
            return;
        }
        let Ok(doctor) = Doctor::connect(&url, &prefix, deadline).await else {
            sleep(CHARGE_EVERY).await;
            continue;
        };
        watch_while_up(&doctor, &condition, &parts.watched, &mut log).await;
    }
}

/// Ends when the store is down: another server may be there when it is up again.
async fn watch_while_up(
    doctor: &Doctor,
    condition: &watch::Receiver<Condition>,
    watched: &watch::Sender<StoreWatch>,
    log: &mut FindingLog,
) {
    let mut next_reading = Instant::now();
    while condition.borrow().is_ok() {
        if Instant::now() >= next_reading {
            next_reading = Instant::now() + jitter(READ_EVERY - READ_EVERY / 10, READ_EVERY);
            let seen = doctor.watch().await;
            watched.send_modify(|watched| {
                watched.findings.retain(|finding| finding.check == DoctorCheck::Charge);
                let watches = |finding: &Finding| StoreWatch::CHECKS.contains(&finding.check);
                let found = seen.findings.into_iter().filter(Finding::needs_attention).filter(watches);
                watched.findings.extend(found);
                watched.servers = seen.servers;
            });
        }
        let charges = doctor.charge().await;
        watched.send_modify(|watched| watched.charged(&charges));
        log.report(&watched.borrow().findings);
        sleep(jitter(CHARGE_EVERY / 2, CHARGE_EVERY)).await;
    }
}

/// Logs each finding once, and again only if it was gone in between.
struct FindingLog {
    place: String,
    reported: BTreeSet<(&'static str, &'static str, Option<String>)>,
}

impl FindingLog {
    fn report(&mut self, findings: &[Finding]) {
        let name = |finding: &Finding| (finding.check.name(), finding.severity.name(), finding.server.clone());
        let now: BTreeSet<_> = findings.iter().map(name).collect();
        for finding in findings.iter().filter(|finding| !self.reported.contains(&name(finding))) {
            let Finding { check, severity, found, consequence, remedy, .. } = finding;
            let (store, check, severity) = (&self.place, check.name(), severity.name());
            let server = finding.server.as_deref().unwrap_or("all");
            if finding.severity == Severity::Unknown {
                tracing::info!(store, server, check, severity, found, remedy, "the store could not be examined");
            } else {
                tracing::warn!(store, server, check, severity, found, consequence, remedy, "the store needs attention");
            }
        }
        for (check, severity, server) in
            self.reported.difference(&now).filter(|(_, severity, _)| *severity != "unknown")
        {
            let server = server.as_deref().unwrap_or("all");
            tracing::info!(store = self.place, server, check, severity, "a finding of the store is gone");
        }
        self.reported = now;
    }
}
