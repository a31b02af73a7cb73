//! The throwaway servers do what tests rely on, and leave nothing behind.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tallygate_testkit::wait::{PATIENCE, until};
use tallygate_testkit::{Cluster, Flavour, Reply, Sentinel, Server, valkey_available};

fn flavours() -> Vec<Flavour> {
    let mut flavours = vec![Flavour::Redis];
    if valkey_available() {
        flavours.push(Flavour::Valkey);
    }
    flavours
}

fn process_exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn time_micros(server: &Server) -> i64 {
    let reply = server.command(&["TIME"]);
    reply.items()[0].int() * 1_000_000 + reply.items()[1].int()
}

fn ok() -> Reply {
    Reply::Simple("OK".to_owned())
}

#[test]
fn starts_answers_and_leaves_nothing() {
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        assert_eq!(server.command(&["SET", "k", "v"]), ok());
        assert_eq!(server.command(&["GET", "k"]), Reply::Bulk(b"v".to_vec()));
        assert_eq!(server.command(&["GET", "absent"]), Reply::Nil);
        assert!(server.command(&["LPUSH", "k", "v"]).text().starts_with("WRONGTYPE"));
        assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));

        let (pid, folder) = (server.pid(), server.folder().to_owned());
        assert!(process_exists(pid) && folder.exists());
        drop(server);
        assert!(!process_exists(pid) && !folder.exists());
    }
}

#[test]
fn drop_ends_a_stopped_server_too() {
    let server = Server::redis().start();
    server.stop();
    let pid = server.pid();
    drop(server);
    assert!(!process_exists(pid));
}

/// Runs itself in a new process, which holds a server, and kills that process.
#[test]
fn a_killed_test_leaves_no_server() {
    const HOLD: &str = "TALLYGATE_TESTKIT_HOLD";
    if std::env::var_os(HOLD).is_some() {
        let server = Server::redis().start();
        eprintln!("HOLDING {} {}", server.pid(), server.folder().display());
        std::thread::sleep(PATIENCE);
        return;
    }
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "servers::a_killed_test_leaves_no_server"])
        .env(HOLD, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(holder.stderr.take().unwrap()));
    let line =
        lines.map_while(Result::ok).find_map(|line| line.split_once("HOLDING ").map(|(_, rest)| rest.to_owned()));
    let line = line.unwrap();
    let (pid, folder) = line.split_once(' ').unwrap();
    let pid = pid.parse().unwrap();
    assert!(process_exists(pid));
    holder.kill().unwrap();
    holder.wait().unwrap();
    until("the watchdog", PATIENCE, || (!process_exists(pid) && !Path::new(folder).exists()).then_some(()));
}

#[test]
fn restart_loses_data_unless_persisted() {
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        let port = server.port();
        server.command(&["SET", "k", "v"]).ok();
        server.restart();
        assert_eq!(server.port(), port);
        assert_eq!(server.command(&["DBSIZE"]), Reply::Int(0));

        let server = Server::of(flavour).arg("--appendonly", "yes").arg("--appendfsync", "always").start();
        server.command(&["SET", "k", "v"]).ok();
        server.kill();
        assert!(server.try_command(&["PING"]).is_err());
        server.restart();
        assert_eq!(server.command(&["GET", "k"]), Reply::Bulk(b"v".to_vec()));
    }
}

#[test]
fn a_stopped_server_is_silent_and_then_catches_up() {
    let server = Server::redis().start();
    let mut connection = server.connect().unwrap();
    server.stop();
    connection.send(&["INCR", "k"]).unwrap();
    server.cont();
    assert_eq!(connection.receive().unwrap(), Reply::Int(1));
}

#[test]
fn passwords_users_and_sockets() {
    let server =
        Server::redis().password("p@ss").acl("user alice on >wonder ~a:* -@all +get +auth").unix_socket().start();
    assert_eq!(server.command(&["ACL", "WHOAMI"]).text(), "testkit");
    let socket = server.folder().join("socket");
    assert_eq!(server.url(), format!("redis+unix://:p%40ss@{}", socket.display()));
    assert_eq!(server.url_as("alice", "wonder"), format!("redis+unix://alice:wonder@{}", socket.display()));
    let mut client = tallygate_testkit::Connection::open(server.addr(), PATIENCE).unwrap();
    assert!(client.call(&["GET", "k"]).unwrap().text().starts_with("NOAUTH"));
    assert_eq!(client.call(&["AUTH", "p@ss"]).unwrap(), ok());
    assert_eq!(client.call(&["AUTH", "alice", "wonder"]).unwrap(), ok());
    assert!(client.call(&["GET", "b:1"]).unwrap().text().starts_with("NOPERM"));
    assert_eq!(client.call(&["GET", "a:1"]).unwrap(), Reply::Nil);

    let guarded = Server::redis().password("simple").start();
    let replica = Server::redis().replica_of(&guarded).start();
    assert_eq!(replica.info("role").as_deref(), Some("slave"));
}

#[test]
fn a_setting_reaches_the_server() {
    let server = Server::redis().arg("--maxmemory", "8mb").arg("--maxmemory-policy", "allkeys-lru").start();
    let reply = server.command(&["CONFIG", "GET", "maxmemory"]);
    assert_eq!(reply.items()[1].int(), 8 * 1024 * 1024);
}

#[test]
#[should_panic(expected = "did not come up")]
fn a_bad_setting_shows_the_log() {
    let _ = Server::redis().arg("--no-such-setting", "1").start();
}

#[test]
fn tls_serves_the_generated_certificate() {
    let server = Server::redis().tls().start();
    assert_eq!(server.url(), format!("rediss://{}?ca={}", server.addr(), server.ca_path().display()));
    assert_eq!(server.command(&["PING"]).text(), "PONG");
    let pem = std::fs::read_to_string(server.ca_path()).unwrap();
    assert!(pem.starts_with("-----BEGIN CERTIFICATE-----"));
    // A plain client gets no reply from the TLS port.
    let mut plain = tallygate_testkit::Connection::open(server.addr(), PATIENCE).unwrap();
    assert!(plain.call(&["PING"]).is_err());
}

#[test]
fn a_skewed_clock_moves_live() {
    const HOUR: i64 = 3_600_000_000;
    for flavour in flavours() {
        let server = Server::of(flavour).skewed_clock().start();
        let real = time_micros(&server);
        for offset in [HOUR, -HOUR, 1_500_000, -1, 0] {
            server.skew(offset);
            let drift = time_micros(&server) - real - offset;
            assert!((0..5_000_000).contains(&drift), "{offset}: off by {drift}");
        }
        // Expiry follows the moved clock.
        server.command(&["SET", "k", "v", "PX", "60000"]).ok();
        server.skew(HOUR);
        assert_eq!(server.command(&["GET", "k"]), Reply::Nil);
    }
}

#[test]
fn cluster_forms_moves_a_slot_and_fails_over() {
    for flavour in flavours() {
        let cluster = Cluster::start(flavour, 3, 1);
        assert_eq!(cluster.url().matches(',').count(), 5);
        let slot = cluster.slot_of(b"{tenant}");
        let from = cluster.node_of(slot);
        for number in 0..250 {
            let key = format!("{{tenant}}:{number}");
            assert_eq!(cluster.nodes()[from].command(&["SET", &key, "v"]), ok());
        }
        let to = (from + 1) % 3;
        cluster.move_slot(slot, to);
        assert_eq!(cluster.node_of(slot), to);
        let slot_text = slot.to_string();
        let count = |node: usize| cluster.nodes()[node].command(&["CLUSTER", "COUNTKEYSINSLOT", &slot_text]);
        assert_eq!((count(from), count(to)), (Reply::Int(0), Reply::Int(250)));
        let moved = cluster.nodes()[from].command(&["GET", "{tenant}:1"]).text();
        assert!(moved.starts_with("MOVED"), "{moved}");

        cluster.begin_move(slot, to, from);
        cluster.move_keys(slot, to, from, 1);
        let ask = cluster.nodes()[to].command(&["GET", "{tenant}:absent"]).text();
        assert!(ask.starts_with("ASK"), "{ask}");
        while cluster.move_keys(slot, to, from, 100) > 0 {}
        cluster.end_move(slot, to, from);

        let promoted = cluster.failover(from);
        assert_eq!(cluster.node_of(slot), promoted);
        assert_eq!(cluster.nodes()[promoted].command(&["GET", "{tenant}:1"]).text(), "v");
        cluster.nodes()[promoted].kill();
        assert_eq!(cluster.wait_for_takeover(promoted, slot), from);
    }
}

#[test]
fn sentinel_failover_changes_the_master() {
    for flavour in flavours() {
        let sentinel = Sentinel::start(flavour);
        assert!(sentinel.url().ends_with("/tallygate"));
        let old = sentinel.master().port();
        assert_eq!(sentinel.master().command(&["SET", "k", "v"]), ok());
        let new = sentinel.failover();
        assert_ne!(new.port(), old);
        assert_eq!(new.command(&["SET", "k", "w"]), ok());
    }
}

#[test]
fn sentinel_replaces_a_killed_master() {
    let sentinel = Sentinel::start(Flavour::Redis);
    let old = sentinel.kill_master();
    let new = sentinel.wait_for_new_master(old);
    assert_ne!(new.port(), old);
    assert_eq!(new.command(&["SET", "k", "v"]), ok());
    until("two sentinels to log it", PATIENCE, || (sentinel.switches() == 1).then_some(()));
}

#[test]
fn parallel_starts_never_share_a_port() {
    let servers: Vec<Server> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| Server::redis().start())).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    });
    for (index, server) in servers.iter().enumerate() {
        server.command(&["SET", "who", &index.to_string()]).ok();
    }
    for (index, server) in servers.iter().enumerate() {
        assert_eq!(server.command(&["GET", "who"]).text(), index.to_string());
    }
}

mod proxy {
    use super::*;
    use tallygate_testkit::{Connection, FaultProxy, Mode};

    fn setup() -> (Server, FaultProxy, Connection) {
        let server = Server::redis().start();
        let proxy = FaultProxy::start(server.addr());
        let mut connection = open(&proxy);
        assert_eq!(connection.call(&["INCR", "k"]).unwrap(), Reply::Int(1));
        (server, proxy, connection)
    }

    fn open(proxy: &FaultProxy) -> Connection {
        Connection::open(proxy.addr(), Duration::from_millis(300)).unwrap()
    }

    fn value(server: &Server) -> i64 {
        server.command(&["GET", "k"]).int()
    }

    #[test]
    fn delay_holds_the_reply() {
        let (_server, proxy, mut connection) = setup();
        proxy.set(Mode::Delay(Duration::from_millis(100)));
        let start = Instant::now();
        assert_eq!(connection.call(&["INCR", "k"]).unwrap(), Reply::Int(2));
        assert!(start.elapsed() >= Duration::from_millis(100));
    }

    #[test]
    fn black_hole_swallows_the_request() {
        let (server, proxy, mut connection) = setup();
        proxy.set(Mode::BlackHole);
        for connection in [&mut connection, &mut open(&proxy)] {
            let error = connection.call(&["INCR", "k"]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
        }
        assert_eq!(value(&server), 1);
        proxy.set(Mode::Pass);
        assert_eq!(open(&proxy).call(&["INCR", "k"]).unwrap(), Reply::Int(2));
        assert_eq!(proxy.accepted(), 3);
    }

    #[test]
    fn drop_replies_keeps_the_effect() {
        let (server, proxy, mut connection) = setup();
        proxy.set(Mode::DropReplies);
        assert!(connection.call(&["INCR", "k"]).is_err());
        assert_eq!(value(&server), 2);
    }

    #[test]
    fn cut_after_k_bytes_of_the_reply() {
        let (server, proxy, _) = setup();
        for cut in 0..4 {
            let mut connection = open(&proxy);
            proxy.set(Mode::CutAfter(cut));
            let error = connection.call(&["INCR", "k"]).unwrap_err();
            assert_ne!(error.kind(), ErrorKind::WouldBlock, "closed, not silent");
        }
        proxy.set(Mode::CutAfter(4));
        assert_eq!(open(&proxy).call(&["INCR", "k"]).unwrap(), Reply::Int(6));
        assert_eq!(value(&server), 6);
    }

    #[test]
    fn trickle_is_only_slow() {
        let (_server, proxy, mut connection) = setup();
        proxy.set(Mode::Trickle);
        assert_eq!(connection.call(&["INCR", "k"]).unwrap(), Reply::Int(2));
    }

    #[test]
    fn reset_hits_open_and_new_connections() {
        let (server, proxy, mut connection) = setup();
        proxy.set(Mode::Reset);
        let error = connection.receive().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let refused = Connection::open(proxy.addr(), PATIENCE).and_then(|mut new| new.receive());
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(value(&server), 1);
    }
}
