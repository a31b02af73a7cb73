//! `tallygate settle`, `cancel`, `extend` and `renew`: what becomes of a hold.

use std::io::{self, Read, Write};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tallygate::hold::{Hold, HoldTerms, Holds, Resolution, Resolve, Resolved, Turn, Units};
use tallygate::policy::name_within_domain;
use tallygate::{Cost, Limit};
use tallygate_http::{HoldAnswer, sanitize};

use crate::duration;
use crate::output::{self, Outcome, OutputArgs};
use crate::store::StoreArgs;

/// The hold, with the options `M` of one verb.
#[derive(Debug, clap::Args)]
pub(crate) struct Args<M: clap::Args> {
    /// The token that `reserve` printed; `-` reads it from stdin, so that no list of processes shows it
    hold: String,
    #[command(flatten)]
    of_verb: M,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SettleArgs {
    /// The units that were used: a number for all policies, or POLICY=N for each [default: all that are held]
    #[arg(short, long, value_name = "UNITS", allow_hyphen_values = true)]
    units: Vec<String>,
    /// Keep the hold open with the rest
    #[arg(long, requires = "units")]
    partial: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExtendArgs {
    /// For how long from now
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    ttl: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RenewArgs {
    /// For how long from now
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    ttl: Duration,
    /// Names this renewal: another one for each, and the same to repeat one whose answer was lost [default: random]
    #[arg(long, value_name = "NAME")]
    next: Option<String>,
}

pub(crate) const RENEW_EXAMPLES: &str = "\
Examples:
  tallygate renew TOKEN --ttl 30s --store redis://127.0.0.1:6379
  tallygate renew TOKEN --ttl 30s --next 7 --store redis://127.0.0.1:6379

The last line is the new token. The one before changes nothing any more.
Exit codes: 0 done, 1 the hold had ended or was renewed before, 2 error, 3 the store is unreachable.";

pub(crate) const SETTLE_EXAMPLES: &str = "\
Examples:
  tallygate settle TOKEN --units 250 --store redis://127.0.0.1:6379
  tallygate settle TOKEN --units tokens=250 --units requests=1 --store redis://127.0.0.1:6379
  tallygate settle - --units 40 --partial --store redis://127.0.0.1:6379 < token

Exit codes: 0 done, 1 the hold cannot be settled like this, 2 error, 3 the store is unreachable.";

pub(crate) const CANCEL_EXAMPLES: &str = "\
Examples:
  tallygate cancel TOKEN --store redis://127.0.0.1:6379

Exit codes: 0 done, 1 the hold had ended before, 2 error, 3 the store is unreachable.";

pub(crate) const EXTEND_EXAMPLES: &str = "\
Examples:
  tallygate extend TOKEN --ttl 5min --store redis://127.0.0.1:6379

A hold never expires earlier than before.
Exit codes: 0 done, 1 the hold had ended before, 2 error, 3 the store is unreachable.";

pub(crate) async fn settle(args: Args<SettleArgs>, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let hold = args.hold()?;
    let units = units(&args.of_verb.units, &hold)?;
    let resolve = if args.of_verb.partial { Resolve::SettlePart(units) } else { Resolve::Settle(units) };
    args.resolve(&hold, resolve, out).await
}

pub(crate) async fn cancel(args: Args<()>, out: &mut impl Write) -> anyhow::Result<Outcome> {
    args.resolve(&args.hold()?, Resolve::Cancel, out).await
}

pub(crate) async fn extend(args: Args<ExtendArgs>, out: &mut impl Write) -> anyhow::Result<Outcome> {
    args.resolve(&args.hold()?, Resolve::Extend(args.of_verb.ttl), out).await
}

pub(crate) async fn renew(args: Args<RenewArgs>, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let next = args.of_verb.next.as_deref().map_or_else(Turn::random, Turn::named);
    args.resolve(&args.hold()?, Resolve::Renew { ttl: args.of_verb.ttl, next }, out).await
}

/// A time that a hold may last.
pub(crate) fn ttl(text: &str) -> anyhow::Result<Duration> {
    let ttl = duration::parse(text)?;
    ensure!(
        (HoldTerms::SHORTEST..=HoldTerms::LONGEST).contains(&ttl),
        "a hold lasts from 1ms to 24h, not {text}: extend it if need be"
    );
    Ok(ttl)
}

fn units(written: &[String], hold: &Hold) -> anyhow::Result<Units> {
    match written {
        [] => Ok(Units::AsReserved),
        [one] if !one.contains('=') => Ok(Units::Same(count(one)?)),
        each => Ok(Units::Each(each.iter().map(|text| of_policy(text, hold)).collect::<Result<_, _>>()?)),
    }
}

fn of_policy(text: &str, hold: &Hold) -> anyhow::Result<(String, u64)> {
    let Some((policy, units)) = text.rsplit_once('=') else {
        bail!("--units {text}: with several, write POLICY=N, for example --units tokens=250");
    };
    if !hold.is_empty() && !hold.is_of(policy) {
        let names: Vec<&str> = hold.places().map(|(key, _)| name_within_domain(key.policy())).collect();
        bail!("the hold is not of a policy `{policy}`: it is of {}", names.join(", "));
    }
    Ok((policy.to_owned(), count(units)?))
}

fn count(text: &str) -> anyhow::Result<u64> {
    let units = u64::from_str(text).ok().filter(|units| *units <= Cost::MAX.get());
    units.with_context(|| format!("--units {text}: write a whole number from 0 to {}", Limit::MAX_AMOUNT))
}

impl<M: clap::Args> Args<M> {
    /// The errors do not repeat the token.
    fn hold(&self) -> anyhow::Result<Hold> {
        if self.store.url().is_none() {
            bail!(
                "--store memory keeps nothing: a hold of the embedded store ended with the command that reserved it; \
                 add --store redis://127.0.0.1:6379 to both commands, or set TALLYGATE_STORE"
            );
        }
        if self.hold != "-" {
            return Ok(self.hold.trim().parse()?);
        }
        let mut token = String::new();
        io::stdin().take(1 << 20).read_to_string(&mut token).context("cannot read the token from stdin")?;
        Ok(token.trim().parse()?)
    }

    async fn resolve(&self, hold: &Hold, resolve: Resolve, out: &mut impl Write) -> anyhow::Result<Outcome> {
        let store = self.store.open().await?;
        let resolved = store.resolve(&Resolution::new(hold, resolve.clone())).await?;
        let renewed = resolve.next().filter(|_| resolved.done).map(|next| hold.clone().at_turn(next).to_string());
        let answer = HoldAnswer::new(hold.places().map(|(key, _)| name_within_domain(key.policy())), &resolved);
        let problem = answer.problem(&resolved);
        if self.output.json {
            output::write_json(out, &Renewed { answer: &answer, hold: renewed })?;
        } else {
            write_text(out, &answer, &resolved)?;
            if let Some(token) = renewed {
                writeln!(out, "{token}")?;
            }
        }
        if let Some(problem) = &problem {
            writeln!(io::stderr(), "{}", sanitize::text(problem.detail()))?;
        }
        Ok(if problem.is_none() { Outcome::Allowed } else { Outcome::Denied })
    }
}

/// What has become of a hold, and its new token if it has one.
#[derive(serde::Serialize)]
struct Renewed<'a> {
    #[serde(flatten)]
    answer: &'a HoldAnswer<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<String>,
}

/// One line for the hold, and one for each policy.
fn write_text(out: &mut impl Write, answer: &HoldAnswer<'_>, resolved: &Resolved) -> io::Result<()> {
    let left = answer.expires_after_ms.map(Duration::from_millis).map(duration::render);
    let expires = left.map(|left| format!(", expires in {left}")).unwrap_or_default();
    writeln!(out, "{}{expires}", resolved.state.name().replace('_', " "))?;
    for part in answer.policies.iter().flatten() {
        let units = part.units;
        let mut text = format!("{} of {} used, {} given back", units.settled, units.reserved, units.refunded);
        for (count, what) in [(units.held, "held"), (units.unpaid, "unpaid"), (units.debt, "in debt")] {
            if count > 0 {
                text += &format!(", {count} {what}");
            }
        }
        writeln!(out, "  {}  {text}; {} of {} left", sanitize::text(part.policy), part.remaining, part.limit)?;
    }
    Ok(())
}
