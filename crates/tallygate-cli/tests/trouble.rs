//! Stores that cannot be used: the exit code, and what to do about it.

use tallygate_testkit::Server;

use super::run;

/// One line that says what is wrong and what would be right.
fn refused(url: &str, words: &[&str]) {
    ended(2, url, words);
}

fn ended(code: i32, url: &str, words: &[&str]) {
    let ran = run(["check", "alice", "--limit", "3/min", "--store", url]);
    assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.starts_with("error: "), "{}", ran.stderr);
    for word in words {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
}

#[test]
fn a_mistyped_url() {
    refused("reddis://127.0.0.1:6379", &["--store", "did you mean redis://"]);
    refused("127.0.0.1:6379", &["redis://host:6379"]);
    refused("redis://127.0.0.1:port", &["invalid port `port`"]);
    refused("redis://a,b", &["redis+cluster://"]);
}

#[test]
fn a_port_where_nobody_answers() {
    ended(3, "redis://127.0.0.1:1", &["nothing is listening on 127.0.0.1:1", "is the server running?"]);
}

#[test]
fn a_wrong_password_or_none() {
    let server = Server::redis().password("secret").start();
    let addr = server.addr();
    refused(&format!("redis://:hunter2@{addr}"), &["password", "redis://:password@host"]);
    refused(&format!("redis://{addr}"), &["NOAUTH", "redis://:password@host"]);
}

#[test]
fn a_user_without_the_right_to_run_scripts() {
    let server = Server::redis().acl("user app on >hunter2 ~tallygate:* &* +@all -@scripting").start();
    refused(&server.url_as("app", "hunter2"), &["NOPERM", "ACL SETUSER", "+evalsha"]);
}

#[test]
fn a_user_without_the_commands_of_the_scripts() {
    let server = Server::redis().acl("user app on >hunter2 ~tallygate:* &* +@all -set -zadd").start();
    refused(&server.url_as("app", "hunter2"), &["add the missing rules", "+set", "+zadd"]);
}

#[test]
fn a_user_with_other_keys() {
    let server = Server::redis().acl("user app on >hunter2 ~other:* &* +@all").start();
    refused(&server.url_as("app", "hunter2"), &["NOPERM", "~"]);
}

#[test]
fn a_full_memory() {
    let server = Server::redis().start();
    let url = server.url();
    assert_eq!(run(["check", "alice", "--limit", "3/min", "--store", &url]).code, 0);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    refused(&url, &["OOM", "maxmemory", "noeviction"]);
    let denied = run(["check", "alice", "--limit", "3/min", "--cost", "3", "--store", &url]);
    assert_eq!(denied.code, 1, "who has no room is denied all the same: {}", denied.stderr);
}

#[test]
fn a_server_of_a_cluster_taken_for_a_single_one() {
    let cluster = tallygate_testkit::Cluster::start(tallygate_testkit::Flavour::Redis, 3, 0);
    let refusals: Vec<_> = cluster
        .nodes()
        .iter()
        .map(|node| run(["check", "alice", "--limit", "3/min", "--store", &node.url()]))
        .filter(|ran| ran.code == 2)
        .collect();
    assert!(refusals.len() >= 2, "only one of three has the key");
    assert!(refusals.iter().all(|ran| ran.stderr.contains("redis+cluster://")), "{}", refusals[0].stderr);
}
