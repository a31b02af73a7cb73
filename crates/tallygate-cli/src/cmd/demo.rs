//! `tallygate demo`: the same traffic through every algorithm, side by side.

mod picture;
mod traffic;
mod trial;

use std::io::Write;

use anyhow::{bail, ensure};
use tallygate::{Algorithm, Limit, LimitBuilder};

use crate::color::Color;
use crate::duration;
use crate::output::Outcome;
use traffic::Traffic;
use trial::Trial;

/// Draw what each algorithm admits of the same bursty traffic
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The limit to hold against the traffic, which scales with it; the burst is for token_bucket alone
    #[arg(short, long, value_name = "LIMIT", default_value = "10/10s", allow_hyphen_values = true)]
    limit: String,
}

const EXAMPLES: &str = "\
Examples:
  tallygate demo
  tallygate demo --limit 100/min
  tallygate demo --limit \"10/10s burst 3\"

Time is simulated: nothing waits, and the same limit always draws the same picture.
Colours are for terminals only; NO_COLOR turns them off.";

pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let limits = limits(&args.limit)?;
    let (amount, window) = (limits[0].amount(), limits[0].window());
    let traffic = Traffic::for_limit(amount, window);
    let trials = limits.iter().map(|limit| Trial::run(limit, &traffic)).collect::<Result<Vec<_>, _>>()?;
    let color = Color::for_stdout();

    let calls = traffic.calls.len();
    let each = if traffic.cost == 1 { String::new() } else { format!(", each of {} units", traffic.cost) };
    let title = format!("One limit, {amount} per {}; the same {calls} calls{each}.", duration::render(window));
    writeln!(out, "\n{}\n", color.title(&title))?;
    picture::draw(out, &traffic, &trials, color)?;
    explain(out, &trials, color)?;
    Ok(Outcome::Allowed)
}

fn limits(text: &str) -> anyhow::Result<Vec<Limit>> {
    let builder: LimitBuilder = text.parse()?;
    if let Some(named) = builder.chosen_algorithm() {
        bail!("the demo runs every algorithm: leave `{named}` out of the limit");
    }
    let bucket = builder.build()?;
    ensure!(bucket.amount() > 0, "a limit of zero admits nothing, so there is nothing to see: use at least 1");
    let limit = |algorithm| match algorithm {
        Algorithm::TokenBucket => Ok(bucket.clone()),
        _ => Limit::builder(bucket.amount(), bucket.window()).algorithm(algorithm).build(),
    };
    Ok(ORDER.into_iter().map(limit).collect::<Result<_, _>>()?)
}

/// From the one that admits most around a boundary to the exact one.
const ORDER: [Algorithm; 6] = [
    Algorithm::FixedWindow,
    Algorithm::FixedWindowFromFirstCall,
    Algorithm::TokenBucket,
    Algorithm::SlidingCounter,
    Algorithm::SlidingWindow,
    Algorithm::SlidingLog,
];

fn explain(out: &mut impl Write, trials: &[Trial], color: Color) -> anyhow::Result<()> {
    writeln!(out)?;
    let fixed = trials.iter().find(|trial| trial.limit.algorithm() == Algorithm::FixedWindow);
    if let Some(trial) = fixed {
        let (units, amount) = (picture::short(trial.worst.admitted), picture::short(trial.limit.amount()));
        writeln!(out, "fixed_window forgets everything at each │: two bursts that meet there both")?;
        writeln!(out, "pass, {units} in {} where {amount} were meant.", duration::render(trial.extent()))?;
    }
    let try_it = color.title("tallygate check alice --limit 3/min --repeat 5");
    writeln!(
        out,
        "token_bucket saves up while it is quiet, then admits at an even pace.\n\
         The sliding ones look back from every call: sliding_counter by an estimate,\n\
         sliding_window in steps, sliding_log call by call. A refused call costs nothing.\n\n\
         Which one to choose:  docs/guide/choosing.md\n\
         Try one yourself:     {try_it}"
    )?;
    Ok(())
}
