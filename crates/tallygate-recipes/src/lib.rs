//! Common rate limiters that are wrong, run on a real server beside Tallygate, under the same calls and checks.
//! `tallygate verify --recipes` prints the report.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let server = tallygate_recipes::Server::connect("redis://127.0.0.1:6379", "tallygate").await?;
//! let report = tallygate_recipes::run(server, "first-run", |number, of, name| eprintln!("{number}/{of} {name}")).await?;
//! println!("{} of {} wrong limiters were caught", report.caught, report.of);
//! # Ok(()) }
//! ```

mod book;
mod driver;
mod evidence;
mod recipe;
mod server;

use anyhow::{Context, anyhow};
use serde::Serialize;
use tallygate::Limit;
use tallygate::history::Record;
use tallygate_redis::Sweep;

pub use evidence::Evidence;
pub use server::Server;

/// The results of all recipes.
#[derive(Debug, Serialize)]
pub struct Report {
    /// How many recipes were caught.
    pub caught: usize,
    /// How many recipes were run.
    pub of: usize,
    /// One for each recipe.
    pub recipes: Vec<Trial>,
    /// The server's name and version.
    #[serde(skip)]
    pub version: String,
}

/// The result of a recipe, and of Tallygate under the same calls.
#[derive(Debug, Serialize)]
pub struct Trial {
    /// The letter of the recipe.
    pub recipe: &'static str,
    /// What it does.
    pub name: &'static str,
    /// How it fails.
    pub flaw: &'static str,
    /// The limits it is meant to enforce; the last is checked.
    pub limits: &'static [&'static str],
    /// The findings about the recipe.
    pub wrong: Evidence,
    /// The findings about Tallygate.
    pub ours: Evidence,
    /// Whether Tallygate is sound, and every answer is right to the unit and the microsecond.
    pub ours_exact: bool,
    /// Whether the recipe has a fault and Tallygate has none.
    pub caught: bool,
}

/// Runs every recipe. `run` is part of the names of the keys and must be unique; `progress` gets the number of the next
/// recipe, how many there are, and its name.
///
/// Recipes leave keys without a TTL. All keys of the run are deleted at the end, and on Ctrl-C.
pub async fn run(mut server: Server, run: &str, progress: impl FnMut(usize, usize, &str)) -> anyhow::Result<Report> {
    let report = tokio::select! {
        report = run_all(&mut server, run, progress) => report,
        _ = tokio::signal::ctrl_c() => Err(anyhow!("interrupted; the keys of the recipes have been deleted")),
    };
    server.delete_keys(run).await?;
    report
}

/// The answers of a recipe, as they were recorded.
#[derive(Debug)]
pub struct History {
    /// The letter of the recipe.
    pub recipe: &'static str,
    /// The limit that is checked.
    pub limit: Limit,
    /// All calls of its key.
    pub records: Vec<Record>,
    /// Keys that would never expire.
    pub orphans: u64,
}

/// Runs every recipe, without judging it, for another checker. All keys of the run are deleted at the end.
pub async fn histories(mut server: Server, run: &str) -> anyhow::Result<Vec<History>> {
    let mut histories = Vec::with_capacity(book::RECIPES.len());
    for recipe in &book::RECIPES {
        let limits = recipe.limits()?;
        let (records, orphans) =
            record(&mut server, recipe, &limits, &format!("recipe-{run}-{}", recipe.letter), false).await?;
        let limit = limits.last().context("a recipe has a limit")?.clone();
        histories.push(History { recipe: recipe.letter, limit, records, orphans });
    }
    server.delete_keys(run).await?;
    Ok(histories)
}

/// The answers of a recipe, or of Tallygate to the same calls, and the keys without a TTL that are left.
async fn record(
    server: &mut Server,
    recipe: &recipe::Recipe,
    limits: &[Limit],
    policy: &str,
    ours: bool,
) -> anyhow::Result<(Vec<Record>, u64)> {
    let records = driver::drive(server, recipe, limits, policy, ours).await.context(recipe.name)?;
    let sweep = Sweep { policies: Some(policy.to_owned()), ..Sweep::of(&server.prefix)? };
    Ok((records, server.audit.run(&sweep, |_| {}).await?.orphans))
}

async fn run_all(
    server: &mut Server,
    run: &str,
    mut progress: impl FnMut(usize, usize, &str),
) -> anyhow::Result<Report> {
    let servers = server.audit.servers().await?;
    let version = servers.first().map_or(String::new(), |server| server.version.clone());
    let of = book::RECIPES.len();
    let mut recipes = Vec::with_capacity(of);
    for (number, recipe) in (1..).zip(&book::RECIPES) {
        progress(number, of, recipe.name);
        let limits = recipe.limits()?;
        let judged = limits.last().context("a recipe has a limit")?;
        let mut evidence = Vec::new();
        for (whose, ours) in [("recipe", false), ("ours", true)] {
            let policy = format!("{whose}-{run}-{}", recipe.letter);
            let (records, orphans) = record(server, recipe, &limits, &policy, ours).await?;
            evidence.push(Evidence::judge(judged, &records, orphans));
        }
        let [wrong, ours] = <[Evidence; 2]>::try_from(evidence).ok().context("there are two")?;
        let (ours_exact, caught) = (ours.is_exact(), !wrong.sound && ours.is_exact());
        let recipe::Recipe { letter, name, flaw, limits, .. } = *recipe;
        recipes.push(Trial { recipe: letter, name, flaw, limits, wrong, ours, ours_exact, caught });
    }
    let caught = recipes.iter().filter(|trial| trial.caught).count();
    Ok(Report { caught, of, recipes, version })
}
