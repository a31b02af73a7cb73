//! `tallygate counter`: atomic counters.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use clap::Subcommand;
use serde::Serialize;
use tallygate::Counter;
use tallygate::counter::{CounterName, CounterValue};

use crate::duration;
use crate::output::{self, Outcome, OutputArgs};
use crate::store::{StoreArgs, note_if_forgotten};

/// Add to, read and delete atomic counters
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, subcommand_required = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

const EXAMPLES: &str = "\
Examples:
  tallygate counter incr visits --ttl 1h --store redis://127.0.0.1:6379
  tallygate counter incr-by balance -5
  tallygate counter incr-by-float seconds 0.25 --json
  tallygate counter get visits

A counter that does not exist is 0. Exit codes: 0 done, 2 error, 3 the store is unreachable.";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Add one
    Incr(Change<()>),
    /// Subtract one
    Decr(Change<()>),
    /// Add a whole number
    IncrBy(Change<Whole>),
    /// Subtract a whole number
    DecrBy(Change<Whole>),
    /// Add a number with a fraction
    IncrByFloat(Change<Fraction>),
    /// Print its value
    Get(Of),
    /// Delete it, and print its last value
    Delete(Of),
}

/// Which counter, where, and how to print it.
#[derive(Debug, clap::Args)]
struct Of {
    /// The name of the counter
    name: String,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, clap::Args)]
struct Change<N: clap::Args> {
    #[command(flatten)]
    of: Of,
    #[command(flatten)]
    by: N,
    /// The TTL of the counter, if this call creates it: 250ms, 30s, 5min, 1h30m, 2d [default: none]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = time_to_live)]
    ttl: Option<Duration>,
}

#[derive(Debug, clap::Args)]
struct Whole {
    /// How much
    #[arg(value_name = "N", allow_negative_numbers = true, value_parser = integer)]
    number: i64,
}

#[derive(Debug, clap::Args)]
struct Fraction {
    /// How much
    #[arg(value_name = "N", allow_negative_numbers = true, value_parser = float)]
    number: f64,
}

pub(crate) async fn run(args: Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let (of, ttl) = match &args.verb {
        Verb::Incr(Change { of, ttl, .. }) | Verb::Decr(Change { of, ttl, .. }) => (of, *ttl),
        Verb::IncrBy(Change { of, ttl, .. }) | Verb::DecrBy(Change { of, ttl, .. }) => (of, *ttl),
        Verb::IncrByFloat(Change { of, ttl, .. }) => (of, *ttl),
        Verb::Get(of) | Verb::Delete(of) => (of, None),
    };
    // Checked before a store is opened: an invalid name is refused without a server.
    CounterName::new(of.name.as_str())?;
    let store = Arc::new(of.store.open().await?);
    let mut counter = Counter::new(Arc::clone(&store), of.name.as_str())?;
    if let Some(ttl) = ttl {
        counter = counter.expires_after(ttl)?;
    }
    note_if_forgotten(&store);
    let value = match &args.verb {
        Verb::Incr(_) => CounterValue::Integer(counter.incr().await?),
        Verb::Decr(_) => CounterValue::Integer(counter.decr().await?),
        Verb::IncrBy(change) => CounterValue::Integer(counter.incr_by(change.by.number).await?),
        Verb::DecrBy(change) => CounterValue::Integer(counter.decr_by(change.by.number).await?),
        Verb::IncrByFloat(change) => CounterValue::Float(counter.incr_by_float(change.by.number).await?),
        Verb::Get(_) => counter.get().await?,
        Verb::Delete(_) => counter.delete().await?,
    };
    match (of.output.json, value) {
        (false, value) => writeln!(out, "{value}")?,
        (true, CounterValue::Integer(value)) => output::write_json(out, &Json { name: &of.name, value })?,
        (true, CounterValue::Float(value)) => output::write_json(out, &Json { name: &of.name, value })?,
    }
    Ok(Outcome::Allowed)
}

#[derive(Serialize)]
struct Json<'a, T> {
    name: &'a str,
    value: T,
}

fn time_to_live(text: &str) -> anyhow::Result<Duration> {
    let ttl = duration::parse(text)?;
    ensure!(!ttl.is_zero(), "a TTL must be 1 ms to 100 years: leave --ttl out for a counter that does not expire");
    Ok(ttl)
}

fn integer(text: &str) -> anyhow::Result<i64> {
    text.parse().map_err(|_| {
        anyhow!("`{text}` is not a 64-bit whole number: write for example 5 or -5, and use incr-by-float for fractions")
    })
}

fn float(text: &str) -> anyhow::Result<f64> {
    text.parse().map_err(|_| anyhow!("`{text}` is not a number: write for example 0.25 or -3"))
}
