//! What a server knows of its store: findings, and above all whether a charge can really be made.

use std::time::Duration;

use tallygate::MemoryStore;
use tallygate_redis::{DoctorCheck, Severity};
use tallygate_server::store::{ServedStore, StoreSpec, StoreWatch};
use tallygate_testkit::{Cluster, Flavour, Server};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);

fn serve(url: &str) -> ServedStore {
    let deadline = Duration::from_millis(100);
    ServedStore::start(StoreSpec { deadline, audit_every: Duration::ZERO, ..StoreSpec::new(url) }).unwrap()
}

async fn wait_for(store: &ServedStore, what: &str, wanted: impl FnMut(&StoreWatch) -> bool) -> StoreWatch {
    let mut watched = store.watched();
    match timeout(PATIENCE, watched.wait_for(wanted)).await {
        Ok(seen) => seen.unwrap().clone(),
        Err(_) => panic!("waited {PATIENCE:?} until {what}; now {:#?}", store.watched().borrow()),
    }
}

/// `/readyz` and `tallygate_store_up` said that all was well while no call could be charged, because the probe only reads.
#[tokio::test]
async fn a_store_that_cannot_be_charged_is_known_within_seconds() {
    let server = Server::redis().acl("user app on >pw ~* &* +@all").arg("--maxmemory", "256mb").start();
    let store = serve(&server.url_as("app", "pw"));
    wait_for(&store, "it can be charged", |seen| seen.chargeable == 1 && seen.refusing.is_empty()).await;

    let faults: [(&[&str], &[&str], &str); 2] = [
        (&["ACL", "SETUSER", "app", "-set"], &["ACL", "SETUSER", "app", "+set"], "+set"),
        (&["CONFIG", "SET", "maxmemory", "1"], &["CONFIG", "SET", "maxmemory", "256mb"], "maxmemory"),
    ];
    for (fault, repair, remedy) in faults {
        server.command(fault).ok();
        let refused = wait_for(&store, "a charge is refused", |seen| seen.refusing.len() == 1).await;
        assert_eq!(refused.chargeable, 0);
        assert_eq!(refused.refusing[0].server, server.addr().to_string());
        assert!(refused.refusing[0].error.reason().contains(remedy), "{:?}", refused.refusing);
        assert_eq!(refused.count(DoctorCheck::Charge, Severity::Problem), 1);
        server.command(repair).ok();
        wait_for(&store, "it can be charged again", |seen| seen.chargeable == 1 && seen.refusing.is_empty()).await;
    }
    assert!(store.condition().is_ok());
}

#[tokio::test]
async fn one_full_master_of_a_cluster_refuses_for_itself_only() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let store = serve(&cluster.url());
    wait_for(&store, "all can be charged", |seen| seen.chargeable == 3).await;
    let full = &cluster.nodes()[1];
    full.command(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    let seen = wait_for(&store, "one refuses", |seen| !seen.refusing.is_empty()).await;
    assert_eq!((seen.chargeable, seen.refusing.len()), (2, 1));
    assert_eq!(seen.refusing[0].server, full.addr().to_string());
}

#[tokio::test]
async fn an_outage_is_not_a_refusal() {
    let server = Server::redis().start();
    let store = serve(&server.url());
    wait_for(&store, "it can be charged", |seen| seen.chargeable == 1).await;
    server.stop();
    let mut condition = store.subscribe();
    timeout(PATIENCE, condition.wait_for(|condition| condition.is_err())).await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(store.watched().borrow().refusing.is_empty());
    server.cont();
}

#[test]
fn the_embedded_store_has_nothing_to_find() {
    let store = ServedStore::from(MemoryStore::new());
    assert_eq!(*store.watched().borrow(), StoreWatch::default());
    assert_eq!((store.watched().borrow().clock_offset_us(), store.watched().borrow().memory_used_ratio()), (0, 0.0));
}
