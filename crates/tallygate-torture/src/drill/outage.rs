//! Servers that die, and others that take over.

use super::figures::{Times, admitted, millis, policy, sources};
use super::{Sheet, schedule};
use crate::detail::Detail;
use crate::fault::Fault;
use crate::history::{Injected, Log, Loss};
use crate::round;
use crate::schedule::{Schedule, WorldKind};

/// Callers at the same time.
const CALLERS: usize = 64;

/// Used up by the first fault or soon after it, so that a state that is lost shows in what is admitted.
const AMOUNT: u64 = 200;

pub fn sentinel(seconds: u64) -> Sheet {
    let mut sheet = Sheet::default();
    let all = [Fault::SentinelKill, Fault::SentinelStop { millis: seconds * 1000 }, Fault::SentinelFailover];
    for (replicas, min_replicas, faults) in [(1, false, &all[..]), (2, true, &all[..2]), (1, true, &all[..1])] {
        let mut schedule = schedule(WorldKind::Sentinel, true, CALLERS, AMOUNT, faults);
        (schedule.replicas, schedule.min_replicas) = (replicas, min_replicas);
        failovers(&mut sheet, &schedule, "Sentinels, down-after 1 s");
    }
    sheet
}

/// Its faults last as long as the cluster takes.
pub fn cluster(_seconds: u64) -> Sheet {
    let mut sheet = Sheet::default();
    let faults = [
        Fault::ClusterKill { node: 0 },
        Fault::ClusterFailover { node: 2, takeover: false },
        Fault::ClusterFailover { node: 1, takeover: true },
    ];
    for (replicas, min_replicas) in [(1, false), (2, true)] {
        let mut schedule = schedule(WorldKind::Cluster, true, CALLERS, AMOUNT, &faults);
        (schedule.replicas, schedule.min_replicas) = (replicas, min_replicas);
        failovers(&mut sheet, &schedule, "a cluster of three masters");
    }
    sheet
}

pub fn shard(seconds: u64) -> Sheet {
    let mut sheet = Sheet::default();
    let fault = Fault::DeadShard { node: 0, millis: seconds * 1000, skewed: false };
    let mut schedule = schedule(WorldKind::Shards, true, CALLERS, AMOUNT, &[fault]);
    // A minute of full load would not fit into memory.
    schedule.load.pause = 20_000;
    failovers(&mut sheet, &schedule, "three shards without replicas");
    sheet
}

fn failovers(sheet: &mut Sheet, schedule: &Schedule, what: &str) {
    let outcome = round::run(schedule);
    let replicas = match schedule.world {
        WorldKind::Shards => String::new(),
        _ => format!(", replicas of each master: {}", schedule.replicas),
    };
    let least = if schedule.min_replicas { ", min-replicas-to-write 1" } else { "" };
    sheet.part(format!("{what}{replicas}{least}; {CALLERS} callers through the server"));
    for (detail, injected) in outcome.details.iter().zip(&outcome.log.injected) {
        one(sheet, schedule, &outcome.log, detail, injected);
    }
    sheet.part("all of these together");
    over_admission(sheet, schedule, &outcome.log);
    sheet.checked(&outcome);
}

fn one(sheet: &mut Sheet, schedule: &Schedule, log: &Log, detail: &Detail, injected: &Injected) {
    let (from, to) = (injected.from, injected.to);
    sheet.part(format!("{} (repaired after {})", detail.fault, millis(detail.took)));
    // A fault that loses no state, such as a failover that waits for the last byte, is one of the others.
    let losses: Vec<&Loss> = log.losses.iter().filter(|loss| (from..=to).contains(&loss.from)).collect();
    let failed = |key: usize| losses.iter().any(|loss| loss.concerns(key));
    let without = |of_failed: bool| {
        let outages = detail.outages.iter().filter(|(key, _)| failed(**key) == of_failed);
        Times::new(outages.map(|(_, outage)| *outage).collect())
    };
    for (of_failed, what) in [(true, "of the server that failed"), (false, "of others")] {
        let outages = without(of_failed);
        if outages.count() > 0 {
            let each = [0, 500, 1000].map(|share| millis(outages.share(share))).join(" / ");
            let what = format!("without the store, {} states {what}: least / median / most", outages.count());
            sheet.figure(what, each, "");
        }
    }
    let meanwhile = || log.calls.iter().filter(|call| call.ended >= from && call.sent <= to);
    for (number, on_error) in ["local", "deny", "allow"].into_iter().enumerate() {
        let calls = meanwhile().filter(|call| policy(schedule, call) == number);
        sheet.figure(format!("answered by, on_error: {on_error}"), sources(calls), "");
    }
    let others = || meanwhile().filter(|call| !call.parts.iter().any(|part| failed(part.key)));
    let (all, stored) = (others().count(), others().filter(|call| call.by_store()).count());
    if all > 0 {
        sheet.figure("calls to states of others, by the store", format!("{stored} of {all}"), "");
    }
    let by_store = Times::of(meanwhile().filter(|call| call.by_store()));
    let instead = Times::of(meanwhile().filter(|call| !call.by_store()));
    let deadline = format!("deadline {:?}", schedule.load.deadline);
    sheet.figure("by the store: p50 / p99 / max", by_store.spread(), &deadline);
    sheet.figure("otherwise: p50 / p99 / max", instead.spread(), &deadline);
}

/// What states of a long window were given beyond the limit, against guarantees, sections 6 and 7.
fn over_admission(sheet: &mut Sheet, schedule: &Schedule, log: &Log) {
    let admitted = admitted(log, log.peeked.len());
    for (number, on_error) in [(0, "local"), (1, "deny")] {
        let capacity = schedule.load.limits[number].capacity();
        let keys = number * schedule.load.subjects..(number + 1) * schedule.load.subjects;
        let losses = |key: usize| log.losses.iter().filter(|loss| loss.concerns(key)).count() as u64;
        // The state that is nearest to its own bound.
        let (extra, allowed) = keys
            .clone()
            .map(|key| (admitted[key].0.saturating_sub(capacity), losses(key) * capacity))
            .max_by_key(|(extra, allowed)| (extra.saturating_sub(*allowed), *extra))
            .unwrap_or_default();
        let what = format!("admitted by the store beyond {capacity}, on_error: {on_error}");
        sheet.at_most(what, extra, allowed);
        let instead = keys.map(|key| admitted[key].1).max().unwrap_or(0);
        let share = if on_error == "local" { capacity } else { 0 };
        sheet.at_most(format!("admitted instead of the store, on_error: {on_error}"), instead, share);
    }
}
