//! `tallygate holds`: the open holds of a store.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use tallygate::clock::Timestamp;
use tallygate::hold::{HoldQuery, OpenHold};
use tallygate_http::{ListedHold, sanitize};

use crate::color::Color;
use crate::duration;
use crate::output::{self, Outcome, OutputArgs};
use crate::progress::Progress;
use crate::store::StoreArgs;
use crate::table::{self, Cell, Table};

/// List the open holds of a Redis or Valkey store, the oldest first
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Only what is held under this policy: `domain/name`, or the name that `reserve` was given
    #[arg(long)]
    policy: Option<String>,
    /// Only what is held of this subject, as the list shows it: `user=42` under a policy that counts each user
    #[arg(long)]
    subject: Option<String>,
    /// Only holds that were reserved at least so long ago
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "0s", hide_default_value = true)]
    older_than: Duration,
    /// How many to list; all are counted
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    #[command(flatten)]
    output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  tallygate holds --store redis://127.0.0.1:6379
  tallygate holds --older-than 5min --policy llm/tokens --store redis://127.0.0.1:6379
  tallygate holds --policy llm/tokens --subject user=42 --store redis://127.0.0.1:6379 --json

With a policy and a subject one key is read. Otherwise all keys are scanned in small steps over a
connection of its own; nothing is changed. The tokens of the holds are secrets, and not listed.
Exit codes: 0 done, 2 error, 3 the store is unreachable.";

pub(crate) async fn run(args: Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    if args.store.url().is_none() {
        bail!("the embedded store of this command holds nothing: name a server with --store redis://127.0.0.1:6379");
    }
    let mut query = HoldQuery::new().older_than(args.older_than).at_most(HoldQuery::MOST);
    if let Some(policy) = &args.policy {
        query = query.of_policy(policy).context("--policy")?;
    }
    if let Some(subject) = &args.subject {
        query = query.of_subject(subject).context("--subject")?;
    }
    let store = args.store.open().await?;
    let (mut oldest, mut progress) = (Oldest::new(args.limit as usize), Progress::new());
    loop {
        let page = store.open_holds(&query).await?;
        page.holds.into_iter().for_each(|hold| oldest.add(hold));
        progress.show(|| format!("{} found", table::count(oldest.open, "open hold")));
        if page.next.is_none() {
            break;
        }
        query = query.after(page.next);
    }
    drop(progress);
    let holds: Vec<&OpenHold> = oldest.holds.values().collect();
    if args.output.json {
        let listed = holds.into_iter().map(ListedHold::from).collect();
        output::write_json(out, &Json { open: oldest.open, held: oldest.held, holds: listed })?;
    } else {
        write_text(out, &oldest, &holds)?;
    }
    Ok(Outcome::Allowed)
}

/// The oldest of many holds, and how many there were.
struct Oldest {
    most: usize,
    holds: BTreeMap<(Timestamp, u64), OpenHold>,
    open: u64,
    held: u64,
}

impl Oldest {
    fn new(most: usize) -> Self {
        Self { most, holds: BTreeMap::new(), open: 0, held: 0 }
    }

    fn add(&mut self, hold: OpenHold) {
        (self.open, self.held) = (self.open + 1, self.held.saturating_add(hold.units()));
        self.holds.insert((hold.reserved_at, self.open), hold);
        if self.holds.len() > self.most {
            self.holds.pop_last();
        }
    }
}

#[derive(Serialize)]
struct Json<'a> {
    /// All that there are.
    open: u64,
    /// The units of all.
    held: u64,
    holds: Vec<ListedHold<'a>>,
}

fn write_text(out: &mut impl Write, oldest: &Oldest, holds: &[&OpenHold]) -> io::Result<()> {
    let color = Color::for_stdout();
    if holds.is_empty() {
        return writeln!(out, "no open holds");
    }
    let title = format!("{}, {} held", table::count(oldest.open, "open hold"), table::count(oldest.held, "unit"));
    writeln!(out, "{}\n", color.title(&title))?;
    let mut rows = Table::default();
    for hold in holds {
        for part in &hold.parts {
            rows.row(vec![
                Cell::word(sanitize::text(&part.policy)),
                Cell::word(sanitize::text(&part.subject)),
                Cell::number(part.units),
                Cell::figure(duration::render(hold.age)),
                Cell::figure(duration::render(hold.expires_after())),
            ]);
        }
    }
    let more = oldest.open.saturating_sub(holds.len() as u64);
    if more > 0 {
        rows.note(&format!("and {} more, which are younger: --limit lists them", table::thousands(more)));
    }
    rows.write(out, &["policy", "subject", "held", "age", "expires in"], color)
}
