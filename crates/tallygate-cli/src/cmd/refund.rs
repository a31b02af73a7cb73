//! `tallygate refund`: give back what a call was charged.

use std::io::Write;

use serde_json::{Value, json};
use tallygate::{Limiter, Timestamp};
use tallygate_http::sanitize;

use crate::output::{self, Outcome, OutputArgs};
use crate::question::{CostArg, QuestionArgs};
use crate::store::{StoreArgs, note_if_forgotten};

/// Give back units that a call was charged, and say how many counted
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    question: QuestionArgs,
    #[command(flatten)]
    cost: CostArg,
    /// When they were charged: `decided_at_us` of the decision. Units that no longer count are not given back
    #[arg(long, value_name = "MICROS")]
    decided_at: Option<u64>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  tallygate refund alice --limit 100/min --cost 20 --store redis://127.0.0.1:6379
  tallygate refund alice --limit 100/min --decided-at 1767225600000000

With several limits each is given back on its own. Exit codes: 0 done, 2 error.";

pub(crate) async fn run(args: Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let question = args.question.with_cost(&args.cost)?;
    let checks = question.checks()?;
    let cost = question.cost();
    let limiter = Limiter::new(args.store.open().await?);
    let mut refunds: Vec<Value> = Vec::new();
    for check in checks {
        let refunded = limiter.refund(check, args.decided_at.map(Timestamp::from_micros)).await?;
        let policy = check.key.policy();
        if args.output.json {
            refunds.push(json!({ "policy": policy, "cost": cost, "refunded": refunded }));
        } else {
            writeln!(out, "{}: {refunded} of {cost} given back", sanitize::text(policy))?;
        }
    }
    if args.output.json {
        output::write_json(out, &json!({ "refunds": refunds }))?;
    }
    note_if_forgotten(limiter.store());
    Ok(Outcome::Allowed)
}
