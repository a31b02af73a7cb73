//! `verify`: it holds on every kind of server, and says so when it does not.

use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tallygate_testkit::{Cluster, Flavour, Sentinel, Server, valkey_or_skip};

use super::{Ran, binary, ran, run};

fn verify(url: &str, more: &[&str]) -> Ran {
    run([&["verify", "--store", url], more].concat())
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {} {}", ran.stdout, ran.stderr))
}

/// Every scene decided, admitted and denied, and nothing is wrong.
fn assert_holds(ran: &Ran) {
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let report = json(ran);
    assert_eq!(report["holds"], true);
    let scenes = report["scenes"].as_array().expect("a list");
    assert_eq!(scenes.len(), 8);
    for scene in scenes {
        let number = |name: &str| scene[name].as_u64().unwrap_or_else(|| panic!("{name}: {scene}"));
        assert!(number("admitted") > 0 && number("admitted") < number("decisions"), "{scene}");
        assert_eq!((number("violations"), number("mismatches"), number("orphans")), (0, 0, 0), "{scene}");
        assert_eq!(scene["tightest"]["admitted"], scene["tightest"]["bound"], "the limit was reached: {scene}");
    }
}

#[test]
fn redis_holds_and_is_left_as_it_was() {
    let server = Server::redis().start();
    server.command(&["SET", "mine", "1"]).ok();
    let ran = verify(&server.url(), &["--seconds", "2", "--json"]);
    assert_holds(&ran);
    assert_eq!(server.command(&["DBSIZE"]).int(), 1, "its keys are gone, others' are not");
}

#[test]
fn valkey_holds() {
    if valkey_or_skip() {
        let server = Server::valkey().start();
        assert_holds(&verify(&server.url(), &["--seconds", "2", "--json"]));
    }
}

#[test]
fn a_cluster_holds() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let ran = verify(&cluster.url(), &["--seconds", "2", "--json"]);
    assert_holds(&ran);
    assert_eq!(json(&ran)["servers"].as_array().unwrap().len(), 3);
    for node in cluster.nodes() {
        assert_eq!(node.command(&["DBSIZE"]).int(), 0);
    }
}

#[test]
fn a_master_found_through_sentinels_holds() {
    let sentinel = Sentinel::start(Flavour::Redis);
    assert_holds(&verify(&sentinel.url(), &["--seconds", "2", "--json"]));
}

#[test]
fn the_embedded_store_holds() {
    let ran = run(["verify", "--seconds", "2", "--clients", "4"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("holds: ") && ran.stdout.contains("8 threads"), "{}", ran.stdout);
    assert!(ran.stdout.lines().all(|line| line.chars().count() <= 80), "{}", ran.stdout);
    assert_eq!(ran.stderr, "", "no progress where nobody watches");
}

#[test]
fn lost_states_are_reported_with_the_first_wrong_answer() {
    let server = Server::redis().start();
    let (url, algorithm) = (server.url(), ["--algorithm", "sliding_log", "--seconds", "3"]);
    let ran = thread::scope(|scope| {
        let verified = scope.spawn(|| verify(&url, &algorithm));
        for _ in 0..40 {
            thread::sleep(Duration::from_millis(50));
            server.command(&["FLUSHDB"]).ok();
        }
        verified.join().unwrap()
    });
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    for words in
        ["BROKEN", "passed beyond the bound", "other than the algorithm gives", "but the maximum is", "FLUSHALL"]
    {
        assert!(ran.stdout.contains(words), "{words}: {}", ran.stdout);
    }
}

/// Whether they were charged nobody knows: they are counted, and their keys are held against the bound all the same.
#[test]
fn answers_that_never_come_are_no_violation() {
    let server = Server::redis().start();
    let (url, args) = (server.url(), ["--algorithm", "fixed_window", "--seconds", "5", "--json"]);
    let ran = thread::scope(|scope| {
        let verified = scope.spawn(|| verify(&url, &args));
        // Well into the first of the scenes, for longer than a call waits.
        tallygate_testkit::wait::until("the first answers", Duration::from_secs(10), || {
            (server.command(&["DBSIZE"]).int() > 50).then_some(())
        });
        server.stop();
        thread::sleep(Duration::from_millis(2500));
        server.cont();
        verified.join().unwrap()
    });
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let scene = &json(&ran)["scenes"][0];
    assert!(scene["unknown"].as_u64().unwrap() > 0, "{scene}");
    assert_eq!((&scene["violations"], &scene["mismatches"]), (&0.into(), &0.into()), "{scene}");
}

/// A user who may decide but not look at keys can still verify the decisions.
#[test]
fn without_the_right_to_scan_the_rest_is_verified_and_the_rule_is_named() {
    let server = Server::redis().acl("user app on >pw ~tallygate:* &* +@all -scan").start();
    let ran = verify(&server.url_as("app", "pw"), &["--algorithm", "token_bucket", "--seconds", "1"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("note: keys were not audited") && ran.stdout.contains("+scan"), "{}", ran.stdout);
    assert!(!ran.stdout.contains("pw"), "{}", ran.stdout);
}

#[test]
fn what_cannot_be_run_is_an_error() {
    for (args, code, said) in [
        (&["--algorithm", "sliding_logs"][..], 2, "did you mean `sliding_log`"),
        (&["--clients", "0"], 2, "--clients"),
        (&["--store", "redis://127.0.0.1:1"], 3, "nothing is listening"),
        (&["--store", "redis://127.0.0.1:1", "--prefix", "a b"], 2, "--prefix"),
        (&["--recipes"], 2, "--store"),
        (&["--recipes", "--seconds", "5"], 2, "--seconds"),
        (&["--recipes", "--store", "redis+cluster://127.0.0.1:1"], 2, "one server"),
    ] {
        let ran = run([&["verify"], args].concat());
        assert_eq!(ran.code, code, "{args:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains(said), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn every_recipe_is_caught_and_ours_is_not() {
    let server = Server::redis().start();
    let ran = verify(&server.url(), &["--recipes"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.starts_with("recipes: 16 of 16 caught\n"), "{}", ran.stdout);
    assert!(ran.stdout.lines().all(|line| line.chars().count() <= 80), "{}", ran.stdout);
    assert_eq!(server.command(&["DBSIZE"]).int(), 0, "its keys are gone, orphans too");
}

#[test]
fn every_recipe_is_caught_on_valkey() {
    if !valkey_or_skip() {
        return;
    }
    let server = Server::valkey().start();
    let ran = verify(&server.url(), &["--recipes", "--json"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let report = json(&ran);
    assert_eq!((report["caught"].as_u64(), report["of"].as_u64()), (Some(16), Some(16)));
    for recipe in report["recipes"].as_array().unwrap() {
        assert_eq!((&recipe["wrong"]["sound"], &recipe["ours"]["sound"]), (&false.into(), &true.into()), "{recipe}");
    }
}

/// The same judge convicts ours: a state that is lost during a wait admits twice.
#[test]
fn ours_fails_among_the_recipes_if_its_states_are_lost() {
    let server = Server::redis().start();
    let url = server.url();
    let ran = thread::scope(|scope| {
        let verified = scope.spawn(|| verify(&url, &["--recipes"]));
        while !verified.is_finished() {
            thread::sleep(Duration::from_millis(100));
            server.command(&["FLUSHDB"]).ok();
        }
        verified.join().unwrap()
    });
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("OURS FAILED") && ran.stdout.contains("ours under e: "), "{}", ran.stdout);
}

/// However the parent ends, its workers end too.
#[cfg(target_os = "linux")]
#[test]
fn no_worker_outlives_a_killed_parent() {
    let server = Server::redis().start();
    let mut command = binary();
    command.args(["verify", "--seconds", "60", "--store", &server.url()]);
    let mut parent: Child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    tallygate_testkit::wait::until("two workers", Duration::from_secs(10), || (workers(&server) == 2).then_some(()));
    parent.kill().unwrap();
    let killed = parent.wait_with_output().unwrap();
    assert_eq!(killed.status.code(), None);
    tallygate_testkit::wait::until("no worker", Duration::from_secs(5), || (workers(&server) == 0).then_some(()));
}

/// Workers on this server, known by their environment.
#[cfg(target_os = "linux")]
fn workers(server: &Server) -> usize {
    let url = format!("TALLYGATE_STORE={}", server.url());
    let has = |path: std::path::PathBuf, text: &str| {
        std::fs::read(path).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(text))
    };
    let processes = std::fs::read_dir("/proc").expect("this is Linux").flatten().map(|entry| entry.path());
    processes.filter(|path| has(path.join("cmdline"), "verify-worker") && has(path.join("environ"), &url)).count()
}

#[test]
fn a_worker_is_nothing_for_people() {
    assert!(!run(["--help"]).stdout.contains("verify-worker"));
    let mut alone = binary();
    let moment = r#"{"secs":0,"nanos":50000000}"#;
    let task = format!(
        r#"{{"scenario":"sliding_log","window":{moment},"name":"n","worker":0,"clients":1,"length":{moment}}}"#
    );
    alone.args(["verify-worker", "--prefix", "p", &task]);
    let alone = ran(alone.output().unwrap());
    assert_eq!((alone.code, alone.stderr.as_str()), (2, "error: a worker needs a server\n"));
}

/// It used to be waited for, for twenty seconds and the length of the run.
#[test]
fn a_worker_that_ends_before_it_is_ready_is_reported_with_its_message() {
    let server = Server::redis().acl("user app on >pw ~tallygate:* &* +@all").start();
    let mut command = binary();
    command.args(["verify", "--seconds", "600", "--processes", "2", "--algorithm", "token_bucket"]);
    command.env("TALLYGATE_STORE", server.url_as("app", "pw"));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    tallygate_testkit::wait::until("the first answers", Duration::from_secs(10), || {
        (server.command(&["DBSIZE"]).int() > 0).then_some(())
    });
    // The workers of the next scenario cannot log in.
    server.command(&["ACL", "SETUSER", "app", "off"]).ok();
    let ran = ran(child.wait_with_output().unwrap());
    assert_eq!(ran.code, 2, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.starts_with("error: a worker ended early: --store: "), "{}", ran.stderr);
}
