//! The shared store: every property, on Redis, on Valkey and on a real cluster of three masters.

use std::time::Duration;

use tallygate::Limiter;
use tallygate::clock::{ManualClock, Timestamp};
use tallygate_redis::RedisStore;
use tallygate_testkit::conformance::{self, Rig};
use tallygate_testkit::{Cluster, Flavour, Server, valkey_or_skip};

struct RedisRig<'s> {
    limiter: Limiter<RedisStore>,
    clock: ManualClock,
    servers: Vec<&'s Server>,
}

impl<'s> RedisRig<'s> {
    async fn new(url: &str, servers: impl IntoIterator<Item = &'s Server>) -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
        let store = RedisStore::builder(url).deadline(Duration::from_secs(10)).manual_clock(clock.clone());
        let limiter = Limiter::new(store.connect().await.unwrap());
        Self { limiter, clock, servers: servers.into_iter().collect() }
    }
}

impl Rig for RedisRig<'_> {
    type Store = RedisStore;

    fn limiter(&self) -> &Limiter<RedisStore> {
        &self.limiter
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// Keys expire by the server's own clock, and in these tests an hour late.
    fn forgets(&self) -> bool {
        false
    }

    async fn every_key_expires(&self) -> Result<(), String> {
        let mut seen = 0;
        for server in &self.servers {
            for key in server.command(&["KEYS", "*"]).items() {
                seen += 1;
                let ttl = server.command(&["PTTL", &key.text()]).int();
                if ttl < 0 {
                    return Err(key.text());
                }
            }
        }
        if seen == 0 { Err("there are no keys at all, so nothing was tested".to_owned()) } else { Ok(()) }
    }
}

#[tokio::test]
async fn every_property_holds_on_redis() {
    let server = Server::redis().start();
    conformance::all(&RedisRig::new(&server.url(), [&server]).await, 1, 6_000).await;
}

#[tokio::test]
async fn every_property_holds_on_valkey() {
    if !valkey_or_skip() {
        return;
    }
    let server = Server::valkey().start();
    conformance::all(&RedisRig::new(&server.url(), [&server]).await, 2, 6_000).await;
}

#[tokio::test]
async fn every_property_holds_through_a_cluster() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    conformance::all(&RedisRig::new(&cluster.url(), cluster.nodes()).await, 3, 6_000).await;
}
