//! `tallygate reset`: forget what was used.

use std::io::Write;

use serde_json::{Value, json};
use tallygate::Limiter;
use tallygate_http::sanitize;

use crate::output::{self, Outcome, OutputArgs};
use crate::question::QuestionArgs;
use crate::store::{StoreArgs, note_if_forgotten};

/// Forget what a subject has used, and say whether there was anything to forget
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    question: QuestionArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  tallygate reset alice --limit 100/min --store redis://127.0.0.1:6379

The limit says which state is meant: each algorithm keeps its own. Exit codes: 0 done, 2 error.";

pub(crate) async fn run(args: Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let question = args.question.into_question()?;
    let checks = question.checks()?;
    let limiter = Limiter::new(args.store.open().await?);
    let mut resets: Vec<Value> = Vec::new();
    for check in checks {
        let existed = limiter.reset(check).await?;
        let policy = check.key.policy();
        if args.output.json {
            resets.push(json!({ "policy": policy, "existed": existed }));
        } else {
            let said = if existed { "forgotten" } else { "there was nothing to forget" };
            writeln!(out, "{}: {said}", sanitize::text(policy))?;
        }
    }
    if args.output.json {
        output::write_json(out, &json!({ "resets": resets }))?;
    }
    note_if_forgotten(limiter.store());
    Ok(Outcome::Allowed)
}
