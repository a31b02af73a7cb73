//! What is in flight on real servers: contenders in several processes, killed, and paused beyond their deadline.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use tallygate::hold::Turn;
use tallygate::limiter::Leases;
use tallygate_redis::RedisStore;
use tallygate_testkit::{Cluster, Flavour};

use super::*;

const URL: &str = "TALLYGATE_TEST_LEASES_STORE";
const PLACES: u64 = 20;
const CONTENDERS: u64 = 200;
const PROCESSES: u64 = 3;
const TTL: Duration = Duration::from_millis(1200);

fn places() -> Limit {
    Limit::concurrent(PLACES).build().unwrap()
}

fn check(limit: &Limit) -> Check<'_> {
    Check::new(Key::new("places", "shop").unwrap(), limit).with_holds(Some(&HoldTerms::DEFAULT))
}

fn say(line: &str) {
    // Written directly, because `println!` would be captured.
    let mut out = std::io::stdout();
    writeln!(out, "{line}").unwrap();
}

/// Takes a place, works with it until the work is done or the lease is lost, and releases it.
async fn contend(leases: Leases<RedisStore>, contender: u64) {
    let (mut random, limit) = (Random::new(contender ^ u64::from(std::process::id())), places());
    loop {
        let Ok(leased) = leases.acquire(&[check(&limit)]).await else { continue };
        let Some(lease) = leased.lease else {
            tokio::time::sleep(Duration::from_millis(random.between(1, 30))).await;
            continue;
        };
        say("took");
        let work = Duration::from_millis(if random.chance(10) { 2500 } else { random.between(1, 60) });
        tokio::select! {
            () = tokio::time::sleep(work) => {}
            () = lease.lost() => say("lost"),
        }
        if work > 2 * TTL && !lease.is_lost() {
            say("renewed");
        }
        if random.chance(30) {
            drop(lease);
        } else if let Ok(released) = lease.release().await {
            say(if released.done { "released" } else { "late" });
        }
    }
}

async fn work(url: &str, count: u64) {
    let leases = Leases::new(patient(url).await, TTL);
    let mut tasks = JoinSet::new();
    for contender in 0..count {
        tasks.spawn(contend(leases.clone(), contender));
    }
    leases.keep(tokio::time::sleep).await;
}

fn start(url: &str, lines: Sender<String>) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holds::leases::never_more_in_flight_than_there_are_places"])
        .env(URL, url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
    child
}

fn signal(child: &Child, signal: &str) {
    Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
}

/// Must show 4: 200 contenders in three processes, which are killed, and paused beyond their deadlines and resumed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_in_flight_than_there_are_places() {
    if let Ok(url) = std::env::var(URL) {
        return work(&url, CONTENDERS / PROCESSES + 1).await;
    }
    let server = Server::redis().start();
    let (limit, limiter) = (places(), patient(&server.url()).await);
    let mut connection = server.connect().unwrap();
    // One script, one instant: what the state says, and which holds live by the server's clock. Each has one unit.
    let live = "local t = redis.call('TIME') local now = t[1] * 1000000 + t[2] \
         local state = redis.call('GET', KEYS[1]) local used = 0 \
         if state and #state == 57 then local ends, units = struct.unpack('<dd', state, 2) if now < ends then used = units end end \
         return { redis.call('ZCOUNT', KEYS[2], '(' .. string.format('%.0f', now), '+inf'), used }";
    let key = Key::new("places", "shop").unwrap().encode("tallygate", Algorithm::Concurrency.kind());
    let opens = format!("{key}-open");
    let (sender, lines) = channel();
    let mut random = Random::new(42);
    let mut workers: Vec<Child> = (0..PROCESSES).map(|_| start(&server.url(), sender.clone())).collect();
    let (began, mut samples, mut full, mut killed, mut paused) = (Instant::now(), 0_u64, 0, 0, 0);
    while began.elapsed() < Duration::from_secs(20) {
        let reply = connection.call(&["EVAL", live, "2", &key, &opens]).unwrap();
        let seen: Vec<u64> = reply.items().iter().map(|count| u64::try_from(count.clone().int()).unwrap()).collect();
        assert!(seen[0] <= PLACES && seen[1] <= PLACES, "{seen:?} in flight");
        assert!(seen[1] >= seen[0], "a place was freed twice: {seen:?}");
        let status = status(&limiter, check(&limit)).await;
        assert_eq!(status.held() + status.remaining(), PLACES, "{status:?}");
        full += u64::from(seen[0] == PLACES);
        samples += 1;
        if samples % 40 == 0 {
            let place = usize::try_from(random.between(0, PROCESSES - 1)).unwrap();
            if random.chance(50) {
                workers[place].kill().unwrap();
                workers[place].wait().unwrap();
                workers[place] = start(&server.url(), sender.clone());
                killed += 1;
            } else {
                signal(&workers[place], "-STOP");
                // All its leases end meanwhile, and their places are taken by others.
                tokio::time::sleep(TTL + TTL / 4).await;
                signal(&workers[place], "-CONT");
                paused += 1;
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for worker in &mut workers {
        worker.kill().unwrap();
        worker.wait().unwrap();
    }
    drop(sender);
    // Nobody releases the places of the dead: they are free by the deadline of the last.
    tokio::time::sleep(TTL).await;
    let after = status(&limiter, check(&limit)).await;
    assert_eq!((after.remaining(), after.held()), (PLACES, 0));
    assert!(every_key_expires(&server) > 0);
    let said = lines.into_iter().fold(HashMap::<String, u64>::new(), |mut said, line| {
        *said.entry(line).or_default() += 1;
        said
    });
    let count = |line: &str| said.get(line).copied().unwrap_or(0);
    let [took, released, late, lost, renewed] = ["took", "released", "late", "lost", "renewed"].map(count);
    println!(
        "{took} leases, {released} released, {renewed} renewed to the end, {lost} lost, {late} released too late; {killed} processes \
         killed, {paused} paused, {samples} samples, {full} of them full"
    );
    assert!(
        took > 500 && released > 200 && lost > 0 && renewed > 0 && killed > 1 && paused > 1 && full > samples / 4,
        "too little happened"
    );
}

/// All leases of a process are renewed by the requests of one trip.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_renewed_on_a_real_server_for_as_long_as_the_work_takes() {
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        let leases = Leases::new(patient(&server.url()).await, Duration::from_millis(600));
        let keeper = leases.clone();
        let keeper = tokio::spawn(async move { keeper.keep(tokio::time::sleep).await });
        let limit = places();
        let mut held = Vec::new();
        for _ in 0..PLACES {
            held.push(leases.acquire(&[check(&limit)]).await.unwrap().lease.unwrap());
        }
        tokio::time::sleep(Duration::from_millis(2000)).await;
        assert!(held.iter().all(|lease| !lease.is_lost()));
        assert!(leases.acquire(&[check(&limit)]).await.unwrap().lease.is_none());
        // The keeper stops, as in a process that hangs: its holders learn it by themselves.
        keeper.abort();
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(held.iter().all(|lease| lease.is_lost()));
        assert!(leases.acquire(&[check(&limit)]).await.unwrap().lease.is_some());
    }
}

/// A state that is evicted while its open holds survive, and the reverse.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_state_is_made_again_from_its_holds_and_lost_holds_free_their_places() {
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        let (limit, limiter) = (places(), patient(&server.url()).await);
        let mut connection = server.connect().unwrap();
        let key = Key::new("places", "shop").unwrap().encode("tallygate", Algorithm::Concurrency.kind());
        let mut holds = Vec::new();
        for _ in 0..PLACES {
            holds.push(reserve(&limiter, &[check(&limit)], Duration::from_millis(1500)).await.unwrap());
        }
        connection.call(&["DEL", &key]).unwrap().ok();
        assert!(reserve(&limiter, &[check(&limit)], TTL).await.is_none(), "they are still in flight");
        assert!(limiter.cancel(&holds[0]).await.unwrap().done);
        assert_eq!(status(&limiter, check(&limit)).await.remaining(), 1);
        connection.call(&["DEL", &format!("{key}-open")]).unwrap().ok();
        // A holder learns it with the next renewal, and all is free by the deadline.
        let renewed = limiter.renew(&holds[1], Turn::random(), TTL).await.unwrap();
        assert_eq!((renewed.state, renewed.done), (HoldState::Expired, false));
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(status(&limiter, check(&limit)).await.remaining(), PLACES);
        assert!(every_key_expires(&server) > 0);
    }
}

/// Beside a limit of another subject, in another slot: all or none, renewed in both, and back in both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_over_several_slots_are_renewed_and_released_in_each() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let limiter = patient(&cluster.url()).await;
    let (limit, rate) = (Limit::concurrent(1).build().unwrap(), yearly(Algorithm::FixedWindow, 10));
    let checks = [
        Check::new(Key::new("places", "a").unwrap(), &limit),
        Check::new(Key::new("places", "b").unwrap(), &limit),
        Check::new(Key::new("requests", "c").unwrap(), &rate),
    ];
    let hold = reserve(&limiter, &checks, TTL).await.unwrap();
    assert!(reserve(&limiter, &checks[1..], TTL).await.is_none());
    let next = Turn::random();
    for _ in 0..2 {
        assert!(limiter.renew(&hold, next, TTL).await.unwrap().done);
    }
    let settled = limiter.settle(&hold, Units::AsReserved).await.unwrap();
    assert_eq!(settled.refused, Some(tallygate::hold::Refused::Renewed));
    let settled = limiter.settle(&hold.at_turn(next), Units::AsReserved).await.unwrap();
    assert_eq!(settled.parts.iter().map(|part| part.refunded).collect::<Vec<_>>(), [1, 1, 0]);
    assert_eq!(status(&limiter, checks[2]).await.remaining(), 9);
    assert!(reserve(&limiter, &checks[..2], TTL).await.is_some());
}
