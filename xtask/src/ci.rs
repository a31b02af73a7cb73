//! What CI runs, and nothing else.

use anyhow::Result;

use crate::{hygiene, proto, run, test};

/// Stops at the first step that fails.
pub fn run() -> Result<()> {
    run::run(&mut run::cargo(&["fmt", "--all", "--check"]))?;
    run::run(&mut run::cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    run::run(&mut run::cargo(&[
        "clippy",
        "-p",
        "tallygate-config",
        "--features",
        "cel",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))?;
    // Alone, and so without the feature that its tests turn on.
    run::run(&mut run::cargo(&["clippy", "-p", "tallygate-tower", "--lib", "--", "-D", "warnings"]))?;
    let mut doc = run::cargo(&["doc", "--no-deps", "--workspace"]);
    run::run(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    hygiene::run()?;
    proto::run(&["--check".to_owned()])?;
    test::run(&[])?;
    println!("xtask ci: all green");
    Ok(())
}
