//! `tallygate verify`: checks the guarantees against the answers that clients in several processes got.

mod client;
mod judge;
mod protocol;
mod recipes;
mod report;
mod scenario;
mod threads;
pub(crate) mod worker;
mod workers;

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::builder::RangedU64ValueParser;
use tallygate::store::StoreErrorKind;
use tallygate::{Algorithm, Limiter};
use tallygate_redis::{AnyStore, Audit, ServerReport, Sweep};

use crate::output::{self, Outcome, OutputArgs};
use crate::progress::Progress;
use crate::store::StoreArgs;
use crate::table;
use judge::Finding;
use report::Report;
use scenario::Scenario;

/// Verify on your own server that no limit is exceeded and every answer is right
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// One algorithm, or `all`: every algorithm, and two limits at once
    #[arg(short, long, value_name = "NAME", default_value = "all")]
    algorithm: String,
    /// Concurrent clients in each process
    #[arg(long, value_name = "N", default_value = "16", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    clients: usize,
    /// How many processes; with the embedded store, groups of threads
    #[arg(long, value_name = "N", default_value = "2", value_parser = RangedU64ValueParser::<usize>::new().range(1..=64))]
    processes: usize,
    /// How many seconds to run, all scenarios together
    #[arg(long, value_name = "S", default_value = "10", value_parser = RangedU64ValueParser::<u64>::new().range(1..=86_400))]
    seconds: u64,
    /// Run well-known wrong recipes instead, and show that the same checks catch each
    #[arg(long, conflicts_with_all = ["algorithm", "clients", "processes", "seconds"])]
    recipes: bool,
    #[command(flatten)]
    output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  tallygate verify --store redis://127.0.0.1:6379
  tallygate verify --store redis://127.0.0.1:6379 --algorithm sliding_log --seconds 60
  tallygate verify --store redis+cluster://10.0.0.1:6379 --processes 4 --clients 64
  tallygate verify --recipes --store redis://127.0.0.1:6379

Every answer is recorded with the instant at which the server decided it. Then, for each key,
the units admitted in every span are compared with the bound of the algorithm, and every answer
with what the algorithm says, to the unit and the microsecond. The keys of a run have names of
their own and are deleted afterwards.

Exit codes: 0 it holds, 1 it does not, 2 error, 3 the store is unreachable.";

/// One for each algorithm, and two limits at once.
const SCENARIOS: u32 = 7;

/// No scenario records for longer, so that the memory used does not grow with --seconds.
const LONGEST_SCENARIO: Duration = Duration::from_secs(2);

pub(crate) async fn run(args: Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    if args.recipes {
        let Some(url) = args.store.url() else {
            bail!("the recipes need a server: name one with --store redis://127.0.0.1:6379");
        };
        let server = tallygate_recipes::Server::connect(url, &args.store.prefix).await.context("--store")?;
        let mut progress = Progress::new();
        let show = |number, of, name: &str| progress.show(|| format!("{number} of {of}: {name}"));
        let report = tallygate_recipes::run(server, &run_name(), show).await?;
        drop(progress);
        if args.output.json {
            output::write_json(out, &report)?
        } else {
            recipes::write(&report, out)?
        }
        return Ok(if report.caught == report.of { Outcome::Allowed } else { Outcome::Denied });
    }
    let algorithm = match args.algorithm.as_str() {
        "all" => None,
        name => Some(name.parse::<Algorithm>().context("--algorithm")?),
    };
    let whole = Duration::from_secs(args.seconds);
    let each = whole / if algorithm.is_some() { 1 } else { SCENARIOS };
    let rounds = u32::try_from(each.as_millis().div_ceil(LONGEST_SCENARIO.as_millis()))?.max(1);
    let length = each / rounds;
    let mut trials: Vec<_> =
        Scenario::all(algorithm, length)?.into_iter().map(|one| (one, Finding::default())).collect();
    let (stage, servers) = Stage::open(&args).await?;
    let run = run_name();
    let mut progress = Progress::new();
    let mut before = Duration::ZERO;
    for round in 0..rounds {
        let names = format!("verify-{run}-{round}-");
        for (scenario, finding) in &mut trials {
            let mut show = |done: Duration, answers: u64| {
                let bar = Progress::bar(before + done, whole);
                progress.show(|| format!("{bar} {}, {}", scenario.title(), table::count(answers, "answer")));
            };
            let name = format!("{names}{}", scenario.slug);
            let session = Session { args: &args, scenario, name: &name, length };
            let recording = match args.store.url() {
                None => threads::run(&stage.limiter, &session, &mut show).await?,
                Some(url) => workers::run(url, &session, &mut show).await?,
            };
            finding.add(judge::judge(scenario, &recording));
            before += length;
        }
        stage.clean_up(&args.store.prefix, &names, &mut trials).await?;
    }
    drop(progress);
    let report = Report::new(&args, &servers, &trials);
    report.write(out)?;
    if let Some((_, failure)) = trials.iter().find(|(_, finding)| finding.decisions == 0) {
        bail!("no call was answered: {}", failure.failure.as_deref().unwrap_or("use a larger --seconds"));
    }
    Ok(if report.total.holds() { Outcome::Allowed } else { Outcome::Denied })
}

/// A name no other run has.
fn run_name() -> String {
    format!("{:08x}", RandomState::new().hash_one("run") & 0xffff_ffff)
}

/// One scenario in one round.
struct Session<'a> {
    args: &'a Args,
    scenario: &'a Scenario,
    /// The policy of its first limit.
    name: &'a str,
    length: Duration,
}

/// Where the scenarios run.
struct Stage {
    limiter: Limiter<AnyStore>,
    /// Of a server.
    audit: Option<Audit>,
}

impl Stage {
    /// Connects here first, so that an invalid URL is reported once, not by each worker.
    async fn open(args: &Args) -> anyhow::Result<(Self, Vec<ServerReport>)> {
        let limiter = Limiter::new(args.store.open().await?);
        let Some(url) = args.store.url() else { return Ok((Self { limiter, audit: None }, Vec::new())) };
        let audit = Audit::connect(url).await.context("--store")?;
        // A user without the right to INFO is reported below, where it matters.
        let servers = audit.servers().await.unwrap_or_default();
        Ok((Self { limiter, audit: Some(audit) }, servers))
    }

    /// Looks for keys of a round without a TTL, then deletes all of them. `names` is the prefix of its policies.
    async fn clean_up(&self, prefix: &str, names: &str, trials: &mut [(Scenario, Finding)]) -> anyhow::Result<()> {
        let Some(audit) = &self.audit else { return Ok(()) };
        let sweep = Sweep { policies: Some(names.to_owned()), ..Sweep::of(prefix)? };
        let audited = match audit.run(&sweep, |_| {}).await {
            Err(error) if error.kind() == StoreErrorKind::Refused => {
                Err(format!("keys were not audited: {}", error.reason()))
            }
            other => Ok(other?),
        };
        for (scenario, finding) in trials {
            let policies = scenario.policies(&format!("{names}{}", scenario.slug));
            match &audited {
                Ok(report) => {
                    ensure!(report.complete, "the audit did not see all keys");
                    let ours = |policy: &String| policies.contains(policy);
                    let usage = report.usage.iter().filter(|usage| usage.policy.as_ref().is_some_and(ours));
                    let sum = usage.fold((0, 0), |(keys, orphans), one| (keys + one.keys, orphans + one.orphans));
                    finding.add(Finding { audited: Some(sum), ..Finding::default() });
                }
                Err(why) => finding.add(Finding { not_audited: Some(why.clone()), ..Finding::default() }),
            }
            for key in 0..scenario::KEYS {
                for check in scenario.checks(&policies, &scenario::subject(key), tallygate::Cost::ONE)? {
                    self.limiter.reset(check).await?;
                }
            }
        }
        Ok(())
    }
}
