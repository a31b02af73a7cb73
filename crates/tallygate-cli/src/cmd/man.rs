//! `tallygate man`: manual pages.

use std::io::Write;

use anyhow::Context;

use crate::output::Outcome;

/// Print a manual page, in roff
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The command to print the page of [default: the program]
    command: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  tallygate man | man -l -
  tallygate man serve > tallygate-serve.1";

pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let mut program = crate::command();
    program.build();
    let page = match &args.command {
        None => program,
        Some(name) => {
            let command = program.find_subcommand(name).filter(|command| !command.is_hide_set());
            command.with_context(|| format!("unknown command `{name}`: `tallygate --help` lists them"))?.clone()
        }
    };
    clap_mangen::Man::new(page).render(out)?;
    Ok(Outcome::Allowed)
}
