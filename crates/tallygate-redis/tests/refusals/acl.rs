//! Users with too few permissions, and one with the minimum.

use std::sync::Arc;
use std::time::Duration;

use tallygate::{Algorithm, Check, Counter, Key, Limit};
use tallygate_redis::RedisStore;
use tallygate_testkit::wait::{PATIENCE, until};
use tallygate_testkit::{Cluster, Flavour, Sentinel, Server, valkey_available};

use super::{is_refused, refusal};
use crate::support::{RedisLimiter, every_key_expires, flavours, limit, patient, receipt, units};

/// Everything that the scripts run, and how they are run: the minimum for a single server. As documented.
const LEAST: &str = "~tallygate:* resetchannels -@all +evalsha +eval +time +get +set +incrby +unlink +zadd +zrange +zcard \
                     +zcount +zrem +zremrangebyrank +pexpire";
/// Also tried with every connection. Everything works without it, but the server's ACL LOG fills, and a replica is
/// detected only by the first write.
const QUIET: &str = "+ping +client|setname +role";
/// In addition, on a cluster.
const CLUSTER: &str = "+cluster|slots +asking";
/// On the sentinels.
const SENTINEL: &str = "resetchannels &+switch-master -@all +sentinel|get-master-addr-by-name +sentinel|master +subscribe \
                        +ping +client|setname";

fn set_user(server: &Server, name: &str, rules: &str) {
    let mut setuser = vec!["ACL", "SETUSER", name, "on", ">secret"];
    setuser.extend(rules.split_whitespace());
    server.command(&setuser).ok();
}

/// The server has denied no command.
#[track_caller]
fn refused_nothing(server: &Server) {
    let log = server.command(&["ACL", "LOG"]).ok();
    assert!(log.items().is_empty(), "{log:?}");
}

const DAY: Duration = Duration::from_secs(86_400);

fn user(rules: &str) -> String {
    format!("user least on >secret {rules}")
}

fn commands() -> impl Iterator<Item = &'static str> {
    LEAST.split_whitespace().filter_map(|rule| rule.strip_prefix('+'))
}

/// Every verb on every algorithm, and counters.
async fn does_everything(limiter: &RedisLimiter) {
    let plain = limit("100/min");
    let ttl = Duration::from_secs(5);
    assert_eq!(limiter.store().count_instances("one", ttl).await.unwrap(), 1);
    assert_eq!(limiter.store().count_instances("two", ttl).await.unwrap(), 2);
    for gone in ["one", "two"] {
        limiter.store().count_instances(gone, Duration::ZERO).await.unwrap();
    }
    for &algorithm in Algorithm::OVER_TIME {
        let limit = Limit::builder(3, 200 * DAY).algorithm(algorithm).build().unwrap();
        let wider = Limit::builder(5, 300 * DAY).algorithm(algorithm).build().unwrap();
        let check = Check::new(Key::new(algorithm.name(), "s").unwrap(), &limit);
        let other = Check::new(Key::new("plain", "s").unwrap(), &plain);
        let changed = Check::new(check.key, &wider);
        limiter.reset(check).await.unwrap();
        for allowed in [true, true, true, false] {
            assert_eq!(limiter.check(check).await.unwrap().allowed(), allowed);
        }
        assert_eq!(limiter.refund(&[receipt(check.cost(units(2)), None)]).await.unwrap(), [2]);
        assert!(limiter.check_all(&[check, other]).await.unwrap().allowed());
        assert!(limiter.peek(check).await.unwrap().allowed());
        // Other numbers: the state is converted, by an admitted call, by a refund, by a denied call.
        assert!(limiter.check(changed).await.unwrap().allowed());
        assert_eq!(limiter.refund(&[receipt(check, None)]).await.unwrap(), [1]);
        assert!(!limiter.check_all(&[changed.cost(units(5)), other]).await.unwrap().allowed());
        assert!(limiter.reset(check).await.unwrap());
        assert!(limiter.check(check).await.unwrap().allowed());
    }
    let counter =
        Counter::new(Arc::clone(limiter.store()), "c").unwrap().expires_after(Duration::from_secs(60)).unwrap();
    assert_eq!(counter.incr().await.unwrap(), 1);
    assert_eq!(counter.incr_by(4).await.unwrap(), 5);
    assert!((counter.incr_by_float(0.5).await.unwrap() - 5.5).abs() < 1e-9);
    counter.get().await.unwrap();
    counter.delete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_least_privileged_user_can_do_everything() {
    for flavour in flavours() {
        let server = Server::of(flavour).acl(&user(LEAST)).start();
        does_everything(&patient(&server.url_as("least", "secret")).await).await;
        every_key_expires(&server);
        set_user(&server, "quiet", &format!("{LEAST} {QUIET}"));
        server.command(&["ACL", "LOG", "RESET"]).ok();
        server.command(&["FLUSHALL"]).ok();
        does_everything(&patient(&server.url_as("quiet", "secret")).await).await;
        refused_nothing(&server);
        // And nothing else: no foreign keys, no other commands.
        for line in [&["GET", "other:1"][..], &["KEYS", "*"], &["FLUSHALL"], &["CONFIG", "GET", "*"]] {
            let mut as_user = vec!["ACL", "DRYRUN", "least"];
            as_user.extend(line);
            let reply = server.command(&as_user);
            assert!(reply.text().contains("no permissions"), "{line:?}: {reply:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_least_privileged_user_can_do_everything_on_a_cluster() {
    let flavour = if valkey_available() { Flavour::Valkey } else { Flavour::Redis };
    let cluster = Cluster::start(flavour, 3, 0);
    for node in cluster.nodes() {
        set_user(node, "least", &format!("{LEAST} {QUIET} {CLUSTER}"));
    }
    let url = cluster.url().replace("://", "://least:secret@");
    let limiter = patient(&url).await;
    does_everything(&limiter).await;
    // Also during a move, where ASKING is needed.
    let limit = limit("5/day");
    let check = Check::new(Key::new("asking", "s").unwrap(), &limit);
    let slot = cluster.slot_of(check.key.encode("tallygate", "tb").as_bytes());
    let from = cluster.node_of(slot);
    cluster.begin_move(slot, from, (from + 1) % 3);
    assert_eq!(limiter.check(check).await.unwrap().binding().remaining(), 4);
    for node in cluster.nodes() {
        refused_nothing(node);
        node.command(&["ACL", "SETUSER", "least", "-cluster|slots"]).ok();
    }
    is_refused(&refusal(&url).await, "+cluster|slots");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_least_privileged_user_can_do_everything_through_sentinels() {
    let sentinel = Sentinel::start(Flavour::Redis);
    for server in sentinel.servers() {
        set_user(server, "least", &format!("{LEAST} {QUIET}"));
    }
    for one in sentinel.sentinels() {
        set_user(one, "watcher", SENTINEL);
    }
    let url = sentinel.url().replace("://", "://least:secret@") + "?sentinel_user=watcher&sentinel_password=secret";
    let limiter = patient(&url).await;
    does_everything(&limiter).await;
    let old = sentinel.master();
    sentinel.failover();
    until("the old master to be a replica", PATIENCE, || (old.info("role")? == "slave").then_some(()));
    does_everything(&patient(&url).await).await;
    sentinel.servers().iter().chain(sentinel.sentinels()).for_each(refused_nothing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_missing_command_is_named() {
    for flavour in flavours() {
        let server = Server::of(flavour).acl(&user(LEAST)).start();
        let url = server.url_as("least", "secret");
        for missing in commands() {
            // The server must not have the scripts, so that EVAL is needed too.
            server.command(&["SCRIPT", "FLUSH"]).ok();
            server.command(&["ACL", "SETUSER", "least", &format!("-{missing}")]).ok();
            is_refused(&refusal(&url).await, &format!("+{missing}"));
            server.command(&["ACL", "SETUSER", "least", &format!("+{missing}")]).ok();
            patient(&url).await;
        }
        // All at once, so that one error is enough.
        let few = "~tallygate:* -@all +evalsha +eval +time +get +set +incrby +unlink";
        set_user(&server, "few", few);
        let error = refusal(&server.url_as("few", "secret")).await;
        is_refused(&error, "+zadd +zrange +zcard +zcount +zrem +zremrangebyrank +pexpire");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_of_other_keys_gets_the_missing_key_pattern() {
    for flavour in flavours() {
        let server = Server::of(flavour).acl(&user(&LEAST.replace("~tallygate:*", "~other:*"))).start();
        let url = server.url_as("least", "secret");
        is_refused(&refusal(&url).await, ":*");
        let other = RedisStore::builder(&url).prefix("other").deadline(PATIENCE).connect_timeout(PATIENCE);
        assert!(other.connect().await.is_ok());
        assert!(server.command(&["DBSIZE"]).int() == 0, "the rehearsal leaves nothing");
    }
}
