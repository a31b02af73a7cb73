//! What CI runs, and nothing else.

use std::process::Command;

use anyhow::{Context, Result};

use crate::{hygiene, minimum_rust, package, proto, run, setup, test};

/// Stops at the first step that fails.
pub fn run() -> Result<()> {
    run::run(&mut run::cargo(&["fmt", "--all", "--check"]))?;
    // `cargo fmt` does not find the modules that a macro lists.
    let algorithms = run::root().join("crates/tallygate/src/algorithm");
    let files = std::fs::read_dir(algorithms)?.map(|file| Ok(file?.path())).collect::<Result<Vec<_>>>()?;
    run::run(Command::new("rustfmt").args(["--edition", "2024", "--check"]).args(files))?;
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
    // Alone, and so without the feature that its tests enable.
    run::run(&mut run::cargo(&["clippy", "-p", "tallygate-tower", "--lib", "--", "-D", "warnings"]))?;
    let mut doc = run::cargo(&["doc", "--no-deps", "--workspace"]);
    run::run(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    hygiene::run()?;
    package::run()?;
    proto::run(&["--check".to_owned()])?;
    let ready = setup::run()?;
    let linter = ready.path("TALLYGATE_ZIZMOR").context("zizmor, the linter of workflows, is needed")?;
    run::run(Command::new(linter).args(["--offline", ".github/workflows"]).current_dir(run::root()))?;
    minimum_rust::run()?;
    test::run(&[])?;
    println!("xtask ci: all green");
    Ok(())
}
