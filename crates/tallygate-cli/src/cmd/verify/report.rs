//! What `verify` prints: a row for each scenario, and what is wrong.

use std::io::Write;
use std::time::Duration;

use serde::Serialize;
use tallygate_http::sanitize;
use tallygate_redis::{ServerReport, StoreUrl};

use super::Args;
use super::judge::Finding;
use super::scenario::Scenario;
use crate::color::Color;
use crate::duration;
use crate::output;
use crate::table::{self, Cell, Table};

pub(crate) struct Report<'a> {
    args: &'a Args,
    servers: &'a [ServerReport],
    trials: &'a [(Scenario, Finding)],
    /// The findings of all scenarios together.
    pub(crate) total: Finding,
}

const HEADINGS: [&str; 6] = ["algorithm", "decisions", "per s", "wrong", "orphans", "verdict"];

#[derive(Serialize)]
struct Json<'a> {
    holds: bool,
    clients: usize,
    processes: usize,
    servers: Vec<Server<'a>>,
    scenes: Vec<Scene<'a>>,
}

#[derive(Serialize)]
struct Server<'a> {
    address: &'a str,
    version: &'a str,
    warning: Option<&'a str>,
}

#[derive(Serialize)]
struct Scene<'a> {
    name: &'a str,
    limits: Vec<String>,
    decisions: u64,
    admitted: u64,
    admitted_units: u64,
    tightest: Option<Tightest>,
    per_second: u64,
    violations: u64,
    mismatches: u64,
    orphans: Option<u64>,
    unknown: u64,
    failed: u64,
    first_fault: Option<&'a str>,
    holds: bool,
}

/// The span that came nearest to its bound.
#[derive(Serialize)]
struct Tightest {
    admitted: u64,
    bound: u64,
    from_us: u64,
    to_us: u64,
}

impl<'a> Report<'a> {
    pub(crate) fn new(args: &'a Args, servers: &'a [ServerReport], trials: &'a [(Scenario, Finding)]) -> Self {
        let mut total = Finding::default();
        trials.iter().for_each(|(_, finding)| total.add(finding.clone()));
        Self { args, servers, trials, total }
    }

    pub(crate) fn write(&self, out: &mut impl Write) -> anyhow::Result<()> {
        if self.args.output.json {
            return Ok(output::write_json(out, &self.to_json())?);
        }
        let color = Color::for_stdout();
        writeln!(out, "{}", color.title(&self.heading()))?;
        writeln!(out, "{}\n", color.faint(&self.players()))?;
        let mut rows = Table::default();
        for (scenario, finding) in self.trials {
            rows.row(row(scenario, finding));
            rows.note(&numbers(scenario, finding));
        }
        rows.write(out, &HEADINGS, color)?;
        self.write_faults(out, color)?;
        self.write_notes(out, color)?;
        self.write_verdict(out, color)
    }

    fn heading(&self) -> String {
        let place = match self.args.store.url() {
            // The URL is shown without its password.
            Some(url) => url.parse::<StoreUrl>().map_or_else(|_| "the server".to_owned(), |url| url.to_string()),
            None => "the embedded store".to_owned(),
        };
        format!("verify {}", sanitize::text(&place))
    }

    fn players(&self) -> String {
        let (clients, processes) = (self.args.clients, self.args.processes);
        let mut versions: Vec<&str> = self.servers.iter().map(|server| server.version.as_str()).collect();
        versions.sort_unstable();
        versions.dedup();
        let version = match self.servers.len() {
            0 => String::new(),
            1 => format!("{}, ", sanitize::text(&versions.join(", "))),
            masters => format!("{}, {masters} masters, ", sanitize::text(&versions.join(", "))),
        };
        match self.args.store.url() {
            Some(_) => format!("{version}{processes} processes of {clients} clients"),
            None => format!("{} threads, paced so that every answer fits in memory", clients * processes),
        }
    }

    /// How many of each kind, and the first of them.
    fn write_faults(&self, out: &mut impl Write, color: Color) -> anyhow::Result<()> {
        for (scenario, finding) in self.trials {
            if finding.holds() {
                continue;
            }
            writeln!(out, "{}", color.bad(scenario.title()))?;
            let faults = [
                (finding.violations, "call", "passed beyond the bound"),
                (finding.mismatches, "answer", "other than the algorithm gives"),
                (finding.orphans().unwrap_or(0), "key", "would never expire"),
            ];
            for (number, noun, what) in faults.into_iter().filter(|(number, ..)| *number > 0) {
                writeln!(out, "  {} {what}", table::count(number, noun))?;
            }
            if let Some(example) = &finding.example {
                writeln!(out, "  first: {}", sanitize::text(example))?;
            }
        }
        Ok(())
    }

    fn write_notes(&self, out: &mut impl Write, color: Color) -> anyhow::Result<()> {
        let mut note = |text: &str| {
            let text = table::wrap(&sanitize::text(text), "      ");
            writeln!(out, "{} {}", color.faint("note:"), text.trim_start())
        };
        let Finding { unknown, failed, failure, not_audited, .. } = &self.total;
        if *unknown > 0 {
            let calls = table::count(*unknown, "call");
            note(&format!("{calls} may have been charged or not: for their keys only the bound was checked"))?;
        }
        if let Some(failure) = failure {
            let calls = table::count(*failed, "call");
            note(&format!("{calls} got no answer and were not charged; the first: {failure}"))?;
        }
        if let Some(why) = not_audited {
            note(why)?;
        }
        for warning in self.servers.iter().filter_map(|server| server.warning.as_deref()) {
            note(warning)?;
        }
        Ok(())
    }

    fn write_verdict(&self, out: &mut impl Write, color: Color) -> anyhow::Result<()> {
        let decisions = self.total.decisions;
        if decisions == 0 {
            return Ok(());
        }
        if self.total.holds() {
            let all = table::count(decisions, "decision");
            writeln!(out, "{} {all}, no span above its bound, no wrong answer", color.good("holds:"))?;
            if let Some((keys @ 1.., _)) = self.total.audited {
                writeln!(out, "       all of {} have a TTL", table::count(keys, "key"))?;
            }
        } else {
            let broken = color.bad("broken:");
            writeln!(
                out,
                "{broken} the store lost, changed or miscounted states during the run\n\
                 Look for evictions, FLUSHALL, DEL, a failover or a clock that was set back."
            )?;
        }
        Ok(())
    }

    fn to_json(&self) -> Json<'_> {
        let server = |server: &'a ServerReport| Server {
            address: &server.address,
            version: &server.version,
            warning: server.warning.as_deref(),
        };
        Json {
            holds: self.trials.iter().all(|(_, finding)| finding.holds() && finding.decisions > 0),
            clients: self.args.clients,
            processes: self.args.processes,
            servers: self.servers.iter().map(server).collect(),
            scenes: self.trials.iter().map(|(scenario, finding)| scene(scenario, finding)).collect(),
        }
    }
}

fn scene<'a>(scenario: &'a Scenario, finding: &'a Finding) -> Scene<'a> {
    let tightest = finding.tightest.map(|span| Tightest {
        admitted: span.admitted,
        bound: span.allowed,
        from_us: span.from.as_micros(),
        to_us: span.to.as_micros(),
    });
    Scene {
        name: scenario.slug,
        limits: scenario.limits.iter().map(ToString::to_string).collect(),
        decisions: finding.decisions,
        admitted: finding.admitted,
        admitted_units: finding.units,
        tightest,
        per_second: per_second(finding),
        violations: finding.violations,
        mismatches: finding.mismatches,
        orphans: finding.orphans(),
        unknown: finding.unknown,
        failed: finding.failed,
        first_fault: finding.example.as_deref(),
        holds: finding.holds() && finding.decisions > 0,
    }
}

fn row(scenario: &Scenario, finding: &Finding) -> Vec<Cell> {
    vec![
        Cell::word(scenario.title()),
        Cell::number(finding.decisions),
        Cell::number(per_second(finding)),
        Cell::fault(finding.mismatches),
        finding.orphans().map_or_else(|| Cell::figure("-"), Cell::fault),
        match (finding.holds(), finding.decisions) {
            (true, 0) => Cell::word("no answer"),
            (true, _) => Cell::word("holds").good_if(true),
            (false, _) => Cell::word("BROKEN").good_if(false),
        },
    ]
}

/// The limit, and how near the calls came to it.
fn numbers(scenario: &Scenario, finding: &Finding) -> String {
    let worst = finding.tightest.map(|span| {
        let lasted = Duration::from_micros(span.to.as_micros() - span.from.as_micros());
        format!(", worst span {} of {} in {}", span.admitted, span.allowed, duration::render(lasted))
    });
    let admitted = table::thousands(finding.admitted);
    format!("{}: {admitted} admitted{}", scenario.written(), worst.unwrap_or_default())
}

fn per_second(finding: &Finding) -> u64 {
    let micros = u64::try_from(finding.took.as_micros()).unwrap_or(u64::MAX).max(1);
    finding.decisions.saturating_mul(1_000_000) / micros
}
