//! Calls with an id over several slots: every part is charged at most once, and what is given back is not remembered.

use tallygate::hold::Units;
use tallygate::request::RequestId;
use tallygate::{CheckError, Limiter};

use super::*;

const TTL: Duration = Duration::from_secs(60);

struct Scene {
    _cluster: Cluster,
    limiter: Limiter<RedisStore>,
    limits: [Limit; 3],
}

impl Scene {
    async fn new() -> Self {
        let cluster = Cluster::start(Flavour::Redis, 3, 0);
        let store = RedisStore::builder(&cluster.url()).deadline(Duration::from_secs(10)).connect().await.unwrap();
        let limits = ["9/h", "5/h", "7/h"].map(|limit| limit.parse().unwrap());
        Self { _cluster: cluster, limiter: Limiter::new(store), limits }
    }

    /// Three subjects in three slots.
    fn checks<'s>(&'s self, policy: &'s str, mode: Mode) -> Vec<Check<'s>> {
        let check =
            |(subject, limit)| Check::new(Key::new(policy, subject).unwrap(), limit).cost(Cost::new(2).unwrap());
        let mut checks: Vec<Check<'_>> = ["a", "b", "c"].into_iter().zip(&self.limits).map(check).collect();
        checks[2] = checks[2].with_mode(mode);
        checks
    }

    async fn left(&self, checks: &[Check<'_>]) -> Vec<u64> {
        let peeked = self.limiter.peek_all(checks).await.unwrap();
        peeked.statuses().iter().map(Status::remaining).collect()
    }
}

fn id(text: &str) -> RequestId {
    RequestId::new(text).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_over_several_slots_charges_no_part_again() {
    let scene = Scene::new().await;
    for mode in Mode::ALL {
        let checks = scene.checks(mode.name(), *mode);
        let once = scene.limiter.once(id("a"));
        let first = once.check_all(&checks).await.unwrap();
        assert!(first.allowed() && first.split() && !first.replayed());
        let again = once.check_all(&checks).await.unwrap();
        assert!(again.allowed() && again.replayed(), "{mode}");
        assert_eq!(again.statuses(), first.statuses());
        assert_eq!(once.check_all(&checks[..2]).await.map(|again| again.replayed()), Ok(false), "other subjects");
        let other: Vec<Check<'_>> = checks.iter().map(|check| check.cost(Cost::new(1).unwrap())).collect();
        assert_eq!(once.check_all(&other).await, Err(CheckError::Conflict));
        assert_eq!(scene.left(&checks).await, [5, 1, 5], "{mode}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_back_is_not_remembered() {
    let scene = Scene::new().await;
    let checks = scene.checks("p", Mode::Enforce);
    let once = scene.limiter.once(id("a"));
    scene.limiter.check(checks[1].cost(Cost::new(4).unwrap())).await.unwrap();
    assert!(!once.check_all(&checks).await.unwrap().allowed());
    assert!(once.reserve(&checks, TTL).await.unwrap().hold.is_none());
    assert_eq!(scene.left(&checks).await, [9, 1, 7]);
    assert!(scene.limiter.reset(checks[1]).await.unwrap());
    let allowed = once.check_all(&checks).await.unwrap();
    assert!(allowed.allowed() && !allowed.replayed());
    assert_eq!(scene.left(&checks).await, [7, 3, 5]);
    assert!(once.check_all(&checks).await.unwrap().replayed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_takes_what_was_left_at_first() {
    let scene = Scene::new().await;
    let checks = scene.checks("p", Mode::Enforce);
    let up_to = UpTo::new(Cost::new(8).unwrap());
    let once = scene.limiter.once(id("a"));
    let first = once.check_up_to(&checks, up_to).await.unwrap();
    let again = once.check_up_to(&checks, up_to).await.unwrap();
    assert_eq!([first.granted(), again.granted()], [Some(5); 2]);
    assert!(again.allowed() && again.replayed());
    assert_eq!(scene.left(&checks).await, [4, 0, 2]);
    assert_eq!(once.check_all(&checks).await, Err(CheckError::Conflict));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_reservation_over_several_slots_is_one_hold() {
    let scene = Scene::new().await;
    let checks = scene.checks("p", Mode::Enforce);
    let once = scene.limiter.once(id("a"));
    let first = once.reserve(&checks, TTL).await.unwrap().hold.unwrap().into_hold();
    // A part of it was lost, as by the failover of a shard: what is missing joins the first hold.
    let request =
        Call::reserve(&checks, tallygate::hold::Reservation::new(TTL)).unwrap().with_request_id(Some(id("a")));
    let engine = &scene.limiter.store().engine;
    let asked = Asked::new(&checks[2], &engine.prefix);
    let part = request.request().unwrap().of_part(asked.key.as_bytes());
    let forget = Questions { request: Some(Box::new(part)), ..Questions::new(Verb::Refund, vec![asked]) };
    engine.run(&forget, engine.client.default_deadline()).await.unwrap();
    assert_eq!(scene.left(&checks).await, [7, 3, 7]);
    let again = once.reserve(&checks, TTL).await.unwrap();
    assert!(!again.decision.replayed());
    let again = again.hold.unwrap().into_hold();
    assert_eq!(again, first);
    assert_eq!(scene.left(&checks).await, [7, 3, 5]);
    let settled = scene.limiter.settle(&again, Units::Same(1)).await.unwrap();
    assert_eq!(settled.parts.iter().map(|part| part.settled).collect::<Vec<_>>(), [1; 3]);
    assert!(once.reserve(&checks, TTL).await.unwrap().decision.replayed());
}
