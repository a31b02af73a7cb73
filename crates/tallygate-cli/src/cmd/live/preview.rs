//! `tallygate override preview`: what an override would do to callers as they are now. It only looks.

use std::io::Write;

use anyhow::ensure;
use serde::Serialize;
use tallygate::call::Verb;
use tallygate::live::{OverrideSet, Overrides as _};
use tallygate::policy::{Action, Ask, Descriptor, PolicySet, Stores, Verdict};
use tallygate::{Cost, Limit};
use tallygate_http::{Part, sanitize};
use tallygate_redis::AnyStore;

use super::{Common, PolicyArgs, TargetArgs};
use crate::cmd::explain::descriptors;
use crate::output;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    policy: PolicyArgs,
    /// A caller to look at: all entries of its descriptor. States do not say who is on a plan
    #[arg(long = "caller", value_name = "KEY=VALUE,…", required = true)]
    callers: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// One caller under the present limits and under those with the override.
#[derive(Serialize)]
struct Seen<'a> {
    caller: &'a str,
    present: Option<Side<'a>>,
    proposed: Option<Side<'a>>,
}

#[derive(Serialize)]
struct Side<'a> {
    limit: String,
    status: Part<'a>,
    #[serde(skip)]
    text: String,
}

pub(super) async fn run(args: Args, out: &mut impl Write) -> anyhow::Result<()> {
    let (files, new) = args.policy.read(args.target)?;
    let callers = descriptors(&[], &args.callers)?;
    ensure!(callers.len() <= 100, "a preview has at most 100 callers; these are {}", callers.len());
    let store = args.common.open().await?;
    let reading = store.read_overrides(None).await?;
    let (set, now) = (OverrideSet::of_reading(&reading)?, reading.now);
    let (domain, policy) = (new.target.domain.clone(), new.target.policy.clone());
    let sides = [files.with_overrides(&set, now), files.with_overrides(&set.with_preview(new), now)];
    let stores = Stores::new(store);
    for (written, caller) in args.callers.iter().zip(&callers) {
        let [present, proposed] = [&sides[0], &sides[1]].map(|policies| looked(policies, &domain, &stores, caller));
        let (present, proposed) = (present.await?, proposed.await?);
        let [present, proposed] = [&present, &proposed].map(|verdict| side(verdict, &policy));
        let seen = Seen { caller: written, present, proposed };
        if args.common.output.json {
            output::write_json(out, &seen)?;
        } else {
            let [present, proposed] = [&seen.present, &seen.proposed].map(text);
            writeln!(out, "{}\n  present   {present}\n  proposed  {proposed}", sanitize::text(written))?;
        }
    }
    Ok(())
}

/// A peek of one unit.
async fn looked(
    policies: &PolicySet,
    domain: &str,
    stores: &Stores<AnyStore>,
    caller: &Descriptor,
) -> anyhow::Result<Verdict> {
    let ask = Ask::new(caller.clone(), Action::new(Verb::Peek, Cost::ONE));
    let domain = policies.domain(domain).expect("the override was checked against these policies");
    let verdict = domain.evaluate(&[ask]).decide(stores, None).await;
    // What `on_error` would answer is not what was asked.
    match verdict.store_error() {
        Some(error) => Err(error.clone().into()),
        None => Ok(verdict),
    }
}

fn side<'v>(verdict: &'v Verdict, policy: &str) -> Option<Side<'v>> {
    let ruling = verdict.rulings().iter().find(|ruling| ruling.policy().name() == policy)?;
    let limit = ruling.limit().map_or_else(|| "unlimited".to_owned(), Limit::to_string);
    let text = output::status_text(ruling.status());
    Some(Side { limit, status: Part::new(ruling.policy().name(), ruling.status(), ruling.source(), false), text })
}

fn text(side: &Option<Side<'_>>) -> String {
    match side {
        Some(Side { limit, text, .. }) => format!("{limit}: {text}"),
        None => "the policy does not apply to this caller".to_owned(),
    }
}
