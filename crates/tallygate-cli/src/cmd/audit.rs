//! `tallygate audit`: the keys of a store, their memory, and whether every key expires.

use std::io::{self, Write};

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use tallygate_http::sanitize;
use tallygate_redis::{Audit, AuditReport, ServerReport, Sweep};

use crate::color::Color;
use crate::duration;
use crate::output::{self, Outcome, OutputArgs};
use crate::progress::Progress;
use crate::store::StoreArgs;
use crate::table::{self, Cell, Table};

/// Audit a Redis or Valkey store: keys without a TTL, memory by policy, eviction
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Set a TTL on keys that would never expire, except lasting counters and keys of other programs
    #[arg(long)]
    repair: bool,
    /// The TTL of repaired keys: at least the longest window of your limits, or usage is forgotten early
    #[arg(long, value_name = "DURATION", default_value = "1d", requires = "repair")]
    ttl: String,
    #[command(flatten)]
    output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  tallygate audit --store redis://127.0.0.1:6379
  tallygate audit --store redis+cluster://10.0.0.1:6379,10.0.0.2:6379 --json
  tallygate audit --store redis://127.0.0.1:6379 --repair --ttl 1h

It scans in small steps over a connection of its own, and changes nothing without --repair.
Exit codes: 0 every key expires, 1 some never would, 2 error, 3 the store is unreachable.";

/// Rows of the tables of policies and of keys.
const ROWS: usize = 10;

pub(crate) async fn run(args: Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let Some(url) = args.store.url() else {
        bail!("there is nothing to audit in the embedded store: name a server with --store redis://127.0.0.1:6379");
    };
    let mut sweep = Sweep::of(&args.store.prefix).context("--prefix")?;
    if args.repair {
        let ttl = duration::parse(&args.ttl).context("--ttl")?;
        ensure!(!ttl.is_zero(), "--ttl 0 would delete what it repairs: use at least 1s");
        sweep.repair = Some(ttl);
    }
    let audit = Audit::connect(url).await.context("--store")?;
    let mut progress = Progress::new();
    let report = audit.run(&sweep, |keys| progress.show(|| format!("{} seen", table::count(keys, "key")))).await?;
    drop(progress);
    if args.output.json {
        output::write_json(out, &Json { prefix: &args.store.prefix, report: &report })?;
    } else {
        write_text(out, &args, &report)?;
    }
    Ok(if report.orphans > report.repaired { Outcome::Denied } else { Outcome::Allowed })
}

#[derive(Serialize)]
struct Json<'a> {
    prefix: &'a str,
    #[serde(flatten)]
    report: &'a AuditReport,
}

fn write_text(out: &mut impl Write, args: &Args, report: &AuditReport) -> io::Result<()> {
    let color = Color::for_stdout();
    let seen =
        format!("{} under {}:*, {}", table::count(report.keys, "key"), args.store.prefix, table::bytes(report.bytes));
    writeln!(out, "{}\n", color.title(&seen))?;
    write_servers(out, &report.servers, color)?;
    write_usage(out, report, color)?;
    for server in &report.servers {
        if let Some(warning) = &server.warning {
            writeln!(out, "{} {}", color.bad("warning:"), sanitize::text(warning))?;
        }
    }
    if report.lasting_counters > 0 {
        let counters = table::count(report.lasting_counters, "counter");
        writeln!(out, "{counters} without a TTL, as they were created without --ttl")?;
    }
    write_orphans(out, args, report, color)
}

fn write_servers(out: &mut impl Write, servers: &[ServerReport], color: Color) -> io::Result<()> {
    let mut rows = Table::default();
    for server in servers {
        let memory = match server.maxmemory {
            0 => format!("{}, no maximum", table::bytes(server.used_memory)),
            most => format!("{} of {}", table::bytes(server.used_memory), table::bytes(most)),
        };
        rows.row(vec![
            Cell::word(sanitize::text(&server.address)),
            Cell::word(sanitize::text(&server.version)),
            Cell::number(server.keys),
            Cell::figure(memory),
            Cell::word(sanitize::text(&server.maxmemory_policy)).good_if(!server.evicts()),
            Cell::fault(server.evicted_keys),
        ]);
    }
    rows.write(out, &["server", "version", "keys", "memory used", "maxmemory-policy", "evicted"], color)
}

/// Blank for what is no hold: a column without values is left out.
fn held(number: u64) -> Cell {
    if number == 0 { Cell::figure("") } else { Cell::number(number) }
}

fn write_usage(out: &mut impl Write, report: &AuditReport, color: Color) -> io::Result<()> {
    if report.keys == 0 {
        return Ok(());
    }
    let mut rows = Table::default();
    for usage in report.usage.iter().take(ROWS) {
        let policy = usage.policy.as_deref().map_or_else(|| "(others)".to_owned(), sanitize::text);
        let each = usage.bytes / usage.keys.max(1);
        rows.row(vec![
            Cell::word(policy),
            Cell::word(usage.kind),
            Cell::number(usage.keys),
            Cell::figure(table::bytes(usage.bytes)),
            Cell::figure(table::bytes(each)),
            Cell::fault(usage.orphans),
            held(usage.open_holds),
            held(usage.held),
        ]);
    }
    let more = report.usage.len().saturating_sub(ROWS);
    if more > 0 {
        rows.note(&format!("and {more} more, all of them with --json"));
    }
    rows.write(out, &["policy", "algorithm", "keys", "memory", "each", "no TTL", "open holds", "held"], color)?;
    let mut rows = Table::default();
    for large in report.largest.iter().take(ROWS / 2) {
        rows.row(vec![Cell::figure(table::bytes(large.bytes)), Cell::word(sanitize::text(&large.key))]);
    }
    rows.write(out, &["largest", "key"], color)
}

fn write_orphans(out: &mut impl Write, args: &Args, report: &AuditReport, color: Color) -> io::Result<()> {
    if report.orphans == 0 {
        let verdict = match (report.keys, report.lasting_counters) {
            (0, _) => "there are no such keys: is this the right --prefix?",
            (_, 0) => "every key expires",
            _ => "every other key expires",
        };
        return writeln!(out, "{}", color.good(verdict));
    }
    let would = format!("{} would never expire:", table::count(report.orphans, "key"));
    writeln!(out, "{}", color.bad(&would))?;
    for key in &report.listed {
        writeln!(out, "  {}", sanitize::text(key))?;
    }
    let more = report.orphans.saturating_sub(report.listed.len() as u64);
    if more > 0 {
        writeln!(out, "  and {} more", table::thousands(more))?;
    }
    if report.foreign > 0 {
        let foreign = table::thousands(report.foreign);
        writeln!(out, "{foreign} of them not in the form of tallygate's keys: --repair does not change those")?;
    }
    let ours = report.orphans - report.foreign;
    if args.repair {
        let repaired = format!("{} of {} given a TTL of {}", report.repaired, table::count(ours, "key"), args.ttl);
        writeln!(out, "{}", color.good(&repaired))?;
    } else if ours > 0 {
        writeln!(out, "tallygate never writes such keys: find out what does, then add --repair")?;
    }
    Ok(())
}
