//! The long comparison of the two implementations of each algorithm.

use anyhow::{Context, Result, bail};

use crate::{run, setup};

/// `--steps N [--algorithm A]`
pub fn run(args: &[String]) -> Result<()> {
    let (mut steps, mut algorithm) = (None, None);
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--steps" => {
                let text = value()?.replace('_', "");
                let number = text.parse::<u64>();
                steps = Some(number.with_context(|| format!("--steps {text}: not a count"))?);
            }
            "--algorithm" => algorithm = Some(value()?.clone()),
            other => bail!("unknown argument `{other}`: expected --steps N [--algorithm A]"),
        }
    }
    let steps = steps.context("--steps N is missing")?;

    let ready = setup::run()?;
    let mut command =
        run::cargo(&["test", "--release", "-p", "tallygate-redis", "--test", "tests", "--", "--nocapture", "twins::"]);
    command.env("TALLYGATE_TWINS_STEPS", steps.to_string());
    if let Some(algorithm) = algorithm {
        command.env("TALLYGATE_TWINS_ALGORITHM", algorithm);
    }
    ready.apply(&mut command);
    run::run(&mut command)
}
