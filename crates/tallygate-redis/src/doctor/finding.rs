//! What an examination found: one finding for each check and server, with its consequence and its remedy.

use serde::{Serialize, Serializer};
use tallygate::words::words;

words! {
    /// What is examined.
    #[non_exhaustive]
    pub enum DoctorCheck, "check" {
        /// Whether every server answers.
        Reachable = "reachable",
        /// The version of the server: too old, or with a known hole.
        Version = "version",
        /// `maxmemory-policy`.
        EvictionPolicy = "eviction_policy",
        /// Keys evicted since the server started.
        Evictions = "evictions",
        /// `maxmemory`, and how much of it is used.
        Memory = "memory",
        /// Replicas, their lag, and `min-replicas-to-write`.
        Replication = "replication",
        /// What a restart forgets, and whether saving works.
        Persistence = "persistence",
        /// The clocks of the servers against that of this machine.
        Clock = "clock",
        /// The clocks of the servers against each other.
        ClockSpread = "clock_spread",
        /// Steps of a server's clock while it was watched.
        ClockJump = "clock_jump",
        /// Whether a charge can really be made.
        Charge = "charge",
        /// Whether the user may run every script.
        Permissions = "permissions",
        /// The duration of decisions against the deadline.
        Latency = "latency",
        /// Slow commands of any client.
        SlowCommands = "slow_commands",
        /// Keys that would never expire.
        KeysWithoutTtl = "keys_without_ttl",
        /// The slots and nodes of a cluster.
        Cluster = "cluster",
        /// The sentinels.
        Sentinel = "sentinel",
        /// Connections left, and connections that the server closes by itself.
        Clients = "clients",
        /// After how long a script makes the server answer `BUSY`.
        ScriptLimit = "script_limit",
    }
}

words! {
    /// How bad a finding is.
    pub enum Severity, "severity" {
        /// As it should be.
        Ok = "ok",
        /// It could not be found out.
        Unknown = "unknown",
        /// A guarantee is weaker than it could be, or will be broken by an ordinary event.
        Warning = "warning",
        /// A guarantee is broken now, or calls fail.
        Problem = "problem",
    }
}

/// The result of one check on one server, or on the whole store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// What was examined.
    #[serde(serialize_with = "check_name")]
    pub check: DoctorCheck,
    /// How bad it is.
    #[serde(serialize_with = "severity_name")]
    pub severity: Severity,
    /// The server; `None` for the whole store.
    pub server: Option<String>,
    /// What was found.
    pub found: String,
    /// What it means for callers; empty if all is well.
    pub consequence: String,
    /// The section of `docs/guarantees.md` that it concerns.
    pub guarantee: Option<u8>,
    /// The setting or command that fixes it; empty if all is well.
    pub remedy: String,
}

fn check_name<S: Serializer>(check: &DoctorCheck, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(check.name())
}

fn severity_name<S: Serializer>(severity: &Severity, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(severity.name())
}

impl Finding {
    fn new(check: DoctorCheck, severity: Severity, found: impl Into<String>) -> Self {
        let (consequence, remedy) = (String::new(), String::new());
        Self { check, severity, server: None, found: found.into(), consequence, guarantee: None, remedy }
    }

    pub(super) fn ok(check: DoctorCheck, found: impl Into<String>) -> Self {
        Self::new(check, Severity::Ok, found)
    }

    pub(super) fn warning(check: DoctorCheck, found: impl Into<String>) -> Self {
        Self::new(check, Severity::Warning, found)
    }

    pub(super) fn problem(check: DoctorCheck, found: impl Into<String>) -> Self {
        Self::new(check, Severity::Problem, found)
    }

    /// Not permitted, or not answered.
    pub(super) fn unknown(check: DoctorCheck, found: impl Into<String>) -> Self {
        Self::new(check, Severity::Unknown, found)
    }

    /// What it means, and the section of the guarantees.
    pub(super) fn means(self, guarantee: u8, consequence: impl Into<String>) -> Self {
        Self { guarantee: Some(guarantee), consequence: consequence.into(), ..self }
    }

    pub(super) fn fix(self, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }

    pub(super) fn at(self, server: &str) -> Self {
        Self { server: Some(server.to_owned()), ..self }
    }

    /// Whether there is something to do.
    pub fn needs_attention(&self) -> bool {
        self.severity != Severity::Ok
    }
}
