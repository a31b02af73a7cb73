//! `tallygate peek`: look without taking.

use std::io::Write;

use tallygate::Limiter;

use crate::output::{self, Outcome, OutputArgs};
use crate::question::{CostArg, QuestionArgs};
use crate::store::{StoreArgs, note_if_forgotten};

/// Say what `check` would answer, and charge nothing
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    question: QuestionArgs,
    #[command(flatten)]
    cost: CostArg,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  tallygate peek alice --limit 100/min --store redis://127.0.0.1:6379
  tallygate peek alice --limit 100/min --cost 20 --json

Exit codes: 0 it would be allowed, 1 it would be denied, 2 error.";

pub(crate) async fn run(args: Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let question = args.question.with_cost(&args.cost)?;
    let checks = question.checks()?;
    tallygate::validate(&checks)?;
    let limiter = Limiter::new(args.store.open().await?);
    let decision = limiter.peek(&checks).await?;
    output::write_decision(out, &args.output, &question.policies(), &decision)?;
    note_if_forgotten(limiter.store());
    Ok(Outcome::from(&decision))
}
