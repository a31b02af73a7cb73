//! `tallygate override`: which callers have another limit for now, who decided so and why.

mod preview;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Subcommand;
use serde::Serialize;
use tallygate::Limit;
use tallygate::clock::Timestamp;
use tallygate::live::{ChangeError, Override, OverrideSet, Overrides as _, Target, change};
use tallygate::policy::PolicySet;
use tallygate_http::sanitize;
use tallygate_redis::AnyStore;

use crate::duration;
use crate::output::{self, Outcome, OutputArgs};
use crate::policies;
use crate::store::StoreArgs;

/// Give some callers another limit while everything runs: set, list, preview and remove overrides
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, subcommand_required = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

const EXAMPLES: &str = "\
Examples:
  tallygate override set per-user user=42 --limit 1000/min --reason 'launch day' --expires-in 2d \\
      --config tallygate.yaml --store redis://127.0.0.1:6379
  tallygate override preview per-user plan=free --limit 5/min --caller user=7,plan=free \\
      --config tallygate.yaml --store redis://127.0.0.1:6379
  tallygate override list --store redis://127.0.0.1:6379
  tallygate override remove per-user user=42 --domain api --store redis://127.0.0.1:6379

Every instance that shares the store obeys a change within a second. Overrides go before the policy files.
Exit codes: 0 done, 2 error, 3 the store is unreachable.";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Give callers of a policy another limit, instead of the override that they have
    Set(SetArgs),
    /// Print the overrides, with their reasons and authors
    List(Common),
    /// Print what an override would do to callers, and change nothing
    Preview(preview::Args),
    /// Give callers the limit of the policy files again
    Remove(RemoveArgs),
}

#[derive(Debug, clap::Args)]
struct Common {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Which callers of which policy.
#[derive(Debug, clap::Args)]
struct TargetArgs {
    /// The policy
    policy: String,
    /// The callers: entries of their descriptors. Without any, every caller of the policy
    #[arg(value_name = "KEY=VALUE")]
    entries: Vec<String>,
}

/// The policies, to know whether the override fits them.
#[derive(Debug, clap::Args)]
struct PolicyArgs {
    /// The policies: a file, a folder, or `-` for standard input
    #[arg(short, long, value_name = "FILE|DIR", env = "TALLYGATE_CONFIG")]
    config: PathBuf,
    /// The domain of the policy [default: the only one of the configuration]
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,
    /// The limit: as in a policy file, or `unlimited`
    #[arg(short, long, value_name = "LIMIT")]
    limit: String,
}

#[derive(Debug, clap::Args)]
struct SetArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    policy: PolicyArgs,
    /// Why, for those who find the override later
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Who decides so [default: the user of the shell]
    #[arg(long, value_name = "NAME")]
    author: Option<String>,
    /// For how long: 30min, 2h, 7d [default: until it is removed]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    expires_in: Option<Duration>,
    /// Change nothing unless the overrides still have this revision, as `list` printed it
    #[arg(long, value_name = "N")]
    revision: Option<u64>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct RemoveArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// The domain of the policy
    #[arg(long, value_name = "NAME")]
    domain: String,
    /// Change nothing unless the overrides still have this revision, as `list` printed it
    #[arg(long, value_name = "N")]
    revision: Option<u64>,
    #[command(flatten)]
    common: Common,
}

pub(crate) async fn run(args: Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    match args.verb {
        Verb::Set(args) => set(args, out).await?,
        Verb::List(common) => list(&common, out).await?,
        Verb::Preview(args) => preview::run(args, out).await?,
        Verb::Remove(args) => remove(args, out).await?,
    }
    Ok(Outcome::Allowed)
}

impl Common {
    async fn open(&self) -> anyhow::Result<AnyStore> {
        if self.store.url().is_none() {
            bail!(
                "--store memory keeps nothing: the overrides of a server with the embedded store are changed through its \
                 admin listener, at /v1/overrides; otherwise add --store redis://127.0.0.1:6379, or set TALLYGATE_STORE"
            );
        }
        self.store.open().await
    }
}

impl TargetArgs {
    fn of(self, domain: impl Into<String>) -> anyhow::Result<Target> {
        let entry = |text: &String| {
            let (key, value) = text.split_once('=')?;
            Some((key.to_owned(), value.to_owned()))
        };
        let entries = self.entries.iter().map(|text| {
            entry(text).with_context(|| format!("`{text}` is not an entry: write KEY=VALUE, for example user=42"))
        });
        Ok(Target::new(domain, self.policy, entries.collect::<anyhow::Result<Vec<_>>>()?))
    }
}

impl PolicyArgs {
    /// The policies, and the override, which fits them.
    fn read(&self, target: TargetArgs) -> anyhow::Result<(PolicySet, Override)> {
        let policies = policies::load(&self.config)?.policies;
        let domain = match (&self.domain, policies.domains()) {
            (Some(domain), _) => domain.clone(),
            (None, [only]) => only.name().to_owned(),
            (None, domains) => bail!("the configuration has {} domains: name one with --domain", domains.len()),
        };
        let new = Override::new(target.of(domain)?, None);
        OverrideSet::check(&new, &policies)?;
        let known = policies.domain(&new.target.domain).map(|domain| domain.policies()).unwrap_or_default();
        let own = known.iter().find(|policy| policy.name() == new.target.policy).and_then(|policy| policy.limit());
        let limit = match self.limit.trim() {
            "unlimited" => None,
            text => Some(Limit::parse_with(text, own.map(Limit::algorithm))?),
        };
        let new = new.with_limit(limit);
        OverrideSet::check(&new, &policies)?;
        Ok((policies, new))
    }
}

async fn set(args: SetArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let (_, new) = args.policy.read(args.target)?;
    let author = args.author.or_else(|| std::env::var("USER").ok().filter(|user| !user.is_empty()));
    let author = author.context("who decides so? Name somebody with --author")?;
    let (new, lasts) = (new.because(args.reason).by(author), args.expires_in);
    let store = args.common.open().await?;
    let changed = change(&store, args.revision, |set, now| set.put(new.clone(), lasts, now)).await.map_err(blame)?;
    let done = format!("{} has the limit {}", new.target, limit_of(&new));
    report(&args.common.output, &changed, &done, out)
}

async fn remove(args: RemoveArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let target = args.target.of(args.domain)?;
    let store = args.common.open().await?;
    let changed = change(&store, args.revision, |set, now| set.remove(&target, now)).await.map_err(blame)?;
    report(&args.common.output, &changed, &format!("{target} has no override any more"), out)
}

/// The error of the store tells the exit code.
fn blame(error: ChangeError) -> anyhow::Error {
    match error {
        ChangeError::Store(error) => error.into(),
        other => other.into(),
    }
}

fn report(form: &OutputArgs, changed: &OverrideSet, done: &str, out: &mut impl Write) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Json {
        revision: u64,
        effective_after_ms: u64,
    }
    let (revision, effective_after_ms) = (changed.revision(), tallygate_http::millis_up(OverrideSet::NOTICE));
    if form.json {
        return Ok(output::write_json(out, &Json { revision, effective_after_ms })?);
    }
    let when = duration::render(OverrideSet::NOTICE);
    Ok(writeln!(out, "{}, {when} from now on (revision {revision})", sanitize::text(done))?)
}

fn limit_of(one: &Override) -> String {
    one.limit.as_ref().map_or_else(|| "unlimited".to_owned(), ToString::to_string)
}

async fn list(args: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    let reading = args.open().await?.read_overrides(None).await?;
    let (set, now) = (OverrideSet::of_reading(&reading)?, reading.now);
    let listed = set.listed(now);
    if args.output.json {
        let overrides = listed.iter().map(|one| Listed::new(one, now)).collect();
        return Ok(output::write_json(out, &List { revision: set.revision(), overrides })?);
    }
    if listed.is_empty() {
        return Ok(writeln!(out, "there are no overrides: every caller has the limit of the policy files")?);
    }
    for one in &listed {
        let ends = match one.expires_at {
            Some(at) => format!("for another {}", duration::render(between(now, at))),
            None => "until it is removed".to_owned(),
        };
        writeln!(out, "{}: {}, {ends}", sanitize::text(&one.target.to_string()), sanitize::text(&limit_of(one)))?;
        let (since, author) = (duration::render(between(one.set_at, now)), sanitize::text(&one.author));
        writeln!(out, "  set by {author} {since} ago: {}", sanitize::text(&one.reason))?;
    }
    Ok(writeln!(out, "revision {}", set.revision())?)
}

fn between(from: Timestamp, until: Timestamp) -> Duration {
    Duration::from_micros(until.as_micros().saturating_sub(from.as_micros()))
}

#[derive(Serialize)]
struct List<'a> {
    revision: u64,
    overrides: Vec<Listed<'a>>,
}

/// As the admin listener answers.
#[derive(Serialize)]
struct Listed<'a> {
    domain: &'a str,
    policy: &'a str,
    r#match: serde_json::Map<String, serde_json::Value>,
    limit: String,
    reason: &'a str,
    author: &'a str,
    set_at_ms: u64,
    begins_at_ms: u64,
    expires_at_ms: Option<u64>,
    in_force: bool,
}

impl<'a> Listed<'a> {
    fn new(one: &'a Override, now: Timestamp) -> Self {
        let millis = |at: Timestamp| at.as_micros() / 1_000;
        Self {
            domain: &one.target.domain,
            policy: &one.target.policy,
            r#match: one.target.entries.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect(),
            limit: limit_of(one),
            reason: &one.reason,
            author: &one.author,
            set_at_ms: millis(one.set_at),
            begins_at_ms: millis(one.begins_at),
            expires_at_ms: one.expires_at.map(millis),
            in_force: one.is_in_force(now),
        }
    }
}
