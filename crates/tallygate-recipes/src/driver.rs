//! The calls of a recipe, made to it or to Tallygate.

use std::time::Duration;

use anyhow::Context;
use tallygate::clock::Timestamp;
use tallygate::history::Record;
use tallygate::{Check, Cost, Key, Limit, Limiter};
use tallygate_redis::RedisStore;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::recipe::{Call, Code, Recipe, Step};
use crate::server::{SUBJECT, Server};

/// Concurrent calls to Tallygate when they are as fast as possible.
const CONCURRENT: usize = 64;

/// Makes the calls of a recipe; returns the answers of the limit that is checked.
pub(crate) async fn drive(
    server: &mut Server,
    recipe: &Recipe,
    limits: &[Limit],
    policy: &str,
    ours: bool,
) -> anyhow::Result<Vec<Record>> {
    let (start_us, _) = server.run(&[]).await?;
    let judged = limits.last().context("a recipe has a limit")?;
    let call = Call {
        key: Key::new(policy, SUBJECT)?.encode(&server.prefix, judged.algorithm().kind()),
        amounts: limits.iter().map(|limit| i64::try_from(limit.amount())).collect::<Result<_, _>>()?,
        capacity: judged.capacity(),
        window_ms: u64::try_from(judged.window().as_millis())?,
        cost: 1,
        client_us: start_us,
        id: 0,
        last_only: false,
    };
    let named = |(place, limit): (usize, &Limit)| (format!("{policy}-{place}"), limit.clone());
    let target =
        if ours { Target::Ours(limits.iter().enumerate().map(named).collect()) } else { Target::Recipe(recipe.code) };
    let mut driver = Driver { server, target, call, start_us, stalled: Vec::new(), records: Vec::new() };
    for step in recipe.drive {
        driver.step(*step).await?;
    }
    Ok(driver.records)
}

enum Target {
    Recipe(Code),
    /// With the policy that each limit belongs to.
    Ours(Vec<(String, Limit)>),
}

struct Driver<'a> {
    server: &'a mut Server,
    target: Target,
    /// The next call, except for its cost and id.
    call: Call,
    start_us: u64,
    /// Commands of clients that have stopped.
    stalled: Vec<String>,
    records: Vec<Record>,
}

impl Driver<'_> {
    async fn step(&mut self, step: Step) -> anyhow::Result<()> {
        let window_us = self.call.window_ms * 1000;
        match step {
            Step::Calls(count) => self.calls(count, 1, false).await?,
            Step::Costs(count, cost) => self.calls(count, cost, false).await?,
            Step::LastOnly(count) => {
                self.call.last_only = true;
                self.calls(count, 1, false).await?;
            }
            Step::Paced(count, millis) => {
                for _ in 0..count {
                    self.calls(1, 1, false).await?;
                    sleep(Duration::from_millis(millis)).await;
                }
            }
            Step::Wait(millis) => sleep(Duration::from_millis(millis)).await,
            Step::Dies => {
                self.calls(1, 1, true).await?;
                self.stalled.clear();
            }
            Step::Stall(count) => self.calls(count, 1, true).await?,
            Step::Resume => {
                self.server.run(&std::mem::take(&mut self.stalled)).await?;
            }
            Step::WindowsAhead(windows) => self.call.client_us = self.start_us + windows * window_us,
            Step::Rest(millis) => {
                self.call.client_us = self.start_us - self.start_us % window_us + window_us - millis * 1000;
            }
        }
        Ok(())
    }

    fn next(&mut self, cost: i64) -> Call {
        self.call.id += 1;
        Call { cost, ..self.call.clone() }
    }

    /// Clients that stall send their first commands only. Tallygate, and a script, have only one.
    async fn calls(&mut self, count: usize, cost: i64, stall: bool) -> anyhow::Result<()> {
        match &self.target {
            Target::Recipe(Code::Script(script)) => {
                let script = *script;
                let calls: Vec<Call> = (0..count).map(|_| self.next(cost)).collect();
                for (at, allowed) in self.server.run_script(script, &calls).await? {
                    self.record(at, cost, allowed);
                }
            }
            Target::Recipe(Code::Commands { first, then }) => {
                let (first, then) = (*first, *then);
                for _ in 0..count {
                    let call = self.next(cost);
                    let (at, counts) = self.server.run(&first(&call)).await?;
                    let last = *counts.last().context("the commands of a recipe count")?;
                    let allowed = counts.iter().zip(call.amounts.iter().rev()).all(|(count, amount)| count <= amount);
                    self.record(at, cost, allowed);
                    let rest = then(&call, last);
                    if stall {
                        self.stalled.extend(rest);
                    } else if !rest.is_empty() {
                        self.server.run(&rest).await?;
                    }
                }
            }
            Target::Ours(limits) => {
                // Tallygate refuses a cost of zero or less before it asks the store.
                let Some(cost) = u64::try_from(cost).ok().and_then(|cost| Cost::new(cost).ok()) else { return Ok(()) };
                let asked = if self.call.last_only { &limits[limits.len() - 1..] } else { limits };
                let records = call_ours(&self.server.ours, asked, cost, count).await?;
                records.into_iter().for_each(|record| self.keep(record));
            }
        }
        Ok(())
    }

    /// A call that gives units instead of taking them is not recorded.
    fn record(&mut self, at: u64, cost: i64, allowed: bool) {
        if let Ok(cost) = u64::try_from(cost) {
            self.keep(Record::bare(Timestamp::from_micros(at), cost, allowed));
        }
    }

    /// What an earlier limit denies says nothing about the last.
    fn keep(&mut self, record: Record) {
        if self.call.amounts.len() == 1 || self.call.last_only || record.allowed {
            self.records.push(record);
        }
    }
}

/// Many calls to Tallygate, several at a time.
async fn call_ours(
    limiter: &Limiter<RedisStore>,
    limits: &[(String, Limit)],
    cost: Cost,
    count: usize,
) -> anyhow::Result<Vec<Record>> {
    let mut clients = JoinSet::new();
    for client in 0..CONCURRENT {
        let (limiter, limits) = (limiter.clone(), limits.to_vec());
        clients.spawn(async move {
            let checks: Vec<Check<'_>> = limits
                .iter()
                .map(|(policy, limit)| Ok(Check::new(Key::new(policy, SUBJECT)?, limit).cost(cost)))
                .collect::<anyhow::Result<_>>()?;
            let mut records = Vec::new();
            for _ in (client..count).step_by(CONCURRENT) {
                let decision = limiter.check_all(&checks).await?;
                records.push(Record::of(cost, &decision, &decision.statuses()[checks.len() - 1]));
            }
            anyhow::Ok(records)
        });
    }
    let mut records = Vec::with_capacity(count);
    while let Some(client) = clients.join_next().await {
        records.extend(client??);
    }
    Ok(records)
}
