//! The long comparison of the algorithms with the model of the documents.

use anyhow::{Context, Result, bail};

use crate::run;

const USAGE: &str = "--decisions N [--seed S] [--algorithm A] [--threads N]";

/// Each option becomes a variable of the test.
pub fn run(args: &[String]) -> Result<()> {
    let mut command = run::cargo(&["test", "--release", "-p", "tallygate", "--test", "tests", "--"]);
    command.args(["--nocapture", "model::every_answer_is_that_of_the_model"]);
    let mut decisions = false;
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| format!("{word} needs a value"))?;
        let variable = match word.as_str() {
            "--decisions" => "TALLYGATE_MODEL_DECISIONS",
            "--seed" => "TALLYGATE_MODEL_SEED",
            "--algorithm" => "TALLYGATE_MODEL_ALGORITHM",
            "--threads" => "TALLYGATE_MODEL_THREADS",
            other => bail!("unknown argument `{other}`: expected {USAGE}"),
        };
        decisions |= word == "--decisions";
        command.env(variable, value.replace('_', if word == "--algorithm" { "_" } else { "" }));
    }
    if !decisions {
        bail!("--decisions N is missing: expected {USAGE}");
    }
    run::run(&mut command)
}
