//! `tallygate doctor`: what in a store could break a guarantee, and the setting that prevents it.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use tallygate_http::sanitize;
use tallygate_redis::{ConnectError, Diagnosis, Doctor, Finding, Severity, StoreUrl};

use crate::color::Color;
use crate::duration;
use crate::output::{self, Outcome, OutputArgs};
use crate::progress::Progress;
use crate::store::StoreArgs;
use crate::table;

/// Examine a Redis or Valkey store: settings, clocks, permissions, latency, replicas, slots
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// The deadline of your calls, which decisions are timed against
    #[arg(long, value_name = "DURATION", default_value = "15ms", value_parser = duration::parse)]
    deadline: Duration,
    #[command(flatten)]
    output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  tallygate doctor --store redis://127.0.0.1:6379
  tallygate doctor --store redis+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/main
  tallygate doctor --store redis+cluster://10.0.0.1:6379,10.0.0.2:6379 --deadline 50ms --json

It changes nothing but keys of its own, which expire within two seconds.
Exit codes: 0 no problem (there may be warnings), 1 problems, 2 error, 3 the store is unreachable.";

pub(crate) async fn run(args: Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let Some(url) = args.store.url() else {
        bail!("there is nothing to examine in the embedded store: name a server with --store redis://127.0.0.1:6379");
    };
    let option =
        |error: &ConnectError| if matches!(error, ConnectError::Prefix { .. }) { "--prefix" } else { "--store" };
    let doctor = Doctor::connect(url, &args.store.prefix, args.deadline).await;
    let doctor = doctor.map_err(|error| {
        let option = option(&error);
        anyhow::Error::from(error).context(option)
    })?;
    let mut progress = Progress::new();
    let diagnosis = doctor.examine(|step| progress.show(|| sanitize::text(step))).await;
    drop(progress);
    let place = url.parse::<StoreUrl>().context("--store")?.to_string();
    if args.output.json {
        output::write_json(out, &Json { store: &place, worst: diagnosis.worst().name(), diagnosis: &diagnosis })?;
    } else {
        write_text(out, &place, &diagnosis)?;
    }
    Ok(if diagnosis.worst() == Severity::Problem { Outcome::Denied } else { Outcome::Allowed })
}

#[derive(Serialize)]
struct Json<'a> {
    store: &'a str,
    worst: &'static str,
    #[serde(flatten)]
    diagnosis: &'a Diagnosis,
}

/// The same finding on several servers.
struct Group<'a> {
    first: &'a Finding,
    servers: Vec<&'a str>,
}

/// Findings that say the same of several servers are one.
fn grouped(findings: &[Finding], severity: Severity) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for finding in findings.iter().filter(|finding| finding.severity == severity) {
        let same = |group: &&mut Group<'_>| {
            let first = group.first;
            (first.check, &first.consequence, &first.remedy) == (finding.check, &finding.consequence, &finding.remedy)
                && (finding.server.is_some() || first.found == finding.found)
        };
        let server = finding.server.as_deref();
        match groups.iter_mut().find(same) {
            Some(group) => group.servers.extend(server),
            None => groups.push(Group { first: finding, servers: server.into_iter().collect() }),
        }
    }
    groups
}

fn write_text(out: &mut impl Write, place: &str, diagnosis: &Diagnosis) -> io::Result<()> {
    let color = Color::for_stdout();
    writeln!(out, "{}\n", color.title(&sanitize::text(place)))?;
    for severity in [Severity::Problem, Severity::Warning] {
        for Group { first, servers } in grouped(&diagnosis.findings, severity) {
            write_finding(out, first, &servers, color)?;
        }
    }
    write_unknown(out, &diagnosis.findings, color)?;
    let passed = grouped(&diagnosis.findings, Severity::Ok);
    let width = passed.iter().map(|group| group.first.check.name().len()).max().unwrap_or(0);
    for Group { first, servers } in &passed {
        // Where a finding says otherwise of another server, the one that is well need not be listed.
        let more = servers.len().saturating_sub(1);
        let more =
            if more > 0 { format!(" (and {} alike)", table::count(more as u64, "server")) } else { String::new() };
        let tag = color.good("ok      ");
        writeln!(out, "{tag} {:<width$}  {}{more}", first.check.name(), sanitize::text(&first.found))?;
    }
    if !passed.is_empty() {
        writeln!(out)?;
    }
    let count = |severity| diagnosis.findings.iter().filter(|finding| finding.severity == severity).count() as u64;
    let (problems, warnings) = (count(Severity::Problem), count(Severity::Warning));
    let verdict = format!("{}, {}", table::count(problems, "problem"), table::count(warnings, "warning"));
    let verdict = if problems > 0 { color.bad(&verdict) } else { color.good(&verdict) };
    writeln!(out, "{verdict}")
}

fn write_finding(out: &mut impl Write, finding: &Finding, servers: &[&str], color: Color) -> io::Result<()> {
    let tag = format!("{:<8}", finding.severity.name());
    let tag = if finding.severity == Severity::Problem { color.bad(&tag) } else { color.over(&tag) };
    let at = match servers {
        [] => String::new(),
        [one] => format!("  {}", sanitize::text(one)),
        [first, rest @ ..] => format!("  {} and {} more", sanitize::text(first), rest.len()),
    };
    writeln!(out, "{tag} {}{}", color.title(finding.check.name()), color.faint(&at))?;
    let indent = "  ";
    writeln!(out, "{}", table::wrap(&sanitize::text(&finding.found), indent))?;
    let section = finding.guarantee.map(|section| format!(" (guarantees, section {section})")).unwrap_or_default();
    if !finding.consequence.is_empty() {
        let means = format!("means: {}{section}", sanitize::text(&finding.consequence));
        writeln!(out, "{}", table::wrap(&means, indent))?;
    }
    if !finding.remedy.is_empty() {
        let fix = format!("fix:   {}", sanitize::text(&finding.remedy));
        writeln!(out, "{}", table::wrap(&fix, indent))?;
    }
    writeln!(out)
}

/// What could not be found out, by the reason: one missing permission hides several checks.
fn write_unknown(out: &mut impl Write, findings: &[Finding], color: Color) -> io::Result<()> {
    let unknown: Vec<&Finding> = findings.iter().filter(|finding| finding.severity == Severity::Unknown).collect();
    let mut reasons: Vec<(&str, &str)> = Vec::new();
    for finding in &unknown {
        let reason = (finding.found.as_str(), finding.remedy.as_str());
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    for (found, remedy) in reasons {
        let of_reason = unknown.iter().filter(|finding| finding.found == found && finding.remedy == remedy);
        let mut checks: Vec<&str> = of_reason.map(|finding| finding.check.name()).collect();
        checks.dedup();
        writeln!(out, "{} {}", color.over("unknown "), color.title(&checks.join(", ")))?;
        writeln!(out, "{}", table::wrap(&sanitize::text(found), "  "))?;
        if !remedy.is_empty() {
            writeln!(out, "{}", table::wrap(&format!("fix:   {}", sanitize::text(remedy)), "  "))?;
        }
        writeln!(out)?;
    }
    Ok(())
}
