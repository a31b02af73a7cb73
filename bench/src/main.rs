//! Tallygate side by side with its peers: every figure is measured in one run, the contenders taking turns.
#![expect(clippy::disallowed_methods, reason = "a stopwatch needs the machine's own time")]

mod embedded;
mod memory;
mod middleware;
mod redis;
mod rivals;
mod table;
mod traffic;

use anyhow::{Context as _, Result, bail};

const USAGE: &str = "usage: bench embedded|middleware|redis|hot-key [--quick] [--rounds N]
  embedded   decisions in this process: ns per decision, two threads, bytes per key
  middleware requests through a router with a limit before it: ns more than without
  redis      decisions by a redis-server of our own: decisions per second and server CPU per decision
  hot-key    256 callers of one key in two processes: with allotments, shared runs, neither, and raw INCR; exactly the
             limit is admitted
  --quick    fewer rounds, less to fill: an impression, not a figure
  --rounds   how often every contender takes its turn";

/// How much to measure.
struct Effort {
    quick: bool,
    rounds: usize,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("embedded") => embedded::run(&effort(&args[1..])?),
        Some("middleware") => middleware::run(&effort(&args[1..])?),
        Some("redis") => redis::run(&effort(&args[1..])?),
        Some("hot-key") => redis::hot_key::run(&effort(&args[1..])?),
        // The callers of a process of their own, started by `hot-key`.
        Some(redis::hot_key::VERB) => redis::hot_key::call_here(&args[1..]),
        // A fresh process for each contender, started by `embedded`.
        Some(memory::VERB) => memory::measure_here(&args[1..]),
        _ => bail!("{USAGE}"),
    }
}

fn effort(args: &[String]) -> Result<Effort> {
    let (mut quick, mut rounds) = (false, None);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => quick = true,
            "--rounds" => {
                let count = args.next().context("--rounds needs a number")?;
                // The burst of the hot key lasts for 160.
                let valid = count.parse().ok().filter(|count| (1..=150).contains(count));
                rounds = Some(valid.context("--rounds needs a number from 1 to 150")?);
            }
            other => bail!("what is `{other}`?\n{USAGE}"),
        }
    }
    Ok(Effort { quick, rounds: rounds.unwrap_or(if quick { 3 } else { 15 }) })
}
