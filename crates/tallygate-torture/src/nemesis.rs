//! Injects the faults of a schedule, one after the other, and declares what each may cost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tallygate_redis::RedisStore;
use tallygate_testkit::random::Random;
use tallygate_testkit::wait::{PATIENCE, until};
use tallygate_testkit::{Mode, Server};
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::caller::{Scene, Way};
use crate::fault::Fault;
use crate::grpc::GrpcClient;
use crate::history::{Injected, LossKind, Violation};
use crate::schedule::{Persistence, Step};
use crate::siege;
use crate::world::{Nodes, middle};

/// How long clients may still use a demoted master: until their next look at the Sentinels.
const LEAVES_OLD_MASTER: Duration = Duration::from_millis(1200);

/// How long the breaker and the slot map may take to notice a dead shard, and that it is back.
const NOTICES: u64 = 700_000;

/// Runs one step.
pub async fn inject(scene: &Arc<Scene>, step: &Step, stores: &[RedisStore], random: &mut Random) {
    sleep(Duration::from_millis(step.quiet)).await;
    let beside = step.beside.map(|fault| tokio::spawn(beside(Arc::clone(scene), fault, step.number)));
    let from = scene.recorder.now();
    run(scene, step.fault, stores, random).await;
    note(scene, step.fault, step.number, from);
    if let Some(beside) = beside {
        beside.await.expect("a fault of the network ends");
    }
}

/// Runs a fault of the network in a task of its own.
async fn beside(scene: Arc<Scene>, fault: Fault, number: usize) {
    let from = scene.recorder.now();
    run(&scene, fault, &[], &mut Random::new(0)).await;
    note(&scene, fault, number, from);
}

fn note(scene: &Scene, fault: Fault, number: usize, from: u64) {
    let to = scene.recorder.now();
    scene.recorder.with(|log| log.injected.push(Injected { fault, number, from, to }));
}

/// Runs a fault to its end.
async fn run(scene: &Arc<Scene>, fault: Fault, stores: &[RedisStore], random: &mut Random) {
    let world = &scene.world;
    match fault {
        Fault::Proxy { mode, millis } => {
            let proxy = world.proxy.as_ref().expect("a world with a proxy");
            proxy.set(mode);
            sleep(Duration::from_millis(millis)).await;
            if matches!(mode, Mode::BlackHole | Mode::DropReplies) {
                // Bytes that were swallowed never come: no connection of the real world goes on after them.
                proxy.set(Mode::Reset);
                sleep(Duration::from_millis(25)).await;
            }
            proxy.set(Mode::Pass);
        }
        Fault::Clock { micros, .. } => {
            // In flight at a jump, a call could be decided on either side of it.
            let gate = scene.gate.write().await;
            sleep(Duration::from_millis(30)).await;
            let from = scene.recorder.now();
            block_in_place(|| world.servers()[0].skew(micros));
            sleep(Duration::from_millis(1)).await;
            scene.recorder.loss(None, from, LossKind::Once);
            drop(gate);
        }
        Fault::ServerStop { millis } => {
            let daemon = &world.served.as_ref().expect("a world with a server").daemon;
            daemon.stop();
            sleep(Duration::from_millis(millis)).await;
            daemon.cont();
        }
        Fault::Flood { connections, millis } => {
            let on_error = random.pick(&["allow", "allow", "local", "deny"]);
            siege::flood(scene, connections, Duration::from_millis(millis), on_error, random.number()).await;
        }
        Fault::SlowBodies { connections } => siege::slow_bodies(scene, connections).await,
        Fault::ManyChecks { count } => siege::many_checks(scene, count).await,
        Fault::FarStore { millis } => siege::far_store(scene, millis).await,
        Fault::HangUps { calls } => {
            let library = stores.iter().cycle().take(4).cloned().map(Way::Library);
            let ways = match &world.served {
                None => library.collect(),
                Some(served) => {
                    let mut ways: Vec<Way> = (0..3).map(|_| Way::Http(None)).collect();
                    for _ in 0..3 {
                        ways.push(Way::Grpc(GrpcClient::open(served.grpc()).await.expect("no fault is active")));
                    }
                    ways
                }
            };
            siege::hang_ups(scene, ways, calls, random).await;
        }
        Fault::DeadShard { node, millis, skewed } => dead_shard(scene, node, millis, skewed).await,
        other => block_in_place(|| on_servers(scene, other)),
    }
}

/// Faults that commands and signals cause.
fn on_servers(scene: &Scene, fault: Fault) {
    let world = &scene.world;
    let from = scene.recorder.now();
    let pause = |millis: u64| std::thread::sleep(Duration::from_millis(millis));
    let at = |node: usize| {
        let index = world.master(node);
        (&world.servers()[index], index)
    };
    let set = |server: &Server, name: &str, value: &str| {
        drop(server.command(&["CONFIG", "SET", name, value]).ok());
    };
    match fault {
        Fault::Stop { node, millis } => {
            let (server, _) = at(node);
            server.stop();
            pause(millis);
            server.cont();
        }
        Fault::Kill { node, millis } => {
            let (server, index) = at(node);
            if world.schedule.persistence == Persistence::Rdb {
                drop(server.command(&["SAVE"]).ok());
                pause(30);
            }
            let from = scene.recorder.now();
            server.kill();
            pause(millis);
            server.restart();
            world.configure();
            if world.schedule.persistence != Persistence::Aof {
                scene.recorder.loss(world.keys_on(index), from, LossKind::Once);
            }
        }
        Fault::ScriptFlush { node } => drop(at(node).0.command(&["SCRIPT", "FLUSH"]).ok()),
        Fault::FlushAll { node } => {
            drop(at(node).0.command(&["FLUSHALL"]).ok());
            scene.recorder.loss(None, from, LossKind::Once);
        }
        Fault::ClientKill { node } => drop(at(node).0.command(&["CLIENT", "KILL", "TYPE", "normal"])),
        Fault::ReplicaCut { node } => drop(at(node).0.command(&["CLIENT", "KILL", "TYPE", "replica"])),
        Fault::ClientPause { node, millis } => {
            drop(at(node).0.command(&["CLIENT", "PAUSE", &millis.to_string(), "ALL"]).ok());
            pause(millis + 20);
        }
        Fault::OutOfMemory { node, millis } => {
            let (server, _) = at(node);
            set(server, "maxmemory", "1");
            pause(millis);
            set(server, "maxmemory", "0");
        }
        Fault::EvictionFlood { node } => evict(scene, at(node).0, from),
        Fault::Busy { node, millis } => busy(at(node).0, millis),
        Fault::Acl { node, millis } => {
            let (server, _) = at(node);
            drop(server.command(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]).ok());
            pause(millis);
            drop(server.command(&["ACL", "SETUSER", "default", "+@all"]).ok());
        }
        Fault::SentinelFailover | Fault::SentinelKill | Fault::SentinelStop { .. } => sentinel(scene, fault, from),
        Fault::ClusterFailover { .. } | Fault::ClusterKill { .. } | Fault::SlotMoves { .. } => {
            cluster(scene, fault, from);
        }
        other => unreachable!("{other} is not a fault of a server"),
    }
}

fn evict(scene: &Scene, server: &Server, from: u64) {
    let used: u64 = server.info("used_memory").and_then(|text| text.parse().ok()).expect("INFO has it");
    let set = |name: &str, value: &str| drop(server.command(&["CONFIG", "SET", name, value]).ok());
    set("maxmemory-policy", "allkeys-random");
    set("maxmemory", &(used + 100_000).to_string());
    let (mut connection, junk) = (server.connect().expect("it accepts"), "x".repeat(2000));
    for index in 0..200 {
        // A refusal is part of it: not even an eviction may make room.
        let _ = connection.call(&["SET", &format!("junk:{index}"), &junk, "PX", "300"]);
    }
    set("maxmemory", "0");
    set("maxmemory-policy", "noeviction");
    scene.recorder.loss(None, from, LossKind::Repeated);
}

/// A script that does not end, until it is killed.
fn busy(server: &Server, millis: u64) {
    std::thread::scope(|scope| {
        let script = scope.spawn(|| server.try_command(&["EVAL", "while true do end", "0"]));
        std::thread::sleep(Duration::from_millis(millis));
        // A server that runs no script may be about to: on a busy machine the fault itself begins late.
        until("the long script to be killed", PATIENCE, || {
            drop(server.try_command(&["SCRIPT", "KILL"]));
            script.is_finished().then_some(())
        });
    });
}

fn sentinel(scene: &Scene, fault: Fault, from: u64) {
    let Nodes::Sentinel(sentinel) = &scene.world.nodes else { panic!("{fault} needs Sentinels") };
    match fault {
        Fault::SentinelFailover => drop(sentinel.failover()),
        Fault::SentinelKill => {
            let old = sentinel.master();
            let port = sentinel.kill_master();
            sentinel.wait_for_new_master(port);
            old.restart();
        }
        Fault::SentinelStop { millis } => {
            let old = sentinel.master();
            old.stop();
            std::thread::sleep(Duration::from_millis(millis));
            sentinel.wait_for_new_master(old.port());
            old.cont();
        }
        other => unreachable!("{other}"),
    }
    until("one master and its replicas", PATIENCE, || {
        // Asked each time: the Sentinels may change their minds once more.
        let master = sentinel.master().port();
        let follows = |server: &Server| {
            let role = server.info("role")?;
            let follows = role == "slave" && server.info("master_port")? == master.to_string();
            (follows && server.info("master_link_status")? == "up").then_some(())
        };
        let others = sentinel.servers().iter().filter(|server| server.port() != master);
        others.map(follows).collect::<Option<Vec<()>>>().map(drop)
    });
    std::thread::sleep(LEAVES_OLD_MASTER);
    scene.world.settle();
    scene.recorder.loss(None, from, LossKind::SplitBrain);
}

fn cluster(scene: &Scene, fault: Fault, from: u64) {
    let world = &scene.world;
    let Nodes::Cluster(cluster) = &world.nodes else { panic!("{fault} needs a cluster") };
    match fault {
        Fault::ClusterFailover { node, takeover: false } => {
            // The replica waits for the last byte: nothing is lost.
            cluster.failover(world.master(node));
            world.settle();
        }
        Fault::ClusterFailover { node, takeover: true } => {
            let index = world.master(node);
            let keys = world.keys_on(index);
            cluster.take_over_from(index);
            world.settle();
            scene.recorder.loss(keys, from, LossKind::SplitBrain);
        }
        Fault::ClusterKill { node } => {
            let index = world.master(node);
            let keys = world.keys_on(index);
            let server = &cluster.nodes()[index];
            server.kill();
            cluster.wait_for_takeover(index, middle(node));
            server.restart();
            world.settle();
            scene.recorder.loss(keys, from, LossKind::SplitBrain);
        }
        Fault::SlotMoves { count } => {
            for move_number in 0..count {
                let place = usize::try_from(move_number).expect("few") * 7 + usize::try_from(from).expect("small");
                let slot = world.slot(place % world.keys.len());
                let others: Vec<usize> =
                    (0..3).map(|node| world.master(node)).filter(|&master| master != cluster.node_of(slot)).collect();
                if let Some(&to) = others.first() {
                    cluster.move_slot(slot, to);
                }
            }
        }
        other => unreachable!("{other}"),
    }
}

/// One master dies for a while. Its states are unreachable, and only those.
async fn dead_shard(scene: &Arc<Scene>, node: usize, millis: u64, skewed: bool) {
    let world = &scene.world;
    let (index, keys) = block_in_place(|| {
        let index = world.master(node);
        (index, world.keys_on(index).expect("a cluster"))
    });
    if skewed {
        let subjects = world.schedule.load.subjects;
        let dead = (0..subjects).filter(|subject| keys.contains(&world.key_of(0, *subject))).collect();
        *world.preferred.lock().expect("no caller panics") = dead;
    }
    let from = scene.recorder.now();
    let server = &world.servers()[index];
    block_in_place(|| server.kill());
    // The breaker needs a moment; the rest of the time counts.
    sleep(Duration::from_millis(millis) + Duration::from_micros(NOTICES)).await;
    let to = scene.recorder.now();
    judge_dead_shard(scene, &keys, from + NOTICES, to);
    world.preferred.lock().expect("no caller panics").clear();
    block_in_place(|| {
        server.restart();
        world.settle();
    });
    scene.recorder.loss(Some(keys), from, LossKind::Once);
    // Until the slot map is read again.
    sleep(Duration::from_millis(300)).await;
}

fn judge_dead_shard(scene: &Scene, dead: &[usize], from: u64, to: u64) {
    let deadline = u64::try_from(scene.world.schedule.load.deadline.as_micros()).expect("small");
    let (mut others, mut waits, mut healthy) = (BTreeMap::<String, u64>::new(), Vec::new(), Vec::new());
    let starved = scene.recorder.with(|log| {
        for call in log.calls.iter().filter(|call| call.sent >= from && call.ended <= to) {
            if call.end == crate::history::End::HungUp {
                continue;
            }
            if call.parts.iter().any(|part| dead.contains(&part.key)) {
                waits.push(call.ended - call.sent);
            } else {
                healthy.push(call.ended - call.sent);
                if !call.by_store() {
                    *others.entry(call.end.name()).or_default() += 1;
                }
            }
        }
        log.starved(from, to)
    });
    // On a machine that is this busy any call may be late.
    if starved > deadline / 2 {
        return;
    }
    let not_by_store: u64 = others.values().sum();
    if healthy.len() >= 30 && not_by_store * 10 > healthy.len() as u64 {
        let what = format!(
            "one of three shards is dead: {not_by_store} of {} calls to the other two were not answered by the store, but by {others:?}",
            healthy.len()
        );
        scene.recorder.violation(Violation::new("a dead shard costs its own keys only (A2)", what));
    }
    // A busy server process is as slow for the healthy shards.
    let (wait, usual) = (median(&mut waits), median(&mut healthy));
    if waits.len() >= 30 && wait * 2 > deadline && wait > 2 * usual {
        let what = format!(
            "half of {} calls to a shard that has been dead for {} ms took {wait} us or more, and {usual} us to the others",
            waits.len(),
            NOTICES / 1000
        );
        scene.recorder.violation(Violation::new("calls to a dead shard fail fast (A2)", what));
    }
}

/// Of nothing, 0.
fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}
