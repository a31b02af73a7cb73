//! `tallygate check`: charge a call if it fits.

use std::io::Write;

use anyhow::ensure;
use tallygate::Limiter;

use crate::output::{self, Outcome, OutputArgs};
use crate::question::{CostArg, QuestionArgs};
use crate::store::{StoreArgs, note_if_forgotten};

/// Charge a call if every limit has room for it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    question: QuestionArgs,
    #[command(flatten)]
    cost: CostArg,
    /// Make this many calls in a row; the exit code is that of the last
    #[arg(short, long, value_name = "N")]
    repeat: Option<u64>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  tallygate check alice --limit 3/min --repeat 5
  tallygate check alice --limit \"10/s burst 50\" --cost 20 --json
  tallygate check 203.0.113.7 --limit 10/s --limit \"1000/day sliding_window\"
  tallygate check alice --limit 100/min --store redis://127.0.0.1:6379

Exit codes: 0 allowed, 1 denied (nothing was charged), 2 error.";

pub(crate) async fn run(args: Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let question = args.question.with_cost(&args.cost)?;
    let (checks, policies) = (question.checks()?, question.policies());
    tallygate::validate(&checks)?;
    let Some(repeat) = args.repeat else {
        let limiter = Limiter::new(args.store.open().await?);
        let decision = limiter.check_all(&checks).await?;
        output::write_decision(out, &args.output, &policies, &decision)?;
        note_if_forgotten(limiter.store());
        return Ok(Outcome::from(&decision));
    };
    ensure!(repeat > 0, "--repeat 0 makes no call: say how many, for example --repeat 5");
    let limiter = Limiter::new(args.store.open().await?);
    let digits = repeat.to_string().len();
    let (mut last, mut allowed) = (Outcome::Allowed, 0);
    for number in 1..=repeat {
        let decision = limiter.check_all(&checks).await?;
        last = Outcome::from(&decision);
        allowed += u64::from(last == Outcome::Allowed);
        if args.output.json {
            output::write_decision(out, &args.output, &policies, &decision)?;
        } else {
            writeln!(out, "{number:>digits$}  {}", output::decision_text(&policies, &decision))?;
        }
    }
    if !args.output.json {
        writeln!(out, "{allowed} of {repeat} allowed, {} denied", repeat - allowed)?;
    }
    Ok(last)
}
