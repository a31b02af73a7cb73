//! `verify --recipes`: limiters that everybody writes, on the same server, before the same judge as ours.

mod bench;
mod book;
mod drive;
mod evidence;
mod recipe;

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tallygate_redis::{Audit, StoreUrl, Sweep};

use super::random;
use crate::output::{self, Outcome, OutputArgs};
use crate::paint::Paint;
use crate::plain;
use crate::progress::Progress;
use crate::table::{Cell, Table};
use bench::Bench;
use evidence::Evidence;
use recipe::Recipe;

/// What a recipe did, and what ours did under the same calls.
struct Trial {
    recipe: Recipe,
    wrong: Evidence,
    ours: Evidence,
}

impl Trial {
    /// The judge finds fault with the recipe, and none with ours.
    fn caught(&self) -> bool {
        !self.wrong.is_sound() && self.ours.is_exact()
    }
}

pub(crate) async fn run(url: &str, prefix: &str, form: &OutputArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let plain_url = plain_server(url)?;
    let audit = Audit::connect(url).await.context("--store")?;
    let servers = audit.servers().await?;
    let mut bench = Bench::connect(&plain_url, url, prefix).await?;
    // The recipes leave keys that never expire: that must not happen to whoever interrupts them.
    let trials = tokio::select! {
        trials = try_all(&mut bench, &audit, prefix) => Some(trials),
        _ = tokio::signal::ctrl_c() => None,
    };
    bench.clean_up().await?;
    let Some(trials) = trials else { bail!("interrupted; the keys of the recipes have been deleted") };
    let trials = trials?;
    let caught = trials.iter().filter(|trial| trial.caught()).count();
    if form.json {
        output::write_json(out, &to_json(&trials))?;
    } else {
        let version = servers.first().map_or("", |server| server.version.as_str());
        write_text(out, version, caught, &trials)?;
    }
    Ok(if caught == trials.len() { Outcome::Allowed } else { Outcome::Denied })
}

async fn try_all(bench: &mut Bench, audit: &Audit, prefix: &str) -> anyhow::Result<Vec<Trial>> {
    let run = random::run_name();
    let mut progress = Progress::new();
    let mut trials = Vec::new();
    let book = book::all();
    let all = book.len();
    for (number, recipe) in book.into_iter().enumerate() {
        progress.show(|| format!("{} of {all}: {}", number + 1, recipe.name));
        let limits = recipe.limits()?;
        let mut judged = Vec::new();
        for (whose, ours) in [("recipe", false), ("ours", true)] {
            let policy = format!("{whose}-{run}-{}", recipe.letter);
            let records = drive::drive(bench, &recipe, &limits, &policy, ours).await.context(recipe.name)?;
            let report = audit.run(&Sweep::of(prefix)?.policies(&policy), |_| {}).await?;
            let limit = limits.last().context("a recipe has a limit")?;
            judged.push(Evidence::judge(limit, &records, recipe.flaps(), report.orphans));
        }
        let [wrong, ours] = <[Evidence; 2]>::try_from(judged).ok().context("there are two")?;
        trials.push(Trial { recipe, wrong, ours });
    }
    Ok(trials)
}

/// Recipes are plain commands to one server.
fn plain_server(url: &str) -> anyhow::Result<String> {
    let known: StoreUrl = url.parse().context("--store")?;
    for (scheme, plain) in [("redis://", "redis://"), ("valkey://", "redis://"), ("unix://", "redis+unix://")] {
        if let Some(rest) = url.trim().strip_prefix(scheme) {
            return Ok(format!("{plain}{rest}"));
        }
    }
    if let Some(rest) = url.trim().split_once("+unix://").map(|(_, rest)| rest) {
        return Ok(format!("redis+unix://{rest}"));
    }
    bail!("--store: the recipes need one server without TLS: write redis://host:port, not {known}");
}

fn write_text(out: &mut impl Write, version: &str, caught: usize, trials: &[Trial]) -> anyhow::Result<()> {
    let paint = Paint::for_stdout();
    writeln!(out, "{}", paint.title(&format!("recipes: {caught} of {} caught", trials.len())))?;
    let said = format!("{}; each recipe, and ours under the same calls, before the same judge", plain::text(version));
    writeln!(out, "{}\n", paint.faint(&said))?;
    let mut rows = Table::default();
    for trial in trials {
        let Trial { recipe, wrong, ours } = trial;
        let verdict = match (wrong.is_sound(), ours.is_exact()) {
            (false, true) => "caught",
            (true, true) => "NOT CAUGHT",
            (_, false) => "OURS FAILED",
        };
        rows.row(vec![
            Cell::word(recipe.letter),
            Cell::word(recipe.name),
            Cell::figure(wrong.worst_text()).good_if(wrong.violations == 0),
            Cell::fault(wrong.starved),
            Cell::fault(wrong.orphans),
            Cell::figure(ours.worst_text()).good_if(ours.is_exact()),
            Cell::word(verdict).good_if(trial.caught()),
        ]);
        rows.note(&format!("      {}", recipe.flaw));
    }
    rows.write(out, &["", "recipe", "admitted", "denied wrongly", "orphans", "ours", "verdict"], paint)?;
    writeln!(out)?;
    writeln!(
        out,
        "admitted: units in the worst span, of the most the limit allows there. denied wrongly: calls refused"
    )?;
    writeln!(out, "although there was room. orphans: keys that would never expire. Ours had none of these.")?;
    for Trial { recipe, ours, .. } in trials.iter().filter(|trial| !trial.ours.is_exact()) {
        writeln!(out, "{} {}: {}", paint.bad("ours under"), recipe.letter, plain::text(&ours.words()))?;
    }
    Ok(())
}

fn to_json(trials: &[Trial]) -> Value {
    let evidence = |evidence: &Evidence| {
        json!({
            "admitted": evidence.worst.map(|span| span.admitted),
            "bound": evidence.worst.map(|span| span.allowed),
            "violations": evidence.violations,
            "wrongly_denied": evidence.starved,
            "orphans": evidence.orphans,
            "sound": evidence.is_sound(),
        })
    };
    let trial = |trial: &Trial| {
        let Recipe { letter, name, flaw, .. } = &trial.recipe;
        json!({
            "recipe": letter,
            "name": name,
            "flaw": flaw,
            "limits": trial.recipe.limits,
            "wrong": evidence(&trial.wrong),
            "ours": evidence(&trial.ours),
            "ours_exact": trial.ours.is_exact(),
            "caught": trial.caught(),
        })
    };
    let caught = trials.iter().filter(|trial| trial.caught()).count();
    json!({ "caught": caught, "of": trials.len(), "recipes": trials.iter().map(trial).collect::<Vec<_>>() })
}

/// How long a command of a recipe may take.
const PATIENCE: Duration = Duration::from_secs(5);
