use tallygate::call::{Call, UpTo};
use tallygate::{Check, Cost, Key, Limit, Store};
use tallygate_testkit::wait::PATIENCE;
use tallygate_testkit::{Cluster, Flavour};

mod repeat;

use super::*;
use crate::RedisStore;

/// Each slot grants what it has; what the others have not is given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_in_several_slots_is_the_least_of_them() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let store = RedisStore::builder(&cluster.url()).deadline(Duration::from_secs(10)).connect().await.unwrap();
    let limits = ["9/h", "5/h", "7/h", "3/h", "4/h"].map(|limit| limit.parse::<Limit>().unwrap());
    let modes = [Mode::Enforce, Mode::Enforce, Mode::Quota, Mode::Quota, Mode::Shadow];
    let subjects = ["a", "b", "c", "d", "e"];
    let check = |at: usize| Check::new(Key::new("p", subjects[at]).unwrap(), &limits[at]).with_mode(modes[at]);
    let checks: Vec<Check<'_>> = (0..5).map(check).collect();
    let units = |units| Cost::new(units).unwrap();
    let moved = |decision: &Decision| decision.statuses().iter().map(Status::units).collect::<Vec<_>>();
    let take = async |least| {
        let up_to = UpTo::new(units(8)).at_least(units(least)).unwrap();
        store.call(&Call::check_up_to(&checks, up_to).unwrap()).await.unwrap()
    };
    let left = async || {
        let peeked = store.call(&Call::new(Verb::Peek, &checks).unwrap()).await.unwrap();
        peeked.statuses().iter().map(Status::remaining).collect::<Vec<_>>()
    };
    let granted = take(2).await;
    assert!(granted.split());
    assert_eq!((granted.granted(), moved(&granted)), (Some(5), vec![5, 5, 5, 0, 4]));
    assert_eq!(left().await, [4, 0, 2, 3, 0]);
    let denied = take(2).await;
    assert!(denied.split() && !denied.allowed());
    assert_eq!((denied.granted(), moved(&denied)), (Some(0), vec![0; 5]));
    assert_eq!(left().await, [4, 0, 2, 3, 0]);
}

/// Two quotas of one slot, and a limit elsewhere that has less than both: the smaller was not charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_quota_of_a_slot_that_has_enough_pays() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let store = RedisStore::builder(&cluster.url()).deadline(Duration::from_secs(10)).connect().await.unwrap();
    let limits = ["5/h", "50/h", "100/h", "2/h"].map(|limit| limit.parse::<Limit>().unwrap());
    let of = [("cap", "all"), ("day", "user"), ("month", "user"), ("hour", "user")];
    let check = |at: usize| Check::new(Key::new(of[at].0, of[at].1).unwrap(), &limits[at]);
    let checks: Vec<Check<'_>> =
        (0..4).map(|at| check(at).with_mode(if at == 0 { Mode::Enforce } else { Mode::Quota })).collect();
    let up_to = UpTo::new(Cost::new(80).unwrap());
    let granted = store.call(&Call::check_up_to(&checks, up_to).unwrap()).await.unwrap();
    assert_eq!(granted.granted(), Some(5));
    let peeked = store.call(&Call::new(Verb::Peek, &checks).unwrap()).await.unwrap();
    assert_eq!(peeked.statuses().iter().map(Status::remaining).collect::<Vec<_>>(), [0, 45, 95, 2]);
}

/// On a busy machine the refund ran out of its one deadline before it was sent, and a denied call stayed charged in a healthy slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_denied_call_was_charged_is_given_back_although_there_was_no_time_at_first() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let store = RedisStore::builder(&cluster.url()).deadline(Duration::from_millis(100)).connect().await.unwrap();
    let (free, spent): (Limit, Limit) = ("9/h".parse().unwrap(), "1/h".parse().unwrap());
    let checks = [("free", "a", &free), ("spent", "b", &spent)];
    let checks = checks.map(|(policy, subject, limit)| Check::new(Key::new(policy, subject).unwrap(), limit));
    let ask = async |verb: Verb, checks: &[Check<'_>]| {
        let start = Instant::now();
        loop {
            match store.call(&Call::new(verb, checks).unwrap()).await {
                Ok(decision) => return decision,
                Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
            }
        }
    };
    while ask(Verb::Check, &checks[1..]).await.allowed() {}
    let servers = store.engine.client.servers();
    let taken: Vec<_> = servers
        .iter()
        .map(|(node, _)| Arc::clone(node.places(Effect::GivesBack)).try_acquire_many_owned(1024).unwrap())
        .collect();
    let denied = ask(Verb::Check, &checks).await;
    assert!(!denied.allowed() && denied.split());
    sleep(Duration::from_millis(300)).await;
    drop(taken);
    let start = Instant::now();
    while ask(Verb::Peek, &checks[..1]).await.binding().remaining() < 9 {
        assert!(start.elapsed() < PATIENCE, "it stays charged");
    }
}
