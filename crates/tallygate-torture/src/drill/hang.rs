//! A store that hangs, and callers that are too many for it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tallygate_redis::RedisStore;

use super::figures::{Times, millis, phantoms, policy, sources};
use super::{Sheet, schedule};
use crate::caller::{Scene, Way};
use crate::fault::Fault;
use crate::history::{Call, Recorder};
use crate::round;
use crate::schedule::{Schedule, WorldKind};
use crate::siege;
use crate::world::World;

/// The default of the library and of the server.
const IN_FLIGHT: u64 = 1024;

/// Callers at the same time: enough to keep two cores busy.
const CALLERS: usize = 64;

/// Those that leave: enough to fill every place in flight, if each left one behind in a few milliseconds.
const LEAVERS: usize = 256;

/// After so long a server that answers nothing is down, in microseconds; see `docs/guarantees.md`, section 6.
const OWES: u64 = 200_000;

pub fn hang(seconds: u64) -> Sheet {
    let mut sheet = Sheet::default();
    for (served, name) in [(false, "the library"), (true, "the server")] {
        let fault = Fault::Stop { node: 0, millis: seconds * 1000 };
        let world = if served { WorldKind::Server } else { WorldKind::Standalone };
        // Not used up before the fault: a call that is denied charges nobody.
        let schedule = schedule(world, served, CALLERS, 50_000, &[fault]);
        sheet.part(format!("Redis is stopped for {seconds} s; {CALLERS} callers through {name}"));
        one(&mut sheet, &schedule);
        sheet.part(format!("Redis is stopped for 1 s; {LEAVERS} callers through {name} leave after 3 ms each"));
        let (calls, charged) = in_scene(&schedule, async |scene| {
            let ways = ways(scene, served).await;
            siege::leavers(scene, ways, Duration::from_secs(1)).await
        });
        sheet.figure("calls", calls, "");
        sheet.at_most("units charged to nobody", charged, IN_FLIGHT);
    }
    sheet
}

fn one(sheet: &mut Sheet, schedule: &Schedule) {
    let outcome = round::run(schedule);
    let log = &outcome.log;
    if let Some(injected) = log.injected.first() {
        let (from, to) = (injected.from, injected.to);
        let deadline = u64::try_from(schedule.load.deadline.as_micros()).expect("small");
        let sent = |begin: u64, end: u64| log.calls.iter().filter(move |call| (begin..end).contains(&call.sent));
        let before = Times::of(sent(from - 1_000_000 - deadline, from - deadline));
        sheet.figure("before: calls a second", before.count(), "");
        sheet.figure("before: p50 / p99 / max", before.spread(), "");
        let first = Times::of(sent(from, from + OWES));
        let what = format!("first {} ms: p50 / p99 / max of {} calls", OWES / 1000, first.count());
        sheet.figure(what, first.spread(), format!("deadline {} + 5 ms", millis(deadline)));
        let late = log.late.iter().filter(|(at, _)| (from..from + OWES + deadline).contains(at));
        let late = late.map(|(_, late)| *late).max().unwrap_or(0);
        sheet.figure("   this process was woken late meanwhile by at most", millis(late), "");
        // The calls of the first moments end a deadline later.
        let down = Times::of(sent(from + OWES + 2 * deadline, to - deadline));
        let micros = [500, 990, 1000].map(|share| format!("{} us", down.share(share))).join(" / ");
        sheet.figure(format!("once it is down: p50 / p99 / max of {} calls", down.count()), micros, "");
        for (number, on_error) in ["local", "deny", "allow"].into_iter().enumerate() {
            let on_error = if schedule.served { format!("on_error: {on_error}") } else { format!("policy {number}") };
            let calls = sent(from, to).filter(|call| policy(schedule, call) == number);
            sheet.figure(format!("answered meanwhile, {on_error}"), sources(calls), "");
        }
        let back = sent(to, u64::MAX).filter(|call| call.by_store()).map(|call| call.ended - to).min();
        sheet.figure("first answer of the store afterwards, after", back.map_or("-".to_owned(), millis), "1 s");
        let last = sent(to, u64::MAX).filter(|call| !call.by_store()).map(|call| call.ended - to).max();
        sheet.figure("last call without one ended after", last.map_or("none".to_owned(), millis), "1 s");
        // Calls before and after the hang may have been late, too, on a busy machine.
        let long = |call: &&Call| policy(schedule, call) < 2;
        let outside = log.calls.iter().filter(|call| call.ended < from || call.sent > to).filter(long);
        let late = outside.filter(|call| call.parts.iter().any(|part| call.may_have_charged(part))).count() as u64;
        let charged = phantoms(log, schedule, 0) + phantoms(log, schedule, 1);
        let what = format!("units charged to nobody; calls without an answer before and after: {late}");
        sheet.at_most(what, charged, IN_FLIGHT + late);
    }
    sheet.checked(&outcome);
}

pub fn flood(seconds: u64) -> Sheet {
    const CONNECTIONS: u64 = 3000;
    let mut sheet = Sheet::default();
    let schedule = schedule(WorldKind::Server, true, 1, 1, &[]);
    for (number, on_error) in (1..).zip(["allow", "deny", "local"]) {
        let time = Duration::from_secs(seconds);
        let flooded = in_scene(&schedule, async |scene| siege::flood(scene, CONNECTIONS, time, on_error, number).await);
        let limit = crate::served::FLOOD_LIMIT;
        sheet.part(format!("{CONNECTIONS} connections, one key, limit {limit}/day, on_error: {on_error}"));
        let statuses = flooded.by_status.iter().map(|(status, count)| format!("{status}: {count}"));
        sheet.figure("answers by status", statuses.collect::<Vec<_>>().join(", "), "");
        sheet.figure("p50 / p99 / max", Times::new(flooded.took.clone()).spread(), "");
        sheet.at_most("admitted", flooded.admitted(), flooded.bound);
    }
    sheet
}

async fn ways(scene: &Arc<Scene>, served: bool) -> Vec<Way> {
    if served {
        return (0..LEAVERS).map(|_| Way::Http(None)).collect();
    }
    let builder = RedisStore::builder(&scene.world.url()).deadline(scene.world.schedule.load.deadline);
    let store = builder.connect().await.expect("the store accepts");
    (0..LEAVERS).map(|_| Way::Library(store.clone())).collect()
}

/// Starts the world of a schedule, without its load.
fn in_scene<T>(schedule: &Schedule, act: impl AsyncFnOnce(&Arc<Scene>) -> T) -> T {
    let world = World::start(schedule);
    let over = AtomicBool::new(false);
    let scene = Arc::new(Scene { world, recorder: Recorder::default(), gate: Default::default(), over });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("threads can be started").block_on(act(&scene))
}
