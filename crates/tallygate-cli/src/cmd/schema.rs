//! `tallygate schema`: the JSON Schema of policy files, for editors.

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

It describes Tallygate's own format. `tallygate validate` checks more than a schema can, and reads
the files of envoyproxy/ratelimit and limitador, too.";

pub(crate) fn run(_: &Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    out.write_all(tallygate_config::schema().as_bytes())?;
    Ok(Outcome::Allowed)
}
