//! What the doctor finds on real servers: each finding is provoked, and a healthy server has none of them.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use tallygate_redis::{Diagnosis, Doctor, DoctorCheck as Check, Finding, Severity};
use tallygate_testkit::wait::{PATIENCE, until};
use tallygate_testkit::{Cluster, Flavour, Sentinel, Server};
use tokio::time::timeout;

use crate::support::flavours;

const DEADLINE: Duration = Duration::from_millis(15);

async fn examine(url: &str) -> Diagnosis {
    let doctor = Doctor::connect(url, "tallygate", DEADLINE).await.unwrap();
    timeout(Duration::from_secs(60), doctor.examine(|_| {})).await.expect("an examination ends")
}

/// The worst finding of a check.
fn worst(diagnosis: &Diagnosis, check: Check) -> &Finding {
    let of_check = diagnosis.findings.iter().filter(|finding| finding.check == check);
    let worst = of_check.max_by_key(|finding| finding.severity as usize);
    worst.unwrap_or_else(|| panic!("{check} was not examined: {:#?}", diagnosis.findings))
}

#[track_caller]
fn assert_finds(diagnosis: &Diagnosis, check: Check, severity: Severity, words: &str) {
    let of_check = diagnosis.findings.iter().filter(|finding| finding.check == check);
    let found = of_check.clone().any(|finding| {
        let text = format!("{} {} {}", finding.found, finding.consequence, finding.remedy);
        finding.severity == severity && text.contains(words)
    });
    assert!(found, "{check} {severity} `{words}`: {:#?}", of_check.collect::<Vec<_>>());
}

/// A server that nothing can be said against, but for its version.
fn sound(flavour: Flavour) -> Server {
    Server::of(flavour).arg("--maxmemory", "256mb").arg("--appendonly", "yes").start()
}

#[tokio::test]
async fn a_healthy_server_has_no_findings_and_keeps_no_keys() {
    for flavour in flavours() {
        let server = sound(flavour);
        let diagnosis = examine(&server.url()).await;
        let noted = diagnosis.findings.iter().filter(|finding| {
            // The version is that of this machine, and so is the latency.
            finding.needs_attention() && ![Check::Version, Check::Latency].contains(&finding.check)
        });
        assert_eq!(noted.collect::<Vec<_>>(), Vec::<&Finding>::new());
        let latency = diagnosis.servers[0].latency.unwrap();
        assert!(latency.min_us > 0 && latency.min_us <= latency.median_us && latency.median_us <= latency.p99_us);
        assert!(diagnosis.servers[0].clock_offset_us.is_some_and(|offset| offset.abs() < 1_000_000));
        until("the keys of the doctor to expire", PATIENCE, || (server.command(&["DBSIZE"]).int() == 0).then_some(()));
    }
}

#[tokio::test]
async fn settings_that_break_a_guarantee_are_found() {
    for flavour in flavours() {
        let server = sound(flavour);
        let set = |name: &str, value: &str| drop(server.command(&["CONFIG", "SET", name, value]).ok());
        set("maxmemory-policy", "allkeys-lru");
        set("appendonly", "no");
        set("timeout", "10");
        set("slowlog-log-slower-than", "0");
        server.command(&["SET", "tallygate:{a}:api:tb", "x"]).ok();
        server.command(&["SET", "tallygate:{a}:counter:n", "1"]).ok();
        let limit = if flavour == Flavour::Redis { "busy-reply-threshold" } else { "lua-time-limit" };
        set(limit, "10");
        let doctor = Doctor::connect(&server.url(), "tallygate", Duration::from_nanos(1)).await.unwrap();
        let diagnosis = doctor.examine(|_| {}).await;
        assert_eq!(diagnosis.worst(), Severity::Problem);
        assert_finds(&diagnosis, Check::EvictionPolicy, Severity::Problem, "CONFIG SET maxmemory-policy noeviction");
        assert_finds(&diagnosis, Check::Persistence, Severity::Warning, "appendonly yes");
        assert_finds(&diagnosis, Check::Clients, Severity::Warning, "CONFIG SET timeout 0");
        assert_finds(&diagnosis, Check::ScriptLimit, Severity::Warning, "5000");
        assert_finds(&diagnosis, Check::KeysWithoutTtl, Severity::Problem, "1 in ");
        assert_finds(&diagnosis, Check::Latency, Severity::Problem, "most calls miss the deadline");
        assert_finds(&diagnosis, Check::SlowCommands, Severity::Warning, "SLOWLOG GET");
        set("maxmemory", "0");
        let diagnosis = examine(&server.url()).await;
        assert_finds(&diagnosis, Check::EvictionPolicy, Severity::Warning, "allkeys-lru");
        assert_finds(&diagnosis, Check::Memory, Severity::Warning, "no maxmemory");
    }
}

#[tokio::test]
async fn evictions_are_found_also_after_the_policy_was_corrected() {
    let server = Server::redis().arg("--maxmemory", "3mb").arg("--maxmemory-policy", "allkeys-lru").start();
    let flood = "for i = 1, 20000 do redis.call('SET', 'flood' .. i, string.rep('x', 200)) end";
    server.command(&["EVAL", flood, "0"]).ok();
    assert_finds(&examine(&server.url()).await, Check::Evictions, Severity::Problem, "noeviction");
    server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).ok();
    assert_finds(&examine(&server.url()).await, Check::Evictions, Severity::Warning, "evicted");
}

/// The probe of a server only read, and `/readyz` was 200 while no call could be charged.
#[tokio::test]
async fn a_full_server_and_a_user_who_may_not_write_cannot_be_charged() {
    for flavour in flavours() {
        let server = sound(flavour);
        let doctor = Doctor::connect(&server.url(), "tallygate", DEADLINE).await.unwrap();
        assert_eq!(doctor.charge().await[0].result, Some(Ok(())));
        server.command(&["CONFIG", "SET", "maxmemory", "1"]).ok();
        let charge = doctor.charge().await.remove(0);
        assert_eq!(charge.finding().unwrap().severity, Severity::Problem);
        assert!(charge.result.unwrap().unwrap_err().to_string().contains("maxmemory"));
        let full = doctor.examine(|_| {}).await;
        assert_finds(&full, Check::Memory, Severity::Problem, "raise maxmemory");
        assert_finds(&full, Check::Charge, Severity::Problem, "OOM");

        // Silence is not a refusal: the breaker and the probe tell of an outage.
        server.stop();
        let silent = doctor.charge().await;
        server.cont();
        assert!(silent.iter().all(|charge| charge.result.is_none()), "{silent:?}");
    }
}

#[tokio::test]
async fn every_missing_permission_is_named() {
    for command in ["set", "zadd", "zrem", "unlink", "incrby", "pexpire"] {
        let server = Server::redis().acl(&format!("user app on >pw ~* &* +@all -{command}")).start();
        let diagnosis = examine(&server.url_as("app", "pw")).await;
        assert_finds(&diagnosis, Check::Permissions, Severity::Problem, &format!("+{command}"));
    }
}

/// With the least privileges of the documentation nothing is a problem, and what could not be looked at is said.
#[tokio::test]
async fn what_may_not_be_read_is_unknown() {
    let rules = "~tallygate:* resetchannels -@all +evalsha +eval +time +get +set +incrby +unlink \
                 +zadd +zrange +zcard +zcount +zrem +zremrangebyrank +pexpire +ping +client|setname +role";
    let server = Server::redis().acl(&format!("user app on >pw {rules}")).start();
    let diagnosis = examine(&server.url_as("app", "pw")).await;
    assert_eq!(worst(&diagnosis, Check::Charge).severity, Severity::Ok);
    assert_eq!(worst(&diagnosis, Check::Permissions).severity, Severity::Ok);
    assert_finds(&diagnosis, Check::EvictionPolicy, Severity::Unknown, "+info");
    assert_finds(&diagnosis, Check::ScriptLimit, Severity::Unknown, "+config|get");
    assert_finds(&diagnosis, Check::SlowCommands, Severity::Unknown, "+slowlog|get");
    assert_finds(&diagnosis, Check::KeysWithoutTtl, Severity::Unknown, "+scan");
    assert!(diagnosis.findings.iter().all(|finding| finding.severity != Severity::Problem), "{diagnosis:#?}");
}

#[tokio::test]
async fn clocks_that_differ_and_clocks_that_jump_are_found() {
    let master = Server::redis().skewed_clock().start();
    let replica = Server::redis().skewed_clock().replica_of(&master).start();
    replica.skew(3_000_000);
    let diagnosis = examine(&master.url()).await;
    assert_eq!(worst(&diagnosis, Check::Clock).severity, Severity::Ok);
    assert_finds(&diagnosis, Check::ClockSpread, Severity::Problem, &replica.port().to_string());

    master.skew(-60_000_000);
    let diagnosis = examine(&master.url()).await;
    assert_finds(&diagnosis, Check::Clock, Severity::Warning, "NTP");
    assert!(diagnosis.servers[0].clock_offset_us.is_some_and(|offset| offset < -59_000_000));

    // A regular watch sees a jump between two rounds, once.
    let doctor = Doctor::connect(&master.url(), "tallygate", DEADLINE).await.unwrap();
    assert_eq!(worst(&doctor.watch().await, Check::ClockJump).severity, Severity::Ok);
    master.skew(0);
    assert_finds(&doctor.watch().await, Check::ClockJump, Severity::Warning, "+");
    assert_eq!(worst(&doctor.watch().await, Check::ClockJump).severity, Severity::Ok);

    // An examination sees one while it watches.
    let jumps = tokio::task::spawn_blocking(move || {
        std::thread::sleep(Duration::from_millis(500));
        master.skew(7_000_000);
        master
    });
    let doctor = doctor.examine(|_| {}).await;
    let _master = jumps.await.unwrap();
    assert_finds(&doctor, Check::ClockJump, Severity::Warning, "jumped by +");
}

#[tokio::test]
async fn sentinels_without_a_quorum_are_found() {
    let sentinel = Sentinel::with_replicas(Flavour::Redis, 2);
    let diagnosis = examine(&sentinel.url()).await;
    assert_eq!(worst(&diagnosis, Check::Sentinel).severity, Severity::Ok, "{diagnosis:#?}");
    assert_finds(&diagnosis, Check::Replication, Severity::Warning, "min-replicas-to-write 0");
    let set = |setting, value| {
        for server in sentinel.servers() {
            server.command(&["CONFIG", "SET", setting, value]).ok();
        }
    };
    set("min-replicas-max-lag", "2");
    set("min-replicas-to-write", "2");
    assert_finds(&examine(&sentinel.url()).await, Check::Replication, Severity::Warning, "needs as many");
    set("min-replicas-to-write", "1");
    assert_eq!(worst(&examine(&sentinel.url()).await, Check::Replication).severity, Severity::Ok);
    sentinel.sentinels()[1].kill();
    sentinel.sentinels()[2].kill();
    let watcher = &sentinel.sentinels()[0];
    until("the last sentinel to miss the others", PATIENCE, || {
        watcher.command(&["SENTINEL", "CKQUORUM", "tallygate"]).is_error().then_some(())
    });
    let diagnosis = examine(&sentinel.url()).await;
    assert_finds(&diagnosis, Check::Sentinel, Severity::Problem, "NOQUORUM");
    assert_finds(&diagnosis, Check::Sentinel, Severity::Warning, "does not answer");
}

#[tokio::test]
async fn a_cluster_is_examined_node_by_node() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let diagnosis = examine(&cluster.url()).await;
    assert_eq!(diagnosis.servers.len(), 3);
    assert_finds(&diagnosis, Check::Cluster, Severity::Ok, "all 16384 slots");
    assert_finds(&diagnosis, Check::Cluster, Severity::Warning, "cluster-require-full-coverage no");
    assert_finds(&diagnosis, Check::Cluster, Severity::Warning, "masters without a replica");
    let charged = diagnosis.findings.iter().filter(|finding| finding.check == Check::Charge);
    assert_eq!(charged.filter(|finding| finding.severity == Severity::Ok).count(), 3, "each master was charged");

    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).ok();
    }
    cluster.begin_move(100, cluster.node_of(100), cluster.node_of(16_000));
    assert_finds(&examine(&cluster.url()).await, Check::Cluster, Severity::Warning, "slots are being moved");
    cluster.end_move(100, cluster.node_of(100), cluster.node_of(16_000));

    // One full master refuses, the others do not.
    let full = &cluster.nodes()[cluster.node_of(0)];
    full.command(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    let doctor = Doctor::connect(&cluster.url(), "tallygate", DEADLINE).await.unwrap();
    let refused: Vec<String> = doctor
        .charge()
        .await
        .into_iter()
        .filter_map(|charge| match charge.result {
            Some(Err(_)) => Some(charge.server),
            _ => None,
        })
        .collect();
    assert_eq!(refused, [full.addr().to_string()]);
    full.command(&["CONFIG", "SET", "maxmemory", "0"]).ok();

    let owner = &cluster.nodes()[cluster.node_of(5)];
    owner.command(&["CLUSTER", "DELSLOTS", "5"]).ok();
    let diagnosis = examine(&cluster.url()).await;
    assert_finds(&diagnosis, Check::Cluster, Severity::Problem, "1 of 16384 slots without an owner");

    owner.kill();
    let diagnosis = examine(&cluster.url()).await;
    assert_finds(&diagnosis, Check::Reachable, Severity::Problem, &owner.addr().to_string());
    let charged = diagnosis.findings.iter().filter(|finding| finding.check == Check::Charge);
    assert!(charged.count() >= 1, "the others are still examined");
}

/// Replies that no server gives: none makes the doctor panic or wait for ever.
#[tokio::test]
async fn nonsense_from_a_server_is_no_panic() {
    let replies: [&[u8]; 7] = [
        b"$33\r\nconnected_slaves:99999999999999\xff\xfe\r\n",
        b":-9223372036854775808\r\n",
        b"$-1\r\n",
        b"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n",
        b"-ERR \xf0\x9f nonsense\r\n",
        b"$74\r\nredis_version:9999999999.-1\r\nmaxmemory:-5\r\nslave0:\r\nconnected_slaves:7\r\n:::\r\n\r\n",
        b"*0\r\n",
    ];
    for first in 0..replies.len() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let (mut chunk, mut turn) = ([0; 65536], first);
                    while let Ok(length @ 1..) = stream.read(&mut chunk) {
                        let asked = &chunk[..length];
                        if asked.windows(4).any(|word| word == b"ROLE") {
                            let hello = b"+OK\r\n+PONG\r\n*1\r\n$6\r\nmaster\r\n";
                            let _ = stream.write_all(hello);
                            continue;
                        }
                        let commands = 1 + asked.windows(3).filter(|word| word == b"\r\n*").count();
                        for _ in 0..commands {
                            let _ = stream.write_all(replies[turn % replies.len()]);
                            turn += 1;
                        }
                    }
                });
            }
        });
        let diagnosis = examine(&url).await;
        assert!(diagnosis.worst() != Severity::Ok, "{diagnosis:#?}");
    }
}

/// A server charges a fixed window to see whether charges are refused, which needs fewer commands than a log.
#[tokio::test]
async fn a_command_that_only_some_scripts_need_is_watched() {
    let server = Server::redis().acl("user app on >pw ~* &* +@all").start();
    let doctor = Doctor::connect(&server.url_as("app", "pw"), "tallygate", DEADLINE).await.unwrap();
    let refused = async || {
        let seen = doctor.watch().await.findings.into_iter().filter(|finding| finding.check == Check::Permissions);
        seen.map(|finding| (finding.severity, finding.remedy)).collect::<Vec<_>>()
    };
    assert_eq!(refused().await, []);
    server.command(&["ACL", "SETUSER", "app", "-zadd"]).ok();
    let found = refused().await;
    assert!(matches!(&found[..], [(Severity::Problem, remedy)] if remedy.contains("+zadd")), "{found:?}");
    server.command(&["ACL", "SETUSER", "app", "+zadd"]).ok();
    assert_eq!(refused().await, []);
}
