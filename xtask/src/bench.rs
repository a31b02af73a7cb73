//! Measurements, side by side with peers.

use anyhow::{Result, bail};

use crate::{run, setup};

/// `embedded|redis [arguments]`
pub fn run(args: &[String]) -> Result<()> {
    let Some("embedded" | "redis") = args.first().map(String::as_str) else {
        bail!("expected `bench embedded` or `bench redis`");
    };
    let ready = setup::run()?;
    let mut command = run::cargo(&["run", "--release", "--manifest-path", "bench/Cargo.toml", "--"]);
    ready.apply(command.args(args));
    run::run(&mut command)
}
