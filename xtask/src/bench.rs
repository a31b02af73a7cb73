//! Measurements, side by side with peers.

use anyhow::{Result, bail};

use crate::{run, setup};

/// `embedded|middleware|redis|hot-key [arguments]`
pub fn run(args: &[String]) -> Result<()> {
    let Some("embedded" | "middleware" | "redis" | "hot-key") = args.first().map(String::as_str) else {
        bail!("expected `bench embedded`, `bench middleware`, `bench redis` or `bench hot-key`");
    };
    let ready = setup::run()?;
    let (counts, rest): (Vec<&String>, Vec<&String>) = args.iter().partition(|arg| *arg == "--allocations");
    let mut command = run::cargo(&["run", "--release", "--manifest-path", "bench/Cargo.toml"]);
    if !counts.is_empty() {
        command.args(["--features", "allocations"]);
    }
    ready.apply(command.arg("--").args(rest));
    run::run(&mut command)
}
