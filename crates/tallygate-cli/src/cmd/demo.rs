//! `tallygate demo`: the same traffic under every algorithm, side by side.

mod picture;
mod traffic;
mod trial;

use std::io::Write;

use anyhow::{bail, ensure};
use tallygate::limit::LimitBuilder;
use tallygate::{Algorithm, Limit};

use crate::color::Color;
use crate::duration;
use crate::output::Outcome;
use traffic::Traffic;
use trial::Trial;

/// Draw what each algorithm admits of the same bursty traffic
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The limit, with which the traffic scales; the burst is for token_bucket only
    #[arg(short, long, value_name = "LIMIT", default_value = "10/10s", allow_hyphen_values = true)]
    limit: String,
}

const EXAMPLES: &str = "\
Examples:
  tallygate demo
  tallygate demo --limit 100/min
  tallygate demo --limit \"10/10s burst 3\"

Time is simulated: the same limit always draws the same picture, at once.";

pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let bucket = bucket(&args.limit)?;
    let (amount, window) = (bucket.amount(), bucket.window());
    let traffic = Traffic::for_limit(amount, window);
    let limits = limits(&bucket, traffic.cost)?;
    let trials = limits.iter().map(|limit| Trial::run(limit, &traffic)).collect::<Result<Vec<_>, _>>()?;
    let color = Color::for_stdout();

    let calls = traffic.calls.len();
    let each = if traffic.cost == 1 { String::new() } else { format!(", each of {} units", traffic.cost) };
    let title = format!("One limit, {amount} per {}; the same {calls} calls{each}.", duration::render(window));
    writeln!(out, "\n{}\n", color.title(&title))?;
    picture::draw(out, &traffic, &trials, color)?;
    if bucket.capacity() < traffic.cost {
        writeln!(out, "\ntoken_bucket is drawn with a burst of {}, the cost of one call.", traffic.cost)?;
    }
    explain(out, &trials, color)?;
    Ok(Outcome::Allowed)
}

/// The limit as it is written, for token_bucket.
fn bucket(text: &str) -> anyhow::Result<Limit> {
    let builder: LimitBuilder = text.parse()?;
    if let Some(named) = builder.chosen_algorithm() {
        bail!("the demo runs every algorithm: leave `{named}` out of the limit");
    }
    let bucket = builder.build()?;
    ensure!(bucket.amount() > 0, "a limit of zero admits nothing, so there is nothing to see: use at least 1");
    Ok(bucket)
}

/// The limit under each algorithm. Below the cost of one call a burst would admit nothing of the traffic.
fn limits(bucket: &Limit, cost: u64) -> anyhow::Result<Vec<Limit>> {
    let limit = |algorithm| {
        let builder = Limit::builder(bucket.amount(), bucket.window()).algorithm(algorithm);
        match algorithm {
            Algorithm::TokenBucket => builder.burst(bucket.capacity().max(cost)).build(),
            _ => builder.build(),
        }
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
        writeln!(out, "fixed_window starts over at each │: two bursts that meet there both pass,")?;
        writeln!(out, "{units} in {} where the limit is {amount}.", duration::render(trial.extent()))?;
    }
    let try_it = color.title("tallygate check alice --limit 3/min --repeat 5");
    writeln!(
        out,
        "token_bucket saves up while it is quiet, then admits at an even pace.\n\
         The sliding ones look back from every call: sliding_counter by an estimate,\n\
         sliding_window in steps, sliding_log call by call. A denied call costs nothing.\n\n\
         Which one to choose:  docs/guide/choosing.md\n\
         Try one yourself:     {try_it}"
    )?;
    Ok(())
}
