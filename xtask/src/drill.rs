//! Named faults under full load, and what they cost.

use std::process::Command;

use anyhow::Result;

use crate::{run, setup};

/// Arguments go to the program. Times mean little without optimisation, so it is always on.
pub fn run(args: &[String]) -> Result<()> {
    let ready = setup::run()?;
    run::run(&mut run::cargo(&["build", "--release", "-p", "tallygate-cli", "-p", "tallygate-torture"]))?;
    let mut drill = Command::new(run::target().join("release/torture"));
    drill.arg("drill").args(args).current_dir(run::root());
    ready.apply(&mut drill);
    run::run(&mut drill)
}
