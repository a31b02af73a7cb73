//! The result of an examination: findings, and the servers in figures.

use serde::Serialize;
use tallygate::StoreError;

use super::clock::{self, Reading};
use super::facts::Facts;
use super::finding::{Finding, Severity};
use super::trial::{self, Latency};
use super::version::Version;

/// What an examination found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Of every check and server.
    pub findings: Vec<Finding>,
    /// The masters, in figures.
    pub servers: Vec<ServerFigures>,
}

/// One server in figures; `None` is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ServerFigures {
    /// `host:port`, or the path of the socket.
    pub address: String,
    /// `Redis 7.0.15` or `Valkey 9.1.2`.
    pub version: Option<String>,
    /// Bytes in use.
    pub used_memory: Option<u64>,
    /// The maximum in bytes; 0 means no limit.
    pub maxmemory: Option<u64>,
    /// Keys evicted since it started.
    pub evicted_keys: Option<u64>,
    /// Its clock minus that of this machine, in microseconds.
    pub clock_offset_us: Option<i64>,
    /// By how much the offset may be wrong.
    pub clock_uncertainty_us: Option<i64>,
    /// How long decisions took.
    pub latency: Option<Latency>,
}

/// Whether a server let itself be charged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Charge {
    /// The server.
    pub server: String,
    /// An error only if the server answered, and refused. Silence is not a refusal: it is `None`.
    pub result: Option<Result<(), StoreError>>,
}

impl Charge {
    /// As a finding; `None` if the server was silent.
    pub fn finding(&self) -> Option<Finding> {
        Some(trial::judge_charge(self.result.as_ref()?).at(&self.server))
    }
}

impl Diagnosis {
    /// The worst severity.
    pub fn worst(&self) -> Severity {
        let severities = self.findings.iter().map(|finding| finding.severity);
        severities.max_by_key(|severity| *severity as usize).unwrap_or(Severity::Ok)
    }

    pub(super) fn add(&mut self, server: &str, findings: impl IntoIterator<Item = Finding>) {
        self.findings.extend(findings.into_iter().map(|finding| finding.at(server)));
    }

    /// A reading of a server's clock, and its jump.
    pub(super) fn note_clock(&mut self, address: &str, reading: &Reading, jump: Option<i64>) {
        self.add(address, [clock::judge(reading), clock::judge_jump(jump)]);
        if let Some(figures) = self.servers.iter_mut().find(|figures| figures.address == address) {
            figures.clock_offset_us = Some(reading.offset);
            figures.clock_uncertainty_us = Some(reading.uncertainty);
        }
    }
}

impl ServerFigures {
    pub(super) fn of(facts: &Facts) -> Self {
        let info = facts.info.as_ref().ok();
        let number = |name: &str| info.and_then(|info| info.number(name));
        Self {
            address: facts.address.clone(),
            version: info.map(|info| Version::of(info).name()),
            used_memory: number("used_memory"),
            maxmemory: number("maxmemory"),
            evicted_keys: number("evicted_keys"),
            ..Self::default()
        }
    }
}
