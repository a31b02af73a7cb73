//! Workers that send mails, some of which bounce, and that are killed at random: the story that counters get wrong.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use tallygate::request::RequestId;
use tallygate_testkit::{FaultProxy, proxy::Mode};

use super::*;
use crate::support::within;

const URL: &str = "TALLYGATE_TEST_MAILER_STORE";
const SEED: &str = "TALLYGATE_TEST_MAILER_SEED";
/// An hour of the story.
const WINDOW: Duration = Duration::from_secs(2);
const MAILS: u64 = 100;
/// By then a worker has delivered its mail, or is dead.
const TTL: Duration = Duration::from_millis(400);

fn mails() -> Limit {
    Limit::builder(MAILS, WINDOW).algorithm(Algorithm::FixedWindow).build().unwrap()
}

fn check(limit: &Limit) -> Check<'_> {
    Check::new(Key::new("mails", "shop").unwrap(), limit).with_holds(Some(&HoldTerms::DEFAULT))
}

/// Reserves, sends, and settles: nothing for a mail that bounces. Each mail is a request with an id, repeated until it has an answer.
async fn work(url: &str, seed: u64) {
    let (mut random, limit) = (Random::new(seed), mails());
    let limiter = within(url, Duration::from_millis(150)).await;
    // Written directly, because `println!` would be captured.
    let mut out = std::io::stdout();
    let mut say = |line: String| writeln!(out, "{line}").unwrap();
    say("\nready".to_owned());
    let mut mail = 0_u64;
    loop {
        mail += 1;
        let id = format!("{}/{mail}", std::process::id());
        let once = limiter.once(RequestId::new(&id).unwrap().kept_for(2 * TTL).unwrap());
        // Whatever was cut off: the next try has the hold of the first.
        let mut tries = 0;
        let reserved = loop {
            tries += 1;
            match once.reserve(&[check(&limit)], TTL).await {
                Ok(reserved) => break Some(reserved),
                Err(_) if tries < 20 => {}
                Err(_) => break None,
            }
        };
        let Some(reserved) = reserved else { continue };
        let Some(hold) = reserved.hold.map(HoldGuard::into_hold) else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let at = reserved.decision.decided_at().unwrap().as_micros();
        say(format!("reserved {at}"));
        if tries > 1 && reserved.decision.replayed() {
            say("again".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(random.between(0, 40))).await;
        let bounces = random.chance(40);
        if bounces {
            say(format!("bouncing {at}"));
        }
        // A settlement is repeated until its answer is here: whatever was done is done once.
        for _ in 0..20 {
            if let Ok(ended) = limiter.settle(&hold, Units::Same(u64::from(!bounces))).await {
                if bounces && ended.state == HoldState::Settled {
                    say(format!("bounced {at} {} {}", ended.decided_at.as_micros(), ended.parts[0].refunded));
                } else if bounces {
                    say(format!("late {at}"));
                }
                break;
            }
        }
    }
}

fn start(url: &str, seed: u64, lines: Sender<String>) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holds::mails::no_hour_has_more_than_its_mails"])
        .env(URL, url)
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
    child
}

/// Eight workers behind a proxy that cuts connections, for eight hours. One is killed and replaced every moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_hour_has_more_than_its_mails() {
    if let Ok(url) = std::env::var(URL) {
        return work(&url, std::env::var(SEED).unwrap().parse().unwrap()).await;
    }
    let server = Server::redis().start();
    let proxy = FaultProxy::start(server.addr());
    let (limit, limiter) = (mails(), patient(&server.url()).await);
    let (sender, lines) = channel();
    let mut random = Random::new(42);
    let mut workers: Vec<Child> = (0..8).map(|seed| start(&proxy.url(), seed, sender.clone())).collect();
    let (began, mut samples, mut killed) = (Instant::now(), 0, 0);
    while began.elapsed() < 8 * WINDOW {
        let seen = status(&limiter, check(&limit)).await;
        assert!(seen.remaining() + seen.held() <= MAILS && seen.debt() == 0, "{seen:?}");
        samples += 1;
        if samples % 4 == 0 {
            let place = usize::try_from(random.between(0, 7)).unwrap();
            workers[place].kill().unwrap();
            workers[place].wait().unwrap();
            killed += 1;
            workers[place] = start(&proxy.url(), 100 + samples, sender.clone());
        }
        if samples % 5 == 0 {
            proxy.set(random.pick(&[Mode::Reset, Mode::DropReplies, Mode::CutAfter(60)]));
            tokio::time::sleep(Duration::from_millis(20)).await;
            proxy.set(Mode::Pass);
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    for worker in &mut workers {
        worker.kill().unwrap();
        worker.wait().unwrap();
    }
    drop(sender);
    // Every dead worker's hold is resolved by its deadline.
    tokio::time::sleep(TTL).await;
    assert_eq!(status(&limiter, check(&limit)).await.held(), 0);
    assert!(every_key_expires(&server) > 0);

    let window = u64::try_from(WINDOW.as_micros()).unwrap();
    let (mut reserved, mut returned, mut in_time) = (HashMap::<u64, u64>::new(), HashMap::<u64, u64>::new(), 0);
    let mut again = 0;
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let hour = |at: usize| words[at].parse::<u64>().unwrap() / window;
        match words[0] {
            "reserved" => *reserved.entry(hour(1)).or_default() += 1,
            // A worker that is killed now may have given it back.
            "again" => again += 1,
            "bouncing" => *returned.entry(hour(1)).or_default() += 1,
            "late" => *returned.entry(hour(1)).or_default() -= 1,
            // A settlement that had to be repeated may be of a later hour than its first try, which gave the unit back.
            "bounced" if hour(1) == hour(2) => {
                assert_eq!(words[3], "1", "a unit that did not come back: {line}");
                in_time += 1;
            }
            _ => {}
        }
    }
    let all: u64 = reserved.values().sum();
    println!(
        "{all} mails in {} hours, {again} by a second try, {in_time} units came back, {killed} workers killed, {samples} samples",
        reserved.len()
    );
    for (hour, mails) in &reserved {
        let kept = mails - returned.get(hour).copied().unwrap_or(0);
        assert!(kept <= MAILS, "{kept} mails in hour {hour}");
    }
    let full = reserved.values().filter(|mails| **mails > MAILS).count();
    assert!(
        killed > 20 && in_time > 50 && all > 300 && full > 0 && again > 0,
        "too little happened: {full} hours were over 100 with bounces"
    );
}
