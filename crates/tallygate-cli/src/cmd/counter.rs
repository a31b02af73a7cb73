//! `tallygate counter`: atomic counters.

use std::io::Write;
use std::sync::Arc;

use anyhow::anyhow;
use clap::Subcommand;
use serde_json::{Value, json};
use tallygate::{Counter, CounterName, CounterValue};

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

A counter that does not exist is 0. Exit codes: 0 done, 2 error.";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Add one
    Incr {
        #[command(flatten)]
        of: Of,
        #[command(flatten)]
        ttl: TtlArg,
    },
    /// Take one off
    Decr {
        #[command(flatten)]
        of: Of,
        #[command(flatten)]
        ttl: TtlArg,
    },
    /// Add a whole number
    IncrBy {
        #[command(flatten)]
        of: Of,
        /// How much to add
        #[arg(value_name = "N", allow_negative_numbers = true)]
        delta: String,
        #[command(flatten)]
        ttl: TtlArg,
    },
    /// Take a whole number off
    DecrBy {
        #[command(flatten)]
        of: Of,
        /// How much to take off
        #[arg(value_name = "N", allow_negative_numbers = true)]
        delta: String,
        #[command(flatten)]
        ttl: TtlArg,
    },
    /// Add a number with a fraction
    IncrByFloat {
        #[command(flatten)]
        of: Of,
        /// How much to add
        #[arg(value_name = "N", allow_negative_numbers = true)]
        delta: String,
        #[command(flatten)]
        ttl: TtlArg,
    },
    /// Print what it holds
    Get {
        #[command(flatten)]
        of: Of,
    },
    /// Forget it, and print what it held
    Delete {
        #[command(flatten)]
        of: Of,
    },
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

/// How long a counter lives.
#[derive(Debug, clap::Args)]
struct TtlArg {
    /// How long the counter lives, if this call creates it: 250ms, 30s, 5min, 1h, 2d [default: until deleted]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    ttl: Option<String>,
}

pub(crate) async fn run(args: Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let (of, value) = match args.verb {
        Verb::Incr { of, ttl } => {
            let sum = of.counter(Some(&ttl)).await?.incr().await?;
            (of, CounterValue::Integer(sum))
        }
        Verb::Decr { of, ttl } => {
            let sum = of.counter(Some(&ttl)).await?.decr().await?;
            (of, CounterValue::Integer(sum))
        }
        Verb::IncrBy { of, delta, ttl } => {
            let delta = integer(&delta)?;
            let sum = of.counter(Some(&ttl)).await?.incr_by(delta).await?;
            (of, CounterValue::Integer(sum))
        }
        Verb::DecrBy { of, delta, ttl } => {
            let delta = integer(&delta)?;
            let sum = of.counter(Some(&ttl)).await?.decr_by(delta).await?;
            (of, CounterValue::Integer(sum))
        }
        Verb::IncrByFloat { of, delta, ttl } => {
            let delta = float(&delta)?;
            let sum = of.counter(Some(&ttl)).await?.incr_by_float(delta).await?;
            (of, CounterValue::Float(sum))
        }
        Verb::Get { of } => {
            let value = of.counter(None).await?.get().await?;
            (of, value)
        }
        Verb::Delete { of } => {
            let held = of.counter(None).await?.delete().await?;
            (of, held)
        }
    };
    of.print(out, value)?;
    Ok(Outcome::Allowed)
}

impl Of {
    async fn counter(&self, ttl: Option<&TtlArg>) -> anyhow::Result<Counter<tallygate_redis::AnyStore>> {
        let ttl = ttl.and_then(|arg| arg.ttl.as_deref()).map(duration::parse).transpose()?;
        // Read before a store is opened: a bad name needs no server to be refused.
        let name = CounterName::new(self.name.as_str())?;
        let store = Arc::new(self.store.open().await?);
        let mut counter = Counter::new(Arc::clone(&store), name.as_str())?;
        if let Some(ttl) = ttl {
            counter = counter.expires_after(ttl)?;
        }
        note_if_forgotten(&store);
        Ok(counter)
    }

    fn print(&self, out: &mut impl Write, value: CounterValue) -> std::io::Result<()> {
        if !self.output.json {
            return writeln!(out, "{value}");
        }
        let number = match value {
            CounterValue::Integer(value) => Value::from(value),
            CounterValue::Float(value) => Value::from(value),
        };
        output::write_json(out, &json!({ "name": self.name, "value": number }))
    }
}

fn integer(text: &str) -> anyhow::Result<i64> {
    text.parse().map_err(|_| {
        anyhow!("`{text}` is no 64-bit whole number: write for example 5 or -5; fractions go with incr-by-float")
    })
}

fn float(text: &str) -> anyhow::Result<f64> {
    text.parse().map_err(|_| anyhow!("`{text}` is no number: write for example 0.25 or -3"))
}
