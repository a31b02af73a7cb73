//! `tallygate check`, `peek`, `refund`, `reset` and `reserve`: one subject under one or more limits.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

use anyhow::{bail, ensure};
use serde::Serialize;
use tallygate::call::{Call, UpTo, Verb};
use tallygate::clock::Timestamp;
use tallygate::hold::{HoldTerms, OnAbandon, Overrun, Reservation};
use tallygate::request::RequestId;
use tallygate::{Algorithm, Check, CheckError, Cost, Key, Limit};
use tallygate_http::{decision_answer, sanitize};

use super::hold;
use crate::duration;
use crate::output::{self, Outcome, OutputArgs};
use crate::store::{StoreArgs, note_if_forgotten};

// The arguments, with the options `M` of one verb. The library parses the texts, so the user sees its messages.
#[derive(Debug, clap::Args)]
pub(crate) struct Args<M: clap::Args> {
    /// What to count by: a user, an address, an API key; any bytes
    subject: OsString,
    /// An amount per window, for example `100/min`, `10/s burst 50`, `5 per 2h sliding_log`.
    /// Several limits make one decision: all are charged or none
    #[arg(short, long = "limit", value_name = "LIMIT", required = true, allow_hyphen_values = true)]
    limits: Vec<String>,
    /// The algorithm of limits that do not name one [default: token_bucket]
    #[arg(short, long, value_name = "NAME")]
    algorithm: Option<Algorithm>,
    /// The name of the policy; with several limits, one for each, or one that becomes NAME, NAME-2, NAME-3, …
    #[arg(short, long = "policy", value_name = "NAME", default_value = "cli")]
    policies: Vec<String>,
    #[command(flatten)]
    of_verb: M,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    cost: CostArg,
    /// Take what is left, up to --cost, instead of all or nothing
    #[arg(long)]
    up_to: bool,
    /// With --up-to: deny the call if fewer units than these are left [default: 1]
    #[arg(long, value_name = "N", requires = "up_to")]
    at_least: Option<Cost>,
    /// Make this many calls in a row; the exit code is that of the last
    #[arg(short, long, value_name = "N")]
    repeat: Option<u64>,
    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RefundArgs {
    #[command(flatten)]
    cost: CostArg,
    /// When they were charged: `decided_at_us` of the decision. Units that have expired are not given back
    #[arg(long, value_name = "MICROS")]
    decided_at: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReserveArgs {
    #[command(flatten)]
    cost: CostArg,
    /// For how long the units are held
    #[arg(long, value_name = "TIME", default_value = "1min", value_parser = hold::ttl)]
    ttl: Duration,
    /// What becomes of units that nobody settles: charge or refund
    #[arg(long, value_name = "WORD", default_value = "charge")]
    on_abandon: OnAbandon,
    /// What happens to more units than are held: debt, cap or refuse
    #[arg(long, value_name = "WORD", default_value = "debt")]
    overrun: Overrun,
    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RequestArgs {
    /// The id of the call, 1 to 128 bytes: the same call again is answered as before, and not charged
    #[arg(long, value_name = "ID")]
    request_id: Option<OsString>,
    /// For how long the answer is remembered, from 1ms to 24h
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = request_id_ttl, requires = "request_id")]
    request_id_ttl: Duration,
}

impl RequestArgs {
    fn id(&self) -> anyhow::Result<Option<RequestId>> {
        let Some(id) = &self.request_id else { return Ok(None) };
        Ok(Some(RequestId::new(id.as_encoded_bytes())?.kept_for(self.request_id_ttl)?))
    }
}

/// A time for which an answer is remembered.
pub(crate) fn request_id_ttl(text: &str) -> anyhow::Result<Duration> {
    let ttl = duration::parse(text)?;
    let possible = (RequestId::SHORTEST..=RequestId::LONGEST).contains(&ttl);
    ensure!(possible, "an answer is remembered from 1ms to 24h, not {text}");
    Ok(ttl)
}

#[derive(Debug, clap::Args)]
pub(crate) struct CostArg {
    /// How many units the call costs
    #[arg(short, long, value_name = "N", default_value = "1", allow_hyphen_values = true)]
    pub(crate) cost: Cost,
}

pub(crate) const CHECK_EXAMPLES: &str = "\
Examples:
  tallygate check alice --limit 3/min --repeat 5
  tallygate check alice --limit \"10/s burst 50\" --cost 20 --json
  tallygate check 203.0.113.7 --limit 10/s --limit \"1000/day sliding_window\"
  tallygate check alice --limit 100/min --store redis://127.0.0.1:6379
  tallygate check alice --limit 1000/min --cost 900 --up-to --at-least 50 --repeat 3
  tallygate check alice --limit 100/min --request-id mail-4711 --store redis://127.0.0.1:6379

Exit codes: 0 allowed, 1 denied (nothing was charged), 2 error, 3 the store is unreachable.";

pub(crate) const PEEK_EXAMPLES: &str = "\
Examples:
  tallygate peek alice --limit 100/min --store redis://127.0.0.1:6379
  tallygate peek alice --limit 100/min --cost 20 --json

Exit codes: 0 it would be allowed, 1 it would be denied, 2 error, 3 the store is unreachable.";

pub(crate) const REFUND_EXAMPLES: &str = "\
Examples:
  tallygate refund alice --limit 100/min --cost 20 --store redis://127.0.0.1:6379
  tallygate refund alice --limit 100/min --decided-at 1767225600000000

With several limits each is given back on its own.
Exit codes: 0 done, 2 error, 3 the store is unreachable.";

pub(crate) const RESET_EXAMPLES: &str = "\
Examples:
  tallygate reset alice --limit 100/min --store redis://127.0.0.1:6379

The limit says which state is meant: each algorithm keeps its own.
Exit codes: 0 done, 2 error, 3 the store is unreachable.";

pub(crate) const RESERVE_EXAMPLES: &str = "\
Examples:
  tallygate reserve alice --limit 1000/min --cost 900 --store redis://127.0.0.1:6379
  TOKEN=$(tallygate reserve alice --limit 1000/min --cost 900 --store $STORE | tail -n 1)
  tallygate reserve alice --limit 1000/min --ttl 10min --on-abandon refund --json --store $STORE

The last line is the token of the hold, for settle, cancel and extend. It is a secret.
Exit codes: 0 held, 1 denied (nothing was charged), 2 error, 3 the store is unreachable.";

pub(crate) async fn check(args: Args<CheckArgs>, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let rules = args.rules()?;
    let CheckArgs { cost: CostArg { cost }, up_to, at_least, repeat, .. } = args.of_verb;
    let checks = args.checks(&rules, cost)?;
    let call = match up_to {
        true => Call::check_up_to(&checks, UpTo::new(cost).at_least(at_least.unwrap_or(Cost::ONE))?)?,
        false => Call::new(Verb::Check, &checks)?,
    };
    let call = call.with_request_id(args.of_verb.request.id()?);
    args.decide(&call, &checks, repeat, out).await
}

pub(crate) async fn peek(args: Args<CostArg>, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let rules = args.rules()?;
    let checks = args.checks(&rules, args.of_verb.cost)?;
    args.decide(&Call::new(Verb::Peek, &checks)?, &checks, None, out).await
}

pub(crate) async fn reserve(args: Args<ReserveArgs>, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let rules = args.rules()?;
    let ReserveArgs { cost: CostArg { cost }, ttl, on_abandon, overrun, .. } = args.of_verb;
    // The operator asks, and no policy grants less.
    let terms = HoldTerms::DEFAULT.with_on_abandon(on_abandon).with_overrun(overrun).with_longest(HoldTerms::LONGEST);
    let checks = args.checks(&rules, cost)?;
    let checks: Vec<Check<'_>> = checks.iter().map(|check| check.with_holds(Some(&terms))).collect();
    let call = Call::reserve(&checks, Reservation::new(ttl))?.with_request_id(args.of_verb.request.id()?);
    let store = args.store.open().await?;
    let policies: Vec<&str> = checks.iter().map(|check| check.key.policy()).collect();
    let decision = call.ask(&store).await?;
    if decision.conflicts() {
        bail!(CheckError::Conflict);
    }
    let hold = call.hold_of(&decision);
    if args.output.json {
        let hold = hold.map(|hold| hold.to_string());
        output::write_json(out, &Reserved { decision: decision_answer(&policies, &decision), hold })?;
    } else {
        output::write_decision(out, &args.output, &policies, &decision)?;
        // Alone on its line, for scripts.
        hold.map_or(Ok(()), |hold| writeln!(out, "{hold}"))?;
    }
    note_if_forgotten(&store);
    Ok(Outcome::from(&decision))
}

#[derive(Serialize)]
struct Reserved<'a> {
    #[serde(flatten)]
    decision: tallygate_http::Answer<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<String>,
}

pub(crate) async fn refund(args: Args<RefundArgs>, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let (rules, cost) = (args.rules()?, args.of_verb.cost.cost);
    let charged_at = args.of_verb.decided_at.map(Timestamp::from_micros);
    let mut checks = args.checks(&rules, cost)?;
    checks.iter_mut().for_each(|check| *check = check.with_charged_at(charged_at));
    args.give_back(Verb::Refund, &checks, out, |policy, refunded| {
        let text = format!("{refunded} of {cost} given back");
        (text, Refunded { policy: policy.to_owned(), cost: cost.get(), refunded })
    })
    .await
}

pub(crate) async fn reset(args: Args<()>, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let rules = args.rules()?;
    args.give_back(Verb::Reset, &args.checks(&rules, Cost::ONE)?, out, |policy, forgotten| {
        let text = if forgotten > 0 { "forgotten" } else { "there was nothing to forget" };
        (text.to_owned(), Reset { policy: policy.to_owned(), existed: forgotten > 0 })
    })
    .await
}

#[derive(Serialize)]
struct Refunded {
    policy: String,
    cost: u64,
    refunded: u64,
}

#[derive(Serialize)]
struct Reset {
    policy: String,
    existed: bool,
}

impl<M: clap::Args> Args<M> {
    /// Makes one call, or `repeat` calls: then text has a line for each and a summary.
    async fn decide(
        &self,
        call: &Call<'_>,
        checks: &[Check<'_>],
        repeat: Option<u64>,
        out: &mut impl Write,
    ) -> anyhow::Result<Outcome> {
        ensure!(repeat != Some(0), "--repeat 0 makes no call: use at least 1, for example --repeat 5");
        let store = self.store.open().await?;
        let policies: Vec<&str> = checks.iter().map(|check| check.key.policy()).collect();
        let in_lines = repeat.filter(|_| !self.output.json);
        let (mut last, mut allowed) = (Outcome::Allowed, 0);
        for number in 1..=repeat.unwrap_or(1) {
            let decision = call.ask(&store).await?;
            if decision.conflicts() {
                bail!(CheckError::Conflict);
            }
            last = Outcome::from(&decision);
            allowed += u64::from(last == Outcome::Allowed);
            if let Some(repeat) = in_lines {
                let digits = repeat.to_string().len();
                writeln!(out, "{number:>digits$}  {}", output::decision_text(&policies, &decision))?;
            } else {
                output::write_decision(out, &self.output, &policies, &decision)?;
            }
        }
        if let Some(repeat) = in_lines {
            writeln!(out, "{allowed} of {repeat} allowed, {} denied", repeat - allowed)?;
        }
        if repeat.is_none() {
            note_if_forgotten(&store);
        }
        Ok(last)
    }

    /// Gives back under each limit on its own. `describe` makes text and JSON of a policy and its units.
    async fn give_back<T: Serialize>(
        &self,
        verb: Verb,
        checks: &[Check<'_>],
        out: &mut impl Write,
        describe: impl Fn(&str, u64) -> (String, T),
    ) -> anyhow::Result<Outcome> {
        let store = self.store.open().await?;
        let mut objects = Vec::new();
        for check in checks {
            let policy = check.key.policy();
            let units = Call::new(verb, &[*check])?.ask(&store).await?.binding().units();
            let (text, object) = describe(policy, units);
            if !self.output.json {
                writeln!(out, "{}: {text}", sanitize::text(policy))?;
            }
            objects.push(object);
        }
        if self.output.json {
            output::write_json(out, &BTreeMap::from([(format!("{}s", verb.name()), objects)]))?;
        }
        note_if_forgotten(&store);
        Ok(Outcome::Allowed)
    }

    /// The limits with their policies, in the order of the arguments.
    fn rules(&self) -> anyhow::Result<Vec<(String, Limit)>> {
        let count = self.limits.len();
        let names = match self.policies.as_slice() {
            [name] => {
                let numbered = (2..=count).map(|number| format!("{name}-{number}"));
                std::iter::once(name.clone()).chain(numbered).collect()
            }
            names if names.len() == count => names.to_vec(),
            names => bail!(
                "there are {} policy names for {count} limits: give one for each limit, or a single one for all",
                names.len()
            ),
        };
        let limits = self.limits.iter().map(|text| limit(text, self.algorithm));
        names.into_iter().zip(limits).map(|(name, limit)| Ok((name, limit?))).collect()
    }

    fn checks<'a>(&'a self, rules: &'a [(String, Limit)], cost: Cost) -> anyhow::Result<Vec<Check<'a>>> {
        let subject = self.subject.as_encoded_bytes();
        rules.iter().map(|(policy, limit)| Ok(Check::new(Key::new(policy, subject)?, limit).cost(cost))).collect()
    }
}

fn limit(text: &str, asked: Option<Algorithm>) -> anyhow::Result<Limit> {
    let limit = Limit::parse_with(text, asked)?;
    if let Some(asked) = asked.filter(|asked| *asked != limit.algorithm()) {
        let written = limit.algorithm();
        bail!("the limit `{text}` names {written} and --algorithm names {asked}: leave one of them out");
    }
    Ok(limit)
}
