//! Named faults under full load, and what they cost: figures to read, and bounds that must hold.
//!
//! A drill is a world, a load and faults that are chosen, not drawn. It uses the callers, the faults and the checker of the
//! random rounds. Times are printed and not judged: they belong to the machine.

mod figures;
mod hang;
mod outage;
mod policies;

use std::fmt;
use std::time::Duration;

use tallygate::{Algorithm, Limit};
use tallygate_testkit::Flavour;

use crate::fault::Fault;
use crate::round::Outcome;
use crate::schedule::{Load, Persistence, Schedule, Step, WorldKind};

/// A drill by its name.
#[derive(Debug, Clone, Copy)]
pub struct Drill {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// How long its faults last, in seconds, if nothing else is asked for.
    seconds: u64,
    run: fn(u64) -> Sheet,
}

/// All of them.
pub const ALL: [Drill; 6] = [
    Drill { name: "hang", about: "Redis hangs under full load", seconds: 5, run: hang::hang },
    Drill { name: "flood", about: "3,000 connections on a healthy store", seconds: 5, run: hang::flood },
    Drill { name: "sentinel", about: "failovers by Sentinels", seconds: 4, run: outage::sentinel },
    Drill { name: "cluster", about: "failovers in a cluster", seconds: 4, run: outage::cluster },
    Drill { name: "shard", about: "one of three shards is dead", seconds: 60, run: outage::shard },
    Drill { name: "policies", about: "10,000 policies that all have to be matched", seconds: 5, run: policies::run },
];

impl Drill {
    /// Runs it, and returns what it found.
    #[must_use]
    pub fn run(&self, seconds: Option<u64>) -> Sheet {
        (self.run)(seconds.unwrap_or(self.seconds))
    }
}

/// The figures of a drill.
#[derive(Debug, Default)]
pub struct Sheet {
    rows: Vec<[String; 4]>,
    broken: u64,
}

impl Sheet {
    /// A headline.
    fn part(&mut self, what: impl Into<String>) {
        self.rows.push([format!("-- {}", what.into()), String::new(), String::new(), String::new()]);
    }

    /// A figure, beside what it can be compared with.
    fn figure(&mut self, what: impl Into<String>, measured: impl fmt::Display, beside: impl fmt::Display) {
        self.rows.push([what.into(), measured.to_string(), beside.to_string(), String::new()]);
    }

    /// A number that must be at most this.
    fn at_most(&mut self, what: impl Into<String>, measured: u64, bound: u64) {
        self.judge(what, measured, format!("at most {bound}"), measured <= bound);
    }

    fn judge(&mut self, what: impl Into<String>, measured: impl fmt::Display, bound: String, held: bool) {
        self.broken += u64::from(!held);
        let held = if held { "held" } else { "BROKEN" };
        self.rows.push([what.into(), measured.to_string(), bound, held.to_owned()]);
    }

    /// What the checker of the random rounds says of one round.
    fn checked(&mut self, outcome: &Outcome) {
        let checked = &outcome.checked;
        let (late, broken): (Vec<_>, Vec<_>) = checked.violations.iter().partition(|one| is_about_time(one.check));
        let what = format!("answers compared: {} exactly, {} in part", checked.exact, checked.loose + checked.unknown);
        self.judge(what, format!("{} wrong", broken.len()), "0 wrong".to_owned(), broken.is_empty());
        for violation in broken.iter().chain(&late) {
            self.figure(format!("   {}", violation.check), &violation.what, "");
        }
        self.at_most("keys without a TTL", outcome.orphans, 0);
        self.figure("this process was woken late by at most", figures::millis(outcome.late), "");
    }

    /// Whether every bound held.
    #[must_use]
    pub fn held(&self) -> bool {
        self.broken == 0
    }
}

/// Promises of the random rounds that a busy machine can break.
fn is_about_time(check: &str) -> bool {
    check == "deadline" || check.contains("fail fast") || check.contains("costs its own keys only")
}

impl fmt::Display for Sheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = ["figure", "measured", "bound or comparison", ""].map(str::to_owned);
        let rows: Vec<&[String; 4]> = std::iter::once(&header).chain(&self.rows).collect();
        // Headlines and lists may be longer than their column.
        let width = |column: usize| {
            let cells = rows.iter().map(|row| &row[column]).filter(|cell| !cell.starts_with("--"));
            cells.map(|cell| cell.chars().count()).filter(|count| *count <= 60).max().unwrap_or(0)
        };
        let widths = [0, 1, 2, 3].map(width);
        for row in rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// What one policy of a drill counts. The server answers for the first with `on_error: local`, for the second with
/// `deny`, for the third with `allow`.
fn limits(amount: u64) -> Vec<Limit> {
    let limit = |amount, seconds, algorithm| {
        Limit::builder(amount, Duration::from_secs(seconds)).algorithm(algorithm).build().expect("a common limit")
    };
    vec![
        limit(amount, 86_400, Algorithm::SlidingWindow),
        limit(amount, 86_400, Algorithm::SlidingCounter),
        limit(100, 1, Algorithm::SlidingWindow),
    ]
}

/// A schedule with one policy and one subject in each call, so that every answer has one source. The first two policies
/// have `amount` units a day.
fn schedule(world: WorldKind, served: bool, callers: usize, amount: u64, faults: &[Fault]) -> Schedule {
    let step = |(number, &fault): (usize, &Fault)| Step { number, quiet: 1500, fault, beside: None };
    let load = Load {
        callers,
        clients: 1,
        limits: limits(amount),
        subjects: 24,
        policies_per_call: 1,
        subjects_per_call: 1,
        cost: 1,
        hang_up: 0,
        pause: 0,
        // The defaults of the server and of the library.
        deadline: Duration::from_millis(if served { 15 } else { 50 }),
    };
    Schedule {
        seed: 1,
        world,
        flavour: Flavour::Redis,
        persistence: Persistence::None,
        min_replicas: false,
        replicas: 1,
        served,
        proxied: false,
        load,
        steps: faults.iter().enumerate().map(step).collect(),
        tail: 1500,
    }
}
