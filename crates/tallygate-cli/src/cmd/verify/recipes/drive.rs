//! The calls of a recipe, made to it or to ours.

use std::time::Duration;

use anyhow::Context;
use tallygate::history::Record;
use tallygate::{Check, CheckError, Cost, Key, Limit, Limiter, ManualClock, StoreError, Timestamp};
use tallygate_redis::RedisStore;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::bench::{Bench, record};
use super::recipe::{Call, Code, Recipe, Step};

/// Calls of ours that are under way at once when they go as fast as they can.
const AT_ONCE: usize = 64;
const SUBJECT: &str = "subject";

/// Follows the drive of a recipe; returns the answers that are about the limit that is judged.
pub(crate) async fn drive(
    bench: &mut Bench,
    recipe: &Recipe,
    limits: &[Limit],
    policy: &str,
    ours: bool,
) -> anyhow::Result<Vec<Record>> {
    let start_us = bench.now().await?;
    let judged = limits.last().context("a recipe has a limit")?;
    let call = Call {
        key: Key::new(policy, SUBJECT)?.encode(&bench.prefix, judged.algorithm().kind()),
        amounts: limits.iter().map(|limit| i64::try_from(limit.amount())).collect::<Result<_, _>>()?,
        capacity: judged.capacity(),
        window_ms: u64::try_from(judged.window().as_millis())?,
        cost: 1,
        client_us: start_us,
        id: 0,
        last_only: false,
    };
    let policies: Vec<String> = (0..limits.len()).map(|place| format!("{policy}-{place}")).collect();
    let whom = if ours { Whom::Ours { limits, policies: &policies } } else { Whom::Recipe(recipe.code) };
    let mut driver = Driver { bench, whom, call, start_us, stalled: Vec::new(), records: Vec::new() };
    for step in recipe.drive {
        driver.step(*step).await?;
    }
    let records = driver.records;
    if ours {
        for (policy, limit) in policies.iter().zip(limits) {
            bench.ours.reset(Check::new(Key::new(policy, SUBJECT)?, limit)).await?;
        }
    }
    Ok(records)
}

#[derive(Clone, Copy)]
enum Whom<'a> {
    Recipe(Code),
    Ours { limits: &'a [Limit], policies: &'a [String] },
}

struct Driver<'a> {
    bench: &'a mut Bench,
    whom: Whom<'a>,
    /// The next call, but for its cost and id.
    call: Call,
    start_us: u64,
    /// Calls that have run their first commands only, with the numbers those answered.
    stalled: Vec<(Call, Vec<i64>)>,
    records: Vec<Record>,
}

impl Driver<'_> {
    async fn step(&mut self, step: Step) -> anyhow::Result<()> {
        let window_us = self.call.window_ms * 1000;
        match step {
            Step::Calls(count) => self.calls(count, 1).await?,
            Step::Costs(count, cost) => self.calls(count, cost).await?,
            Step::Cost(cost) => self.calls(1, cost).await?,
            Step::LastOnly(count) => {
                self.call.last_only = true;
                self.calls(count, 1).await?;
            }
            Step::Paced(count, millis) => {
                for _ in 0..count {
                    self.calls(1, 1).await?;
                    sleep(Duration::from_millis(millis)).await;
                }
            }
            Step::Wait(millis) => sleep(Duration::from_millis(millis)).await,
            Step::Dies => self.half_calls(1, false).await?,
            Step::Stall(count) => self.half_calls(count, true).await?,
            Step::Resume => self.resume().await?,
            Step::WindowsAhead(windows) => self.call.client_us = self.start_us + windows * window_us,
            Step::Rest(millis) => {
                self.call.client_us = self.start_us - self.start_us % window_us + window_us - millis * 1000;
            }
            Step::Flap { seconds, apart, calls } => self.flap(seconds, apart, calls).await?,
        }
        Ok(())
    }

    fn next(&mut self, cost: i64) -> Call {
        self.call.id += 1;
        Call { cost, ..self.call.clone() }
    }

    async fn calls(&mut self, count: usize, cost: i64) -> anyhow::Result<()> {
        let calls: Vec<Call> = (0..count).map(|_| self.next(cost)).collect();
        match self.whom {
            Whom::Recipe(Code::Script(script)) => {
                let records = self.bench.run_script(script, &calls).await?;
                self.records.extend(records);
            }
            Whom::Recipe(code @ Code::Commands { .. }) => {
                for call in calls {
                    let record = self.bench.run_commands(code, &call).await?;
                    self.keep(&call, record);
                }
            }
            Whom::Ours { limits, policies } => {
                // What is negative, or zero, is no cost: it never reaches a store.
                let Some(cost) = u64::try_from(cost).ok().and_then(|cost| Cost::new(cost).ok()) else { return Ok(()) };
                let asked = if self.call.last_only { limits.len() - 1..limits.len() } else { 0..limits.len() };
                let (limits, policies) = (&limits[asked.clone()], &policies[asked]);
                let answers = ask_ours(&self.bench.ours, limits, policies, cost, count).await?;
                for answer in answers {
                    self.keep(&calls[0], Some(answer));
                }
            }
        }
        Ok(())
    }

    /// What an earlier limit denies is no answer about the last.
    fn keep(&mut self, call: &Call, record: Option<Record>) {
        let alone = call.amounts.len() == 1 || call.last_only;
        self.records.extend(record.filter(|record| alone || record.allowed));
    }

    /// Clients that get no further than their first commands. Ours has only one.
    async fn half_calls(&mut self, count: usize, keep: bool) -> anyhow::Result<()> {
        let Whom::Recipe(Code::Commands { first, then }) = self.whom else { return self.calls(count, 1).await };
        for _ in 0..count {
            let call = self.next(1);
            let (at, replies) = self.bench.begin(first(&call)).await?;
            self.records.extend(record(&call, at, then(&call, &replies).0));
            if keep {
                self.stalled.push((call, replies));
            }
        }
        Ok(())
    }

    async fn resume(&mut self) -> anyhow::Result<()> {
        let Whom::Recipe(Code::Commands { then, .. }) = self.whom else { return Ok(()) };
        for (call, replies) in std::mem::take(&mut self.stalled) {
            let (_, rest) = then(&call, &replies);
            self.bench.send(&rest).await?;
        }
        Ok(())
    }

    /// Judged by the clock that is ahead of the other: time that it has shown has passed.
    async fn flap(&mut self, seconds: u64, apart: u64, count: usize) -> anyhow::Result<()> {
        let clock = ManualClock::new(Timestamp::from_micros(self.start_us));
        let ours = match self.whom {
            Whom::Ours { .. } => Some(self.bench.ours_on(&clock).await?),
            Whom::Recipe(_) => None,
        };
        let mut latest = 0;
        for second in 0..seconds {
            let now = self.start_us + (second + apart * (second % 2)) * 1_000_000;
            latest = now.max(latest);
            clock.set(Timestamp::from_micros(now));
            self.call.client_us = now;
            let mut records = match (self.whom, &ours) {
                (Whom::Recipe(Code::Script(script)), _) => {
                    let calls: Vec<Call> = (0..count).map(|_| self.next(1)).collect();
                    self.bench.run_script(script, &calls).await?
                }
                (Whom::Ours { limits, policies }, Some(ours)) => {
                    ask_ours(ours, limits, policies, Cost::ONE, count).await?
                }
                _ => Vec::new(),
            };
            for record in &mut records {
                record.decided_at = Timestamp::from_micros(latest);
            }
            self.records.extend(records);
        }
        Ok(())
    }
}

/// Many calls of ours, several at a time.
async fn ask_ours(
    limiter: &Limiter<RedisStore>,
    limits: &[Limit],
    policies: &[String],
    cost: Cost,
    count: usize,
) -> anyhow::Result<Vec<Record>> {
    let mut clients = JoinSet::new();
    let at_once = count.min(AT_ONCE);
    for client in 0..at_once {
        let share = count / at_once + usize::from(client < count % at_once);
        let (limiter, limits, policies) = (limiter.clone(), limits.to_vec(), policies.to_vec());
        clients.spawn(async move {
            let mut records = Vec::with_capacity(share);
            let keys = policies.iter().map(|policy| Key::new(policy, SUBJECT)).collect::<Result<Vec<_>, _>>();
            let keys = keys.map_err(|error| StoreError::Corrupt { reason: error.to_string() })?;
            let checks: Vec<Check<'_>> =
                keys.into_iter().zip(&limits).map(|(key, limit)| Check::new(key, limit).cost(cost)).collect();
            for _ in 0..share {
                let decision = limiter.check_all(&checks).await?;
                records.push(Record::of(cost, &decision, &decision.statuses()[checks.len() - 1]));
            }
            Ok::<_, CheckError>(records)
        });
    }
    let mut records = Vec::with_capacity(count);
    while let Some(client) = clients.join_next().await {
        records.extend(client??);
    }
    Ok(records)
}
