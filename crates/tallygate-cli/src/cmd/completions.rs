//! `tallygate completions`: completion scripts for shells.

use std::io::Write;

use clap_complete::Shell;

use crate::output::Outcome;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  tallygate completions bash > /etc/bash_completion.d/tallygate
  tallygate completions zsh > ~/.zfunc/_tallygate
  tallygate completions fish > ~/.config/fish/completions/tallygate.fish";

pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    // Into memory first: the generator panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command(), "tallygate", &mut script);
    out.write_all(&script)?;
    Ok(Outcome::Allowed)
}
