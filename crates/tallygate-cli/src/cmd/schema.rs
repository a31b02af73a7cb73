//! `tallygate schema`: what editors need to know of our policy files.

use std::io::Write;

use crate::output::Outcome;

/// Print the JSON Schema of policy files, for editors
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {}

const EXAMPLES: &str = "\
Examples:
  tallygate schema > tallygate.schema.json

An editor with a YAML language server then completes and checks a file that begins with
  # yaml-language-server: $schema=tallygate.schema.json

It is about Tallygate's own format. `tallygate validate` knows more than a schema can say, and reads
the files of envoyproxy/ratelimit and limitador too.";

pub(crate) fn run(_: &Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    writeln!(out, "{:#}", tallygate_config::schema())?;
    Ok(Outcome::Allowed)
}
