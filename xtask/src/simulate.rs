//! The simulation of the Redis client with every cut of a connection: CI has a few of them.

use anyhow::{Result, bail};

use crate::run;

/// No arguments.
pub fn run(args: &[String]) -> Result<()> {
    if let Some(word) = args.first() {
        bail!("unknown argument `{word}`: expected none");
    }
    let mut command =
        run::cargo(&["test", "--release", "-p", "tallygate-redis", "--lib", "simulation::", "--", "--nocapture"]);
    run::run(command.env("TALLYGATE_SIMULATE_ALL", "1"))
}
