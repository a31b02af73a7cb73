//! What many rounds found.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::history::Violation;
use crate::round::Outcome;
use crate::schedule::Schedule;

/// The sum of rounds.
#[derive(Debug, Default)]
pub struct Report {
    /// Rounds by world.
    pub rounds: BTreeMap<&'static str, u64>,
    /// Faults by kind.
    pub faults: BTreeMap<String, u64>,
    /// Calls by what answered them.
    pub by_source: BTreeMap<String, u64>,
    /// Calls.
    pub calls: u64,
    /// Holds that were granted.
    pub holds: u64,
    /// Answers compared with the algorithm to the microsecond.
    pub exact: u64,
    /// Answers compared but for what an unanswered call did.
    pub loose: u64,
    /// Answers judged by their bound only.
    pub unknown: u64,
    /// Units charged by calls without an answer.
    pub phantoms: u64,
    /// Keys looked at.
    pub keys: u64,
    /// Keys without a TTL.
    pub orphans: u64,
    /// Panics of a server.
    pub panics: u64,
    /// The slowest decision by world, in microseconds.
    pub slowest: BTreeMap<&'static str, u64>,
    /// How late this process was woken at most, in microseconds.
    pub late: u64,
    /// How long a thread of a server process waited for a processor at most from one look to the next, in microseconds.
    pub server_late: u64,
    /// Decisions that were late because the server process waited for a processor.
    pub starved: u64,
    /// Rounds in which Sentinels switched to another master by themselves.
    pub unasked_switches: u64,
    /// The time of all rounds together.
    pub took: Duration,
    /// The longest time from the end of a fault to the next answer of the store, by kind, in microseconds.
    pub recovery: BTreeMap<String, u64>,
    /// Every violation, with the command that runs its round again.
    pub violations: Vec<String>,
}

impl Report {
    /// Adds a round. `command` says how to run again what shows a violation.
    pub fn add(&mut self, schedule: &Schedule, outcome: &Outcome, command: impl Fn(&Violation) -> String) {
        let world = schedule.world.name();
        *self.rounds.entry(world).or_default() += 1;
        for (kind, count) in &outcome.faults {
            *self.faults.entry(kind.clone()).or_default() += count;
        }
        for (source, count) in &outcome.checked.by_source {
            *self.by_source.entry(source.clone()).or_default() += count;
        }
        self.calls += outcome.calls;
        self.holds += outcome.holds;
        self.exact += outcome.checked.exact;
        self.loose += outcome.checked.loose;
        self.unknown += outcome.checked.unknown;
        self.phantoms += outcome.checked.phantoms;
        self.keys += outcome.keys;
        self.orphans += outcome.orphans;
        self.panics += outcome.panics;
        let slowest = self.slowest.entry(world).or_default();
        *slowest = (*slowest).max(outcome.checked.slowest);
        self.late = self.late.max(outcome.late);
        self.server_late = self.server_late.max(outcome.server_late);
        self.starved += outcome.checked.starved;
        self.unasked_switches += u64::from(outcome.unasked_switch);
        for detail in &outcome.details {
            let longest = self.recovery.entry(detail.kind.clone()).or_default();
            *longest = (*longest).max(detail.recovery.unwrap_or(0));
        }
        self.took += outcome.took;
        for violation in &outcome.checked.violations {
            let command = command(violation);
            self.violations.push(format!("{}: {}\n    {command}", violation.check, violation.what));
        }
    }

    /// Faults so far.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.faults.values().sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |counts: &mut dyn Iterator<Item = (String, u64)>| {
            counts.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
        };
        let rounds = list(&mut self.rounds.iter().map(|(name, count)| ((*name).to_owned(), *count)));
        writeln!(f, "rounds          {rounds}")?;
        writeln!(f, "faults          {}: {}", self.injected(), list(&mut self.faults.clone().into_iter()))?;
        writeln!(f, "calls           {}: {}", self.calls, list(&mut self.by_source.clone().into_iter()))?;
        writeln!(f, "holds           {}", self.holds)?;
        writeln!(
            f,
            "checked         {} answers exactly, {} but for unanswered calls, {} by their bound",
            self.exact, self.loose, self.unknown
        )?;
        writeln!(f, "phantom units   {}", self.phantoms)?;
        writeln!(f, "keys            {}, {} without a TTL", self.keys, self.orphans)?;
        writeln!(f, "panics          {}", self.panics)?;
        writeln!(f, "not replayed    {} rounds in which Sentinels failed over unasked", self.unasked_switches)?;
        let slowest = self.slowest.iter().map(|(world, micros)| ((*world).to_owned() + " ms", micros / 1000));
        writeln!(
            f,
            "slowest         {} (this process was woken up to {} ms late, a server up to {} ms: {} calls are not held against it)",
            list(&mut slowest.into_iter()),
            self.late / 1000,
            self.server_late / 1000,
            self.starved
        )?;
        let recovery = self.recovery.iter().map(|(kind, micros)| (kind.clone(), micros / 1000));
        writeln!(f, "back within ms  {}", list(&mut recovery.into_iter()))?;
        writeln!(f, "violations      {}", self.violations.len())?;
        for violation in &self.violations {
            writeln!(f, "  {violation}")?;
        }
        Ok(())
    }
}
