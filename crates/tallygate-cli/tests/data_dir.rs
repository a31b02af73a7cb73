//! `tallygate serve --data-dir`: what is charged survives a stop, and all but the last moment survives a crash.
#![allow(clippy::disallowed_methods, reason = "it kills real processes, in real time")]

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tallygate_testkit::http::{self, Client};

use crate::serve::{Serving, serve};

const HEADERS: [(&str, &str); 1] = [("content-type", "application/json")];
/// Of these keys, a caller takes one after the other.
const KEYS: u64 = 64;
const CALLERS: u64 = 4;
const WIDE: &str = "1000000000/365d fixed_window";
/// A limit that is used up in the course of a few rounds.
const TIGHT: u64 = 20_000;

fn start(directory: &Path) -> Serving {
    Serving::start(&["--data-dir", directory.to_str().unwrap()], &[])
}

fn used(at: SocketAddr, key: &str, limit: &str, capacity: u64) -> u64 {
    let body = json!({"key": key, "limit": limit}).to_string();
    let response = http::request(at, "POST", "/v1/peek", &HEADERS, body.as_bytes());
    let answer: Value = serde_json::from_slice(&response.body).unwrap();
    capacity - answer["remaining"].as_u64().unwrap_or_else(|| panic!("{answer}"))
}

/// How old the last save is, as the server says it.
fn age(admin: SocketAddr) -> Duration {
    let page = http::request(admin, "GET", "/metrics", &[], b"");
    let line = page.text().lines().find_map(|line| line.strip_prefix("tallygate_saved_age_seconds "));
    Duration::from_secs_f64(line.unwrap().parse().unwrap())
}

/// A call that was answered: which key was charged (`KEYS` for the tight one), and when the answer came.
type Answered = (u64, Instant);

/// Charges until the server is gone. Returns the answers, and how many calls had none.
fn charge(at: SocketAddr, caller: u64) -> (Vec<Answered>, u64) {
    let (mut answered, mut number) = (Vec::new(), caller);
    let Ok(mut client) = Client::open(at) else { return (answered, 0) };
    loop {
        number += CALLERS;
        // Every eighth call is for the tight limit.
        let key = if number % 8 == caller % 8 { KEYS } else { number % KEYS };
        let body = match key {
            KEYS => json!({"key": "tight", "limit": format!("{TIGHT}/365d fixed_window")}),
            _ => json!({"key": format!("key {key}"), "limit": WIDE}),
        };
        match client.request("POST", "/v1/check", &HEADERS, body.to_string().as_bytes()) {
            Ok(response) if response.status == 200 => answered.push((key, Instant::now())),
            Ok(_) => {}
            Err(_) => return (answered, 1),
        }
    }
}

/// The product says how old its last save is. What was answered before that is never lost, and what is lost admits no more than it was.
/// Three times; as often as `DATA_DIR_KILLS` says, with figures.
#[test]
fn a_killed_server_has_lost_no_more_than_it_said() {
    let kills: u64 = std::env::var("DATA_DIR_KILLS").map_or(3, |kills| kills.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("data");
    let place = |key: u64| if key == KEYS { "tight".to_owned() } else { format!("key {key}") };
    let limit = |key: u64| {
        if key == KEYS { (format!("{TIGHT}/365d fixed_window"), TIGHT) } else { (WIDE.to_owned(), 1_000_000_000) }
    };
    let mut before = vec![0; usize::try_from(KEYS).unwrap() + 1];
    let (mut calls, mut lost_all, mut worst_age, mut worst_lost) = (0, 0, Duration::ZERO, 0);
    let (mut admitted_tight, mut lost_tight) = (0, 0);
    for round in 0..kills {
        let server = start(&directory);
        let (at, admin) = (server.address("http"), server.address("admin"));
        let results = Mutex::new(Vec::new());
        let mut durable_until = Instant::now();
        std::thread::scope(|scope| {
            for caller in 0..CALLERS {
                let results = &results;
                scope.spawn(move || results.lock().unwrap().push(charge(at, caller)));
            }
            // At another moment of a save each time.
            std::thread::sleep(Duration::from_millis(300 + round * 137 % 1900));
            let asked = Instant::now();
            let age = age(admin);
            durable_until = asked.checked_sub(age).unwrap();
            worst_age = worst_age.max(age);
            server.signal("-KILL");
        });
        drop(server);
        let (answers, unanswered): (Vec<Vec<Answered>>, Vec<u64>) = results.into_inner().unwrap().into_iter().unzip();
        let unanswered: u64 = unanswered.iter().sum();
        let answers: Vec<Answered> = answers.into_iter().flatten().collect();
        calls += answers.len();
        let server = start(&directory);
        let mut lost_now = 0;
        for key in 0..=KEYS {
            let of_key = || answers.iter().filter(|(other, _)| *other == key);
            let all = u64::try_from(of_key().count()).unwrap();
            let durable = u64::try_from(of_key().filter(|(_, at)| *at < durable_until).count()).unwrap();
            let (limit, capacity) = limit(key);
            let (was, index) =
                (used(server.address("http"), &place(key), &limit, capacity), usize::try_from(key).unwrap());
            let charged = was
                .checked_sub(before[index])
                .unwrap_or_else(|| panic!("round {round}, key {key}: {was} of {}", before[index]));
            assert!(charged >= durable, "round {round}, key {key}: {charged} of {durable} that were saved");
            assert!(charged <= all + unanswered, "round {round}, key {key}: {charged} of {all} and {unanswered}");
            lost_now += all.saturating_sub(charged);
            if key == KEYS {
                admitted_tight += all;
                lost_tight += all.saturating_sub(charged);
            }
            before[index] = was;
        }
        lost_all += lost_now;
        worst_lost = worst_lost.max(lost_now);
        // The next round goes on from here, and the directory is free again.
        server.signal("-TERM");
        assert_eq!(server.end().0, Some(0));
    }
    // Each crash gives back what it has forgotten, and nothing else.
    assert!(admitted_tight <= TIGHT + lost_tight, "{admitted_tight} of {TIGHT}, and {lost_tight} lost");
    println!(
        "{kills} kills, {calls} calls answered; {lost_all} charges lost, in one kill at most {worst_lost}; the last save was at most {worst_age:?} \
         old; {admitted_tight} admitted of {TIGHT}, of which {lost_tight} were lost"
    );
}

#[test]
fn a_normal_stop_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let server = start(folder.path());
        let at = server.address("http");
        assert_eq!(used(at, "k", WIDE, 1_000_000_000), round * 5);
        for _ in 0..5 {
            let body = json!({"key": "k", "limit": WIDE}).to_string();
            assert_eq!(http::request(at, "POST", "/v1/check", &HEADERS, body.as_bytes()).status, 200);
        }
        server.signal("-TERM");
        let (code, log) = server.end();
        assert_eq!(code, Some(0), "{log}");
    }
}

fn refused(directory: &Path, more: &[&str]) -> String {
    let mut command = serve(&["--data-dir", directory.to_str().unwrap()], &[]);
    ended(command.args(more))
}

fn ended(command: &mut std::process::Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn directories_that_cannot_be_used_are_refused_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let error = refused(folder.path(), &[]);
    assert!(error.contains("in use by another process") && error.contains("stop that process"), "{error}");
    drop(server);
    let error = refused(folder.path(), &["--store", "redis://127.0.0.1:1"]);
    assert!(error.contains("--data-dir") && error.contains("--store"), "{error}");
    std::fs::write(folder.path().join("tallygate.redb"), "something else").unwrap();
    let error = refused(folder.path(), &[]);
    assert!(error.contains("is damaged") && error.contains("backup"), "{error}");
}

/// A superuser may write everywhere, so the server is then started as somebody else.
#[test]
fn a_directory_that_is_read_only_is_refused() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let folder = tempfile::tempdir().unwrap();
    let superuser = folder.path().metadata().unwrap().uid() == 0;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
    let mut command = serve(&["--data-dir", folder.path().to_str().unwrap()], &[]);
    if superuser {
        command.uid(65_534).gid(65_534);
    }
    let error = ended(&mut command);
    assert!(error.contains("cannot be used: Permission denied") && error.contains("read and write"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
