//! Shared runs on a server that takes no writes.

use super::*;

/// A server that takes no writes for now: the setting, its values then and otherwise, and what the error says.
const REFUSALS: [[&str; 4]; 3] = [
    ["maxmemory", "1", "0", "noeviction"],
    ["min-replicas-to-write", "1", "0", "min-replicas-to-write"],
    ["stop-writes-on-bgsave-error", "yes", "no", "cannot save to disk"],
];

/// One charge of a run that the server refused failed all its calls, and a policy that fails open let those pass that were spent.
#[tokio::test]
async fn a_run_that_cannot_be_written_still_denies() {
    let server = Server::redis().arg("--maxmemory-policy", "noeviction").start();
    // A folder where it would save: so it cannot.
    std::fs::create_dir_all(server.folder().join("dump.rdb/full")).unwrap();
    let set = |name: &str, value: &str| drop(server.command(&["CONFIG", "SET", name, value]).ok());
    set("stop-writes-on-bgsave-error", "no");
    set("save", "3600 1");
    server.command(&["BGSAVE"]).ok();
    while server.info("rdb_last_bgsave_status").as_deref() != Some("err") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for [setting, refusing, usual, said] in REFUSALS {
        denies_without_writing(&server, || set(setting, refusing), || set(setting, usual), said).await;
        server.command(&["FLUSHALL"]).ok();
    }
}

async fn denies_without_writing(server: &Server, refuse: impl Fn(), permit: impl Fn(), said: &str) {
    let redis = RedisStore::builder(&server.url()).deadline(Duration::from_secs(10)).connect().await.unwrap();
    let limits = limits_of(3);
    let deadline = || redis.engine.client.default_deadline();
    for limit in &limits {
        for _ in 0..3 {
            redis.engine.run(&question(limit, "spent", Verb::Check), deadline()).await.unwrap();
        }
    }
    refuse();
    for limit in &limits {
        let calls = ["new", "spent", "new", "spent"].map(|subject| question(limit, subject, Verb::Check));
        let answers = redis.engine.run_all(&calls.each_ref(), deadline()).await;
        for (answer, subject) in answers.iter().zip(["new", "spent", "new", "spent"]) {
            match answer {
                Ok(decision) => assert!(subject == "spent" && !decision.allowed(), "{limit}: {subject} {decision:?}"),
                Err(error) => {
                    assert!(subject == "new" && error.kind() == StoreErrorKind::Refused, "{limit}: {subject} {error}");
                    assert!(error.to_string().contains(said), "{error}");
                }
            }
        }
    }
    // A charge of two states is made in both or in none, also if the log refuses after the other was decided.
    let of = |algorithm: Algorithm| limits.iter().find(|limit| limit.algorithm() == algorithm).unwrap();
    let (packed, log) = (of(Algorithm::FixedWindow), of(Algorithm::SlidingLog));
    let mut both = question(packed, "both", Verb::Check);
    both.asked.extend(question(log, "both", Verb::Check).asked);
    let answers = redis.engine.run_all(&[&both, &question(packed, "spent", Verb::Check)], deadline()).await;
    assert_eq!(answers[0].as_ref().unwrap_err().kind(), StoreErrorKind::Refused);
    assert!(!answers[1].as_ref().unwrap().allowed());
    // Nobody sees the units of a charge that is refused, and nobody is denied by them.
    let mut denied = question(packed, "seen", Verb::Check);
    denied.asked.extend(question(log, "spent", Verb::Check).asked);
    let charge = question(packed, "seen", Verb::Check);
    let run = [&charge, &charge, &charge, &charge, &denied];
    let answers = redis.engine.run_all(&run, deadline()).await;
    for answer in &answers[..4] {
        assert_eq!(answer.as_ref().unwrap_err().kind(), StoreErrorKind::Refused, "{answer:?}");
    }
    let statuses = answers[4].as_ref().unwrap().statuses();
    assert_eq!((statuses[0].remaining(), statuses[1].allowed()), (3, false));
    permit();
    for (limit, subject) in limits.iter().map(|limit| (limit, "new")).chain([(packed, "both"), (log, "both")]) {
        let left = redis.engine.run(&question(limit, subject, Verb::Peek), deadline()).await.unwrap();
        assert_eq!(left.binding().remaining(), 3, "{limit}: {subject}");
    }
}

/// The calls of a run on a master that has become a replica fail as one alone does, so that the client looks for the master.
#[tokio::test]
async fn a_run_on_a_replica_is_an_error_of_the_server() {
    let server = Server::redis().start();
    let redis = RedisStore::builder(&server.url()).deadline(Duration::from_secs(1)).connect().await.unwrap();
    let deadline = || redis.engine.client.default_deadline();
    for limit in &limits_of(3) {
        let calls = ["a", "b"].map(|subject| question(limit, subject, Verb::Check));
        for answer in redis.engine.run_all(&calls.each_ref(), deadline()).await {
            assert!(answer.unwrap().allowed(), "{limit}");
        }
        server.command(&["REPLICAOF", "127.0.0.1", "1"]).ok();
        for answer in redis.engine.run_all(&calls.each_ref(), deadline()).await {
            let error = answer.unwrap_err();
            assert!(error.reason().contains("is a replica"), "{limit}: {error}");
        }
        server.command(&["REPLICAOF", "NO", "ONE"]).ok();
    }
}
