//! Licences, sources and duplicates of our dependencies: cargo-deny checks them by the rules in `deny.toml`.

use std::process::Command;

use anyhow::Result;

use super::Findings;
use crate::{run, setup};

/// Arguments before `check`, and what is checked.
const CHECKS: [(&[&str], &[&str]); 2] = [
    // Of every crate in the lock file.
    (&[], &["licenses", "sources"]),
    // Duplicates of what is shipped, which these two never are. A target leaves out what only the interleaving tests need.
    (
        &[
            "--exclude",
            "tallygate-testkit",
            "--exclude",
            "tallygate-torture",
            "--exclude",
            "xtask",
            "--target",
            "x86_64-unknown-linux-gnu",
        ],
        &["bans"],
    ),
];

pub fn check(findings: &mut Findings) -> Result<()> {
    let Some(deny) = setup::cargo_deny()? else {
        findings.warn("licences, sources and duplicates of the dependencies were not checked".to_owned());
        return Ok(());
    };
    for (graph, names) in CHECKS {
        let mut command = Command::new(&deny);
        // A warning is an exception that `deny.toml` no longer needs.
        command.arg("--locked").args(graph).args(["check", "--deny", "warnings"]).args(names);
        if let Err(error) = run::run(command.current_dir(run::root())) {
            findings.fail(format!("{error:#}"));
        }
    }
    Ok(())
}
