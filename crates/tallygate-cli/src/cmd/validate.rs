//! `tallygate validate`: whether policy files are valid, and if not, where and why.

use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;
use tallygate::policy::PolicySet;
use tallygate_config::{Config, Finding, Severity};

use crate::color::Color;
use crate::output::{self, Outcome, OutputArgs};
use crate::policies;
use crate::table::{count, thousands};

/// Check policy files: ours, and those of envoyproxy/ratelimit and limitador
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Files, folders of *.yaml and *.yml, or `-` for standard input; together they make one configuration
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Fail on warnings, too
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  tallygate validate tallygate.yaml
  tallygate validate /etc/tallygate --strict
  tallygate validate policies/*.yaml --json
  kubectl get configmap limits -o jsonpath='{.data.limits\\.yaml}' | tallygate validate -

Findings read FILE:LINE:COLUMN: error: MESSAGE, as compilers write them.
JSON: {\"valid\", \"policies\", \"domains\", \"findings\": [{\"severity\", \"file\", \"line\", \"column\",
\"message\", \"help\"}]}; policies and domains are null if there is an error.
Exit codes: 0 valid, 1 invalid, 2 error: a file cannot be read.";

#[derive(Serialize)]
struct Json<'a> {
    valid: bool,
    policies: Option<u64>,
    domains: Option<Vec<&'a str>>,
    findings: &'a [Finding],
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let texts = policies::read(&args.files)?;
    let (policies, mut findings) = match Config::from_texts(&texts) {
        // `serve` would refuse it, so it is as wrong as the rest.
        Ok(config) => match policies::invalid_store(&config) {
            Some(invalid) => (None, config.warnings.into_iter().chain([invalid]).collect()),
            None => (Some(config.policies), config.warnings),
        },
        Err(findings) => (None, findings.into_iter().collect::<Vec<_>>()),
    };
    findings.extend(policies::skipped(&args.files));
    let valid = policies.is_some() && (findings.is_empty() || !args.strict);
    if args.output.json {
        let domains = policies.as_ref().map(|policies| policies.domains().iter().map(|domain| domain.name()).collect());
        let policies = policies.as_ref().map(|policies| policies.policies().count() as u64);
        output::write_json(out, &Json { valid, policies, domains, findings: &findings })?;
    } else {
        write_text(out, valid, policies.as_ref(), &findings)?;
    }
    Ok(if valid { Outcome::Allowed } else { Outcome::Denied })
}

fn write_text(
    out: &mut impl Write,
    valid: bool,
    policies: Option<&PolicySet>,
    findings: &[Finding],
) -> anyhow::Result<()> {
    for finding in findings {
        writeln!(out, "{}", policies::text(finding))?;
    }
    let of = |severity| findings.iter().filter(|finding| finding.severity == severity).count() as u64;
    let (errors, warnings) = (of(Severity::Error), of(Severity::Warning));
    let mut parts = Vec::new();
    parts.extend(policies.map(|policies| {
        let (number, domains) = (policies.policies().count() as u64, policies.domains().len() as u64);
        let noun = if number == 1 { "policy" } else { "policies" };
        format!("{} {noun} in {}", thousands(number), count(domains, "domain"))
    }));
    parts.extend((errors > 0).then(|| count(errors, "error")));
    parts.extend((warnings > 0).then(|| count(warnings, "warning")));
    let color = Color::for_stdout();
    let summary = parts.join(", ");
    Ok(writeln!(out, "{}", if valid { color.good(&summary) } else { color.bad(&summary) })?)
}
