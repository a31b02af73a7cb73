//! What CI runs, and nothing else.

use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::{hygiene, minimum_rust, package, proto, run, setup, test};

type Step = (&'static str, Box<dyn FnOnce() -> Result<()>>);

/// Stops at the first step that fails. Prints how long each took: all of them together must stay below 30 minutes.
pub fn run() -> Result<()> {
    let start = now();
    // Downloads take their time, and leave the processor to the first steps, which need none of it.
    let ready = thread::spawn(|| setup::run().and_then(|_| setup::cargo_deny()).map(|_| ()));
    let steps: [Step; 10] = [
        ("format", Box::new(format)),
        ("clippy", Box::new(clippy)),
        ("doc", Box::new(doc)),
        ("setup", Box::new(|| ready.join().expect("setup does not panic"))),
        ("hygiene", Box::new(hygiene::run)),
        ("package", Box::new(package::run)),
        ("proto", Box::new(|| proto::run(&["--check".to_owned()]))),
        ("workflows", Box::new(workflows)),
        ("minimum-rust", Box::new(minimum_rust::run)),
        ("test", Box::new(|| test::run(&[]))),
    ];
    let mut took = Vec::new();
    for (name, step) in steps {
        let start = now();
        step().with_context(|| name)?;
        took.push(format!("{name} {} s", start.elapsed().as_secs()));
    }
    println!("xtask ci: {}", took.join(", "));
    println!("xtask ci: all green, in {} min {} s", start.elapsed().as_secs() / 60, start.elapsed().as_secs() % 60);
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "it measures other programs")]
fn now() -> Instant {
    Instant::now()
}

fn format() -> Result<()> {
    run::run(&mut run::cargo(&["fmt", "--all", "--check"]))?;
    // `cargo fmt` does not find the modules that a macro lists.
    let algorithms = run::root().join("crates/tallygate/src/algorithm");
    let files = std::fs::read_dir(algorithms)?.map(|file| Ok(file?.path())).collect::<Result<Vec<_>>>()?;
    run::run(Command::new("rustfmt").args(["--edition", "2024", "--check"]).args(files))
}

fn clippy() -> Result<()> {
    let clippy = |args: &[&str]| run::run(run::cargo(&["clippy"]).args(args).args(["--", "-D", "warnings"]));
    clippy(&["--workspace", "--all-targets"])?;
    clippy(&["-p", "tallygate-config", "--features", "cel", "--all-targets"])?;
    // Alone, and so without the feature that its tests enable.
    clippy(&["-p", "tallygate-tower", "--lib"])
}

fn doc() -> Result<()> {
    let mut doc = run::cargo(&["doc", "--no-deps", "--workspace"]);
    run::run(doc.env("RUSTDOCFLAGS", "-D warnings"))
}

fn workflows() -> Result<()> {
    let ready = setup::run()?;
    let linter = ready.path("TALLYGATE_ZIZMOR").context("zizmor, the linter of workflows, is needed")?;
    run::run(Command::new(linter).args(["--offline", ".github/workflows"]).current_dir(run::root()))
}
