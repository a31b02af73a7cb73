//! `tallygate explain`: which policies apply to a call, why, and what it would be answered.

mod call;
mod json;
mod text;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use tallygate::call::{Settlement, Taking, Verb};
use tallygate::live::{OverrideSet, Overrides as _};
use tallygate::policy::{Action, Ask, Descriptor, Domain, Excess, PolicySet, Reason, Ruling, Stores, Verdict};
use tallygate::words::nearest;
use tallygate::{Cost, Key};
use tallygate_redis::AnyStore;

pub(super) use call::descriptors;

use crate::output::{self, Outcome, OutputArgs};
use crate::policies;
use crate::store::StoreArgs;

/// Print which policies apply to a call, why, and what it would be answered; charges nothing
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The policies: a file, a folder, or `-` for standard input
    #[arg(short, long, value_name = "FILE|DIR", env = "TALLYGATE_CONFIG")]
    config: Option<PathBuf>,
    /// The domain that the call names [default: the only one of the configuration, or `default`]
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,
    /// The call: the entries of one descriptor, in order
    #[arg(value_name = "KEY=VALUE")]
    entries: Vec<String>,
    /// Another descriptor. A `,` in a value is written `\,`
    #[arg(long = "descriptor", value_name = "KEY=VALUE,…")]
    descriptors: Vec<String>,
    /// How many units the call costs
    #[arg(long, value_name = "N", default_value = "1", allow_hyphen_values = true)]
    cost: Cost,
    /// Where the states are: `memory` for none yet, or the URL of a Redis or Valkey server [default: the `store` of the
    /// configuration, or memory]
    #[arg(long, value_name = "URL", env = "TALLYGATE_STORE", hide_env_values = true)]
    store: Option<String>,
    /// The prefix of all keys on a server
    #[arg(long, value_name = "PREFIX", env = "TALLYGATE_PREFIX", default_value = "tallygate")]
    prefix: String,
    #[command(flatten)]
    output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  tallygate explain --config tallygate.yaml user=42 path=/v1/search
  tallygate explain --config tallygate.yaml user=42 --store redis://127.0.0.1:6379 --json
  tallygate explain --config limits/ --domain edge --descriptor remote_address=192.0.2.1 \\
      --descriptor method=POST,user=42 --cost 5

Exit codes: 0 the call would be allowed, 1 it would be denied, 2 error, 3 the store is unreachable.";

pub(crate) async fn run(args: Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let file = args.entries.iter().find(|entry| !entry.contains('=') && crate::is_policy_file(entry));
    let config = match (&args.config, file) {
        (Some(_), None) => args.config.as_deref(),
        (_, Some(file)) => bail!("`{file}` looks like a policy file: name it with --config {file}"),
        (None, None) => None,
    };
    let config = config.context("which policies? Name a file with --config, or set TALLYGATE_CONFIG")?;
    let descriptors = call::descriptors(&args.entries, &args.descriptors)?;
    let config = policies::load(config)?;
    let name = match (&args.domain, config.policies.domains()) {
        (Some(name), _) => name,
        (None, [only]) => only.name(),
        (None, _) => "default",
    };
    if config.policies.domain(name).is_none() {
        bail!(no_such_domain(name, &config.policies));
    }
    let store = open(&args, config.store.as_deref()).await?;
    let reading = store.read_overrides(None).await?;
    let policies = config.policies.with_overrides(&OverrideSet::of_reading(&reading)?, reading.now);
    let domain = policies.domain(name).expect("overrides change no domain");
    let in_memory = matches!(store, AnyStore::Memory(_));
    // A peek: decided by the same code as a check, and nothing is charged.
    let action = Action::new(Verb::Peek, args.cost);
    let ask = |descriptor: &Descriptor| Ask::new(descriptor.clone(), action);
    let asks: Vec<Ask> = descriptors.iter().map(ask).collect();
    let verdict = domain.evaluate(&asks).decide(&Stores::new(store), None).await;
    if let Some(error) = verdict.store_error() {
        // What `on_error` would answer is not what was asked.
        return Err(error.clone().into());
    }
    let explained = Explained::new(&args, name, &policies, &descriptors, &verdict);
    let outcome = if verdict.allowed() { Outcome::Allowed } else { Outcome::Denied };
    if args.output.json {
        output::write_json(out, &json::Json::new(&explained))?;
    } else {
        text::write(out, &explained)?;
    }
    if in_memory {
        let _ = writeln!(
            io::stderr(),
            "note: the embedded store has no states, so nothing is used yet; to see what remains, \
             add --store redis://127.0.0.1:6379 or set TALLYGATE_STORE"
        );
    }
    Ok(outcome)
}

async fn open(args: &Args, configured: Option<&str>) -> anyhow::Result<AnyStore> {
    let store = args.store.as_deref().or(configured).unwrap_or(AnyStore::MEMORY).to_owned();
    let opened = StoreArgs { store, prefix: args.prefix.clone() }.open().await;
    match (&args.store, configured) {
        (None, Some(_)) => {
            opened.context("the store of the configuration (use `--store memory` to explain without it)")
        }
        _ => opened,
    }
}

fn no_such_domain(name: &str, policies: &PolicySet) -> String {
    const LISTED: usize = 10;
    let known: Vec<&str> = policies.domains().iter().map(Domain::name).collect();
    let quoted: Vec<String> = known.iter().take(LISTED).map(|name| format!("`{name}`")).collect();
    let more = if known.len() > LISTED { format!(" and {} more", known.len() - LISTED) } else { String::new() };
    match (nearest(name, &known), known.is_empty()) {
        (Some(near), _) => format!("unknown domain `{name}`: did you mean --domain `{near}`?"),
        (None, true) => format!("unknown domain `{name}`: the configuration has no policies"),
        (None, false) => format!("unknown domain `{name}`: use --domain with {}{more}", quoted.join(", ")),
    }
}

/// A call and the answer to it, to be printed.
struct Explained<'c> {
    domain: &'c str,
    cost: Cost,
    descriptors: &'c [Descriptor],
    applying: Vec<Applying<'c>>,
    others: Vec<Reason>,
    verdict: &'c Verdict,
}

struct Applying<'c> {
    ruling: &'c Ruling,
    because: String,
    /// What a check would charge.
    would_charge: u64,
    /// The key of its state on a server; `None` without a limit.
    key: Option<String>,
}

impl<'c> Explained<'c> {
    fn new(
        args: &'c Args,
        domain: &'c str,
        policies: &'c PolicySet,
        descriptors: &'c [Descriptor],
        verdict: &'c Verdict,
    ) -> Self {
        let borrowed: Vec<&Descriptor> = descriptors.iter().collect();
        let mut others = policies.explain(domain, &borrowed);
        let judged = verdict.rulings().iter().map(|ruling| (ruling.mode(), ruling.status().allowed()));
        let settlement = Settlement::of(false, judged);
        let applying = verdict.rulings().iter().map(|ruling| {
            let about = |reason: &Reason| {
                Arc::ptr_eq(&reason.policy, ruling.policy()) && reason.descriptor == ruling.descriptor()
            };
            let reason = others.iter().position(about).map(|at| others.remove(at));
            let because = reason.map(|reason| reason.because).unwrap_or_default();
            Applying { ruling, because, would_charge: would_charge(ruling, settlement), key: key(ruling, &args.prefix) }
        });
        let applying = applying.collect();
        Self { domain, cost: args.cost, descriptors, applying, others, verdict }
    }
}

/// What a check would charge if it were answered as the peek was.
fn would_charge(ruling: &Ruling, settlement: Settlement) -> u64 {
    let drains = ruling.policy().excess() == Excess::Drain;
    match settlement.taking(ruling.mode(), drains, ruling.status().allowed()) {
        Taking::Cost if ruling.limit().is_some() => ruling.action().cost.get(),
        Taking::Rest => ruling.status().remaining(),
        _ => 0,
    }
}

fn key(ruling: &Ruling, prefix: &str) -> Option<String> {
    // A limit of zero is denied without a state.
    let limit = ruling.limit().filter(|limit| limit.amount() > 0)?;
    let key = Key::new(ruling.policy().key_name(), ruling.subject()).expect("a policy and a subject make a key");
    Some(key.encode(prefix, limit.algorithm().kind()))
}
