//! Wrong addresses, wrong passwords, wrong kinds of server.

use std::time::Duration;

use tallygate::{Check, Key, Limiter};
use tallygate_redis::{ConnectError, RedisStore};
use tallygate_testkit::wait::PATIENCE;
use tallygate_testkit::{Cluster, Flavour, Sentinel, Server, valkey_available};

use super::{check_refused, is_refused, is_unavailable, refusal};
use crate::support::{flavours, limit, patient};

async fn works(url: &str) {
    let limit = limit("5/min");
    assert!(patient(url).await.check(Check::new(Key::new("p", "s").unwrap(), &limit)).await.unwrap().allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords() {
    for flavour in flavours() {
        let server = Server::of(flavour).password("right").start();
        works(&server.url()).await;
        for wrong in ["redis://", "redis://:wrong@", "redis://default:wrong@", "redis://nobody:right@"] {
            let error = refusal(&format!("{wrong}{}", server.addr())).await;
            is_refused(&error, "redis://user:password@host");
            assert!(!error.to_string().contains("wrong@") && !error.to_string().contains("right"), "{error}");
        }
    }
    // A password that the server does not expect is an error.
    let open = Server::redis().start();
    is_refused(&refusal(&format!("redis://:needless@{}", open.addr())).await, "password");
    is_refused(&refusal(&format!("redis://{}/99", open.addr())).await, "database");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ports_where_nothing_listens() {
    let server = Server::redis().unix_socket().start();
    works(&server.url()).await;
    let (tcp, socket) = (format!("redis://{}", server.addr()), server.url());
    works(&tcp).await;
    server.kill();
    for url in [tcp, socket, "redis+unix:///nowhere/redis.sock".into()] {
        is_unavailable(&refusal(&url).await, "is the server running?");
    }
    for scheme in ["redis+cluster", "redis+sentinel"] {
        let path = if scheme.ends_with("sentinel") { "/tallygate" } else { "" };
        is_unavailable(&refusal(&format!("{scheme}://{}{path}", server.addr())).await, "is the server running?");
    }
    is_unavailable(&refusal("redis://no-such-host.invalid:6379").await, "no-such-host.invalid");
}

#[tokio::test]
async fn typing_mistakes() {
    for (url, remedy) in [
        ("", "redis://host:6379"),
        ("localhost:6379", "redis://host:6379"),
        ("redsi://localhost", "did you mean redis://"),
        ("http://localhost", "did you mean"),
        ("redis://", "host is missing"),
        ("redis://localhost:port", "1 to 65535"),
        ("redis://localhost:70000", "1 to 65535"),
        ("redis://localhost/db", "redis://host:6379/0"),
        ("redis://a,b", "redis+cluster://"),
        ("redis+cluster://a,b/1", "leave the path empty"),
        ("redis+sentinel://a,b", "master-name"),
        ("redis://user@localhost", "redis://user:password@host"),
        ("redis://:p/w@localhost", "%2F"),
        ("redis://:p%zz@localhost", "%25"),
        ("redis://localhost?ca=/ca.pem", "this scheme has no parameters"),
        ("redis+unix://", "redis+unix:///"),
    ] {
        let error = refusal(url).await;
        assert!(matches!(error, ConnectError::Url(_)), "{url}: {error:?}");
        assert!(error.to_string().contains(remedy), "{url}: {error}");
        assert!(!error.to_string().contains("p/w") && !error.to_string().contains("p%zz"), "{error}");
    }
    for prefix in ["", "a:b", "a{b", "a b", &"a".repeat(65)] {
        let error = RedisStore::builder("redis://localhost").prefix(prefix).connect().await.err().unwrap();
        assert!(error.to_string().contains("1 to 64 letters"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates() {
    let (server, other, plain) =
        (Server::redis().tls().start(), Server::redis().tls().start(), Server::redis().start());
    works(&server.url()).await;
    let url = |query: &str| format!("rediss://{}{query}", server.addr());
    is_refused(&refusal(&url("")).await, "?ca=/path/ca.pem");
    is_refused(&refusal(&url(&format!("?ca={}", other.ca_path().display()))).await, "?ca=/path/ca.pem");
    is_refused(&refusal(&url("?ca=/nowhere/ca.pem")).await, "?ca=/path/ca.pem");
    let empty = server.folder().join("empty.pem");
    std::fs::write(&empty, "no certificate").unwrap();
    is_refused(&refusal(&url(&format!("?ca={}", empty.display()))).await, "?ca=/path/ca.pem");
    // TLS to a plain port, and the other way round.
    let to_plain = format!("rediss://{}?ca={}", plain.addr(), server.ca_path().display());
    // Redis waits for the end of a line that never comes.
    let hasty = RedisStore::builder(&to_plain).connect_timeout(Duration::from_millis(500)).connect().await;
    is_unavailable(&hasty.err().unwrap(), "does this port not speak TLS?");
    is_unavailable(&refusal(&format!("redis://{}", server.addr())).await, "rediss://");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wrong_kind_of_server() {
    let single = Server::redis().start();
    is_refused(&refusal(&format!("redis+cluster://{}", single.addr())).await, "redis://host:port");
    is_refused(&refusal(&format!("redis+sentinel://{}/tallygate", single.addr())).await, "redis://host:port");

    let flavour = if valkey_available() { Flavour::Valkey } else { Flavour::Redis };
    let cluster = Cluster::start(flavour, 3, 0);
    let limit = limit("5/min");
    let mut refused = 0;
    for node in cluster.nodes() {
        // At once, or with the first key of another node.
        match RedisStore::builder(&node.url()).deadline(PATIENCE).connect_timeout(PATIENCE).connect().await {
            Err(error) => is_refused(&error, "redis+cluster://host:port"),
            Ok(store) => {
                let limiter = Limiter::new(store);
                for subject in ["a", "b", "c", "d", "e", "f", "g", "h"] {
                    if let Err(error) = limiter.check(Check::new(Key::new("p", subject).unwrap(), &limit)).await {
                        check_refused(&error, "redis+cluster://host:port");
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(refused >= 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_replicas() {
    let sentinel = Sentinel::start(Flavour::Redis);
    works(&sentinel.url()).await;
    let misnamed = sentinel.url().replace("/tallygate", "/mymaster");
    is_refused(&refusal(&misnamed).await, "redis+sentinel://host:26379/master-name");
    // Neither a sentinel nor a replica is a store.
    let replica = sentinel.servers().iter().find(|server| server.port() != sentinel.master().port()).unwrap();
    for (server, role) in [(replica, "is a replica"), (&sentinel.sentinels()[0], "is a sentinel")] {
        let error = refusal(&server.url()).await;
        is_unavailable(&error, role);
        is_unavailable(&error, "redis+sentinel://host:26379/master-name");
    }
}
