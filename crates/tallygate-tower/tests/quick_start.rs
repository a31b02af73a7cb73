//! The quick start of the README, copied into new projects.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tallygate_testkit::http::{Client, Response};
use tallygate_testkit::{Daemon, Port, Project, Ready, Server};
use tokio::time::Instant;

const ADDRESS: &str = r#""127.0.0.1:3000""#;
const REDIS: &str = r#""redis://127.0.0.1:6379""#;

/// The code blocks of the README's section as rendered: without the lines that only tests need.
fn blocks() -> Vec<String> {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    let (_, section) = readme.split_once("\n## In an axum service\n").expect("the README has the section");
    let (section, _) = section.split_once("\n## ").expect("others follow");
    let fenced = section.split("```").skip(1).step_by(2);
    let body = |block: &str| {
        let lines = block.lines().skip(1).filter(|line| !line.starts_with("# "));
        lines.map(|line| format!("{line}\n")).collect()
    };
    fenced.map(body).collect()
}

/// Replaces `from` by an environment variable: tests use free ports.
fn from_environment(code: &str, from: &str, variable: &str) -> String {
    assert_eq!(code.matches(from).count(), 1, "{from} is in the quick start");
    code.replace(from, &format!("&std::env::var({variable:?})?"))
}

/// Built without a network.
fn build(name: &str, dependencies: &str, main: &str) -> PathBuf {
    let dependencies = dependencies.replace("\"tallygate/crates/", "\"CRATES/");
    let project = Project::new(env!("CARGO_TARGET_TMPDIR"), name, &dependencies, main);
    project.cargo(&["build", "--offline"]);
    project.program()
}

fn start(program: &Path, redis: &str) -> (Daemon, SocketAddr) {
    let port = Port::reserve();
    let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
    let mut command = Command::new(program);
    command.env("ADDRESS", address.to_string()).env("REDIS", redis);
    (Daemon::start(command, tempfile::tempdir().unwrap(), &[Ready::Port(port.number())]), address)
}

/// Calls these in turn until one refuses: the number of served calls, how long that took, and the refusal.
fn until_refused(addresses: &[SocketAddr]) -> (u32, Duration, Response) {
    let mut clients: Vec<Client> = addresses.iter().map(|address| Client::open(*address).unwrap()).collect();
    let started = Instant::now();
    for served in 0.. {
        let at = served as usize % clients.len();
        let response = clients[at].request("GET", "/", &[], b"").unwrap();
        if response.status != 200 {
            return (served, started.elapsed(), response);
        }
        assert_eq!(response.text(), "hello");
    }
    unreachable!("the limit holds")
}

/// `100/min`: a hundred, and what was regained meanwhile.
fn assert_limited((served, took, refusal): (u32, Duration, Response)) {
    let most = 100.0 + took.as_secs_f64() * 100.0 / 60.0;
    assert!(served >= 100 && f64::from(served) <= most, "{served} in {took:?}");
    assert_eq!((refusal.status, refusal.header("content-type")), (429, Some("application/problem+json")));
    assert!(refusal.header("retry-after").is_some() && refusal.text().contains("\"per-client\""), "{refusal:?}");
}

#[test]
fn the_quick_start_limits_and_one_line_shares_the_limit() {
    let blocks = blocks();
    let [dependencies, quick_start, change] = &blocks[..] else { panic!("three blocks: {blocks:#?}") };

    let embedded = dependencies.lines().filter(|line| !line.starts_with("tallygate-redis"));
    let embedded: String = embedded.map(|line| format!("{line}\n")).collect();
    let program = build("quick-start-embedded", &embedded, &from_environment(quick_start, ADDRESS, "ADDRESS"));
    let (_process, address) = start(&program, "");
    assert_limited(until_refused(&[address]));

    // One line is replaced by another.
    let [removed, added] = change.lines().collect::<Vec<_>>()[..] else { panic!("{change}") };
    let (removed, added) = (removed.strip_prefix('-').unwrap(), added.strip_prefix('+').unwrap());
    assert_eq!(quick_start.lines().filter(|line| *line == removed).count(), 1, "{quick_start}");
    let shared = quick_start.replace(removed, added);
    let shared = from_environment(&from_environment(&shared, ADDRESS, "ADDRESS"), REDIS, "REDIS");
    let program = build("quick-start-shared", dependencies, &shared);
    let redis = Server::redis().start();
    let copies = [start(&program, &redis.url()), start(&program, &redis.url())];
    assert_limited(until_refused(&copies.each_ref().map(|(_, address)| *address)));
}
