//! `audit`: what it finds, what it mends, and what it leaves alone.

use serde_json::Value;
use tallygate_testkit::{Cluster, Flavour, Server};

use super::{Ran, run};

fn audit(url: &str, more: &[&str]) -> Ran {
    run([&["audit", "--store", url], more].concat())
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {} {}", ran.stdout, ran.stderr))
}

fn check(url: &str, limit: &str) {
    assert_eq!(run(["check", "alice", "--limit", limit, "--store", url]).code, 0);
}

#[test]
fn a_sound_store_is_called_so() {
    let server = Server::redis().start();
    let url = server.url();
    for limit in ["5/min", "5/min sliding_log", "5/min fixed_window", "5/min sliding_window"] {
        check(&url, limit);
    }
    assert_eq!(run(["counter", "incr", "visits", "--store", &url]).code, 0);
    server.command(&["SET", "other:key", "1"]).ok();
    let ran = audit(&url, &[]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    for words in
        ["5 keys under tallygate:*", "every other key expires", "1 counter without a TTL", "sliding_log", "noeviction"]
    {
        assert!(ran.stdout.contains(words), "{words}: {}", ran.stdout);
    }
    let report = json(&audit(&url, &["--json"]));
    assert_eq!((&report["keys"], &report["orphans"], &report["lasting_counters"]), (&5.into(), &0.into(), &1.into()));
    assert_eq!(report["usage"].as_array().unwrap().len(), 5);
    assert_eq!(audit(&url, &["--prefix", "other"]).code, 1, "under that prefix a key has no TTL");
    assert_eq!(audit(&url, &["--prefix", "nobody"]).code, 0);
}

#[test]
fn orphans_are_listed_and_mended_and_others_are_left_alone() {
    let server = Server::redis().start();
    let url = server.url();
    check(&url, "5/min");
    for key in ["tallygate:{a}:api:fw", "tallygate:{b\x1b[2J}:api:tb", "tallygate:config", "tallygate:{v}:counter:n"] {
        server.command(&["SET", key, "1"]).ok();
    }
    let found = audit(&url, &[]);
    assert_eq!(found.code, 1);
    for words in
        ["3 keys would never expire", "tallygate:{b\\u{1b}[2J}:api:tb", "1 of them not in the form", "--repair"]
    {
        assert!(found.stdout.contains(words), "{words}: {}", found.stdout);
    }
    assert!(!found.stdout.contains('\x1b'));

    let mended = audit(&url, &["--repair", "--ttl", "1h"]);
    assert!(mended.stdout.contains("2 of 2 keys given a TTL of 1h"), "{}", mended.stdout);
    assert_eq!(mended.code, 1, "the key of others is still there");
    let ttl = |key: &str| server.command(&["PTTL", key]).int();
    for key in ["tallygate:{a}:api:fw", "tallygate:{b\x1b[2J}:api:tb"] {
        assert!((3_500_000..=3_600_000).contains(&ttl(key)), "{}", ttl(key));
    }
    assert_eq!((ttl("tallygate:config"), ttl("tallygate:{v}:counter:n")), (-1, -1));
    assert!(ttl("tallygate:{alice}:cli:tb") < 60_000, "what has a TTL keeps it");

    server.command(&["DEL", "tallygate:config"]).ok();
    assert_eq!(audit(&url, &[]).code, 0);
    server.command(&["PERSIST", "tallygate:{a}:api:fw"]).ok();
    assert_eq!(audit(&url, &["--repair"]).code, 0, "all that was found is mended");
    assert!(ttl("tallygate:{a}:api:fw") > 80_000_000, "the default is a day");
}

#[test]
fn every_master_of_a_cluster_is_looked_at() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    for number in 0..100 {
        let key = format!("tallygate:{{{number}}}:api:tb");
        cluster.nodes()[cluster.node_of(cluster.slot_of(key.as_bytes()))].command(&["SET", &key, "1"]).ok();
    }
    let found = json(&audit(&cluster.url(), &["--json"]));
    assert_eq!((&found["keys"], &found["orphans"]), (&100.into(), &100.into()));
    let servers = found["servers"].as_array().unwrap();
    assert_eq!(servers.iter().map(|server| server["keys"].as_u64().unwrap()).sum::<u64>(), 100);
    assert!(servers.iter().all(|server| server["keys"].as_u64().unwrap() > 10), "{servers:?}");
    assert_eq!(audit(&cluster.url(), &["--repair"]).code, 0);
    assert_eq!(json(&audit(&cluster.url(), &["--json"]))["orphans"], 0);
}

#[test]
fn many_keys_are_all_seen() {
    let server = Server::redis().start();
    let fill = "for i = 1, 20000 do redis.call('SET', 'tallygate:{' .. i .. '}:api:tb', 'x', 'PX', 600000) end";
    server.command(&["EVAL", fill, "0"]).ok();
    server.command(&["PERSIST", "tallygate:{777}:api:tb"]).ok();
    let report = json(&audit(&server.url(), &["--json"]));
    assert_eq!((&report["keys"], &report["orphans"]), (&20_000.into(), &1.into()));
    assert_eq!(report["listed"][0], "tallygate:{777}:api:tb");
}

#[test]
fn a_server_that_forgets_is_warned_of() {
    let server = Server::redis().arg("--maxmemory-policy", "allkeys-lru").arg("--maxmemory", "3mb").start();
    check(&server.url(), "5/min");
    let before = audit(&server.url(), &[]);
    assert_eq!(before.code, 0);
    assert!(before.stdout.contains("warning: ") && before.stdout.contains("allkeys-lru"), "{}", before.stdout);
    let flood = "for i = 1, 20000 do redis.call('SET', 'flood' .. i, string.rep('x', 200)) end";
    server.command(&["EVAL", flood, "0"]).ok();
    let after = audit(&server.url(), &[]).stdout;
    assert!(after.contains("each eviction resets a limit") && after.contains("noeviction"), "{after}");
}

#[test]
fn a_missing_right_is_named() {
    for (denied, more) in [("scan", &[][..]), ("memory", &[]), ("pttl", &[]), ("info", &[]), ("pexpire", &["--repair"])]
    {
        let server = Server::redis().acl(&format!("user ops on >pw ~* &* +@all -{denied}")).start();
        server.command(&["SET", "tallygate:{a}:api:tb", "1"]).ok();
        let ran = audit(&server.url_as("ops", "pw"), more);
        assert_eq!(ran.code, 2, "{denied}: {}", ran.stdout);
        assert!(ran.stderr.contains(&format!("+{denied}")), "{denied}: {}", ran.stderr);
    }
}

#[test]
fn what_cannot_be_audited_is_an_error() {
    let unreachable = run(["audit", "--store", "redis://127.0.0.1:1"]);
    assert_eq!(unreachable.code, 3);
    assert!(unreachable.stderr.contains("nothing is listening"), "{}", unreachable.stderr);
    for (args, said) in [
        (&["audit"][..], "--store"),
        (&["audit", "--store", "redis://127.0.0.1:1", "--prefix", "*"], "--prefix"),
        (&["audit", "--store", "redis://127.0.0.1:1", "--repair", "--ttl", "soon"], "--ttl"),
        (&["audit", "--store", "redis://127.0.0.1:1", "--repair", "--ttl", "0s"], "--ttl"),
        (&["audit", "--store", "redis://127.0.0.1:1", "--ttl", "1h"], "--repair"),
    ] {
        let ran = run(args);
        assert_eq!(ran.code, 2, "{args:?}");
        assert!(ran.stderr.contains(said), "{args:?}: {}", ran.stderr);
    }
}
