//! A cluster: slots that move under load, and calls whose keys are in different slots.

use std::collections::HashSet;
use std::time::Duration;

use tallygate::store::StoreErrorKind;
use tallygate::{Algorithm, Check, CheckError, Key, Limit};
use tallygate_testkit::{Cluster, Flavour, valkey_available};
use tokio::task::JoinSet;

use crate::support::{
    Load, RedisLimiter, every_key_expires, limit, patient, replays, units, used, within, within_bound, yearly,
};

fn valkey_if_possible() -> Flavour {
    if valkey_available() { Flavour::Valkey } else { Flavour::Redis }
}

fn check<'a>(policy: &'a str, subject: &'a str, limit: &'a Limit) -> Check<'a> {
    Check::new(Key::new(policy, subject).unwrap(), limit)
}

fn every_key_of(cluster: &Cluster) -> usize {
    cluster.nodes().iter().map(every_key_expires).sum()
}

/// The slot of the states of a subject.
fn slot_of(cluster: &Cluster, subject: &str) -> u16 {
    let key = Key::new("p", subject).unwrap().encode("tallygate", "tb");
    cluster.slot_of(key.as_bytes())
}

/// Sixteen moves of slots that are in use: callers do not notice, and the limits hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_under_load_change_no_answer() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let limiter = patient(&cluster.url()).await;
    let subjects = ["hot", "warm", "tepid", "cold"];
    let mut loads = Vec::new();
    for (number, algorithm) in Algorithm::OVER_TIME.iter().copied().enumerate() {
        let short = Limit::builder(60, Duration::from_millis(100)).algorithm(algorithm).build().unwrap();
        for (policy, limit) in [("moved", yearly(algorithm, 2000)), ("short", short)] {
            let subject = subjects[number % subjects.len()];
            let policy = format!("{policy} {algorithm}");
            let load = Load::start(&limiter, &limit, &policy, subject, 2);
            loads.push((limit, load));
        }
    }
    let both = tokio::spawn(ask_both(limiter.clone(), 1500));
    for round in 0..4 {
        for subject in subjects {
            let slot = slot_of(&cluster, subject);
            cluster.move_slot(slot, (cluster.node_of(slot) + 1 + round % 2) % 3);
        }
    }
    both.await.unwrap();
    for (limit, load) in loads {
        load.serves(10).await;
        let answers = load.finish().await;
        answers.no_errors();
        replays(&limit, &answers.records);
    }
    assert!(every_key_of(&cluster) > 0);
}

/// Two limits of one subject, checked together while their slot moves: both are charged or none is.
async fn ask_both(limiter: RedisLimiter, calls: u64) {
    let (first, second) = (yearly(Algorithm::TokenBucket, 1000), yearly(Algorithm::SlidingLog, 700));
    let mut admitted = 0;
    for _ in 0..calls {
        let decision = limiter.check_all(&[check("both-1", "hot", &first), check("both-2", "hot", &second)]).await;
        let decision = decision.unwrap();
        assert!(!decision.split());
        admitted += u64::from(decision.allowed());
    }
    assert_eq!(admitted, 700);
    assert_eq!(used(&limiter, "both-1", b"hot", &first).await, 700);
    assert_eq!(used(&limiter, "both-2", b"hot", &second).await, 700);
}

/// Every half-way state of a move, one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_moved_slots_answer_with_ask_and_tryagain() {
    let cluster = Cluster::start(valkey_if_possible(), 3, 0);
    let (limiter, hasty) = (patient(&cluster.url()).await, within(&cluster.url(), Duration::from_millis(500)).await);
    let slot = slot_of(&cluster, "moving");
    let from = cluster.node_of(slot);
    let to = (from + 1) % 3;
    let limits = [yearly(Algorithm::TokenBucket, 20), yearly(Algorithm::SlidingWindow, 20)];
    let both = [check("a", "moving", &limits[0]), check("b", "moving", &limits[1])];
    let left = async |limiter: &RedisLimiter, checks: &[Check<'_>]| -> Vec<u64> {
        let decision = limiter.check_all(checks).await.unwrap();
        assert!(decision.allowed() && !decision.split());
        decision.statuses().iter().map(tallygate::Status::remaining).collect()
    };
    let torn = async |checks: &[Check<'_>]| {
        let error = hasty.check_all(checks).await.unwrap_err();
        match &error {
            // The last reply before the deadline, of the one server or the other.
            CheckError::Store(error) if error.kind() == StoreErrorKind::Unavailable => {
                let reason = error.reason();
                assert!(reason.contains("TRYAGAIN") || reason.contains("redirected the call to"), "{reason}");
                // It was an outage if TRYAGAIN came last, and `on_error: allow` admitted every new subject of a slot that moved.
                assert!(error.is_late(), "{error:?}");
            }
            // Too late, on a busy machine.
            CheckError::Store(error) if error.kind() == StoreErrorKind::Ambiguous => {}
            _ => panic!("{error:?}"),
        }
    };
    assert_eq!(left(&limiter, &both).await, [19, 19]);

    // Begun: existing keys are served by the old node, new ones by the new node, which has never seen the script.
    cluster.begin_move(slot, from, to);
    for node in cluster.nodes() {
        node.command(&["SCRIPT", "FLUSH"]).ok();
    }
    assert_eq!(left(&limiter, &both).await, [18, 18]);
    assert_eq!(left(&limiter, &[check("new", "moving", &limits[0])]).await, [19]);
    assert_eq!(left(&limiter, &[check("new", "moving", &limits[0])]).await, [18]);
    // For two absent keys the cluster cannot tell whether one has moved: it replies TRYAGAIN.
    torn(&[check("absent-1", "moving", &limits[0]), check("absent-2", "moving", &limits[1])]).await;

    // One key has moved and the other has not: they are served separately, but not together.
    assert_eq!(cluster.move_keys(slot, from, to, 1), 1);
    assert_eq!(left(&limiter, &both[..1]).await, [17]);
    assert_eq!(left(&limiter, &both[1..]).await, [17]);
    torn(&both).await;
    // With a long deadline the call is answered.
    let waiting = tokio::spawn({
        let (limiter, limits) = (limiter.clone(), limits.clone());
        async move {
            let both = [check("a", "moving", &limits[0]), check("b", "moving", &limits[1])];
            limiter
                .check_all(&both)
                .await
                .unwrap()
                .statuses()
                .iter()
                .map(tallygate::Status::remaining)
                .collect::<Vec<_>>()
        }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());

    // Both have moved.
    while cluster.move_keys(slot, from, to, 10) > 0 {}
    assert_eq!(waiting.await.unwrap(), [16, 16]);
    assert_eq!(left(&limiter, &both).await, [15, 15]);
    // A new client finds the slot too.
    assert_eq!(left(&patient(&cluster.url()).await, &both).await, [14, 14]);
    cluster.end_move(slot, from, to);
    assert_eq!(left(&limiter, &both).await, [13, 13]);
    assert_eq!(left(&limiter, &[check("new", "moving", &limits[0])]).await, [17]);
    let absent = [check("absent-1", "moving", &limits[0]), check("absent-2", "moving", &limits[1])];
    assert_eq!(left(&limiter, &absent).await, [19, 19], "what was torn was not charged");
    every_key_of(&cluster);
}

/// Limits of different subjects are in different slots: charged one after the other, and given back when one denies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_call_over_several_slots_gives_everything_back() {
    let cluster = Cluster::start(valkey_if_possible(), 3, 0);
    let limiter = patient(&cluster.url()).await;
    strange_subjects_keep_apart(&cluster, &limiter).await;
    for &algorithm in Algorithm::OVER_TIME {
        let (wide, narrow) = (yearly(algorithm, 100), yearly(algorithm, 10));
        let name = algorithm.name();
        let asked = [check(name, "tenant", &wide), check(name, "other", &wide), check(name, "user", &narrow)];
        for left in [7, 4, 1] {
            let decision = limiter.check_all(&asked.map(|check| check.cost(units(3)))).await.unwrap();
            assert!(decision.allowed() && decision.split());
            assert_eq!(decision.statuses()[2].remaining(), left);
        }
        // The tightest limit comes last, then first: denied either way, and nothing stays charged.
        for asked in [asked, [asked[2], asked[0], asked[1]]] {
            let decision = limiter.check_all(&asked.map(|check| check.cost(units(3)))).await.unwrap();
            assert!(!decision.allowed() && decision.split());
            for check in asked {
                let subject = check.key.subject();
                assert_eq!(used(&limiter, name, subject, check.limit).await, 9, "{algorithm}");
            }
        }
        crowd(&limiter, algorithm).await;
    }
    every_key_of(&cluster);
}

/// Many at once: never more than the tightest limit, and in the end exactly what was admitted is charged.
async fn crowd(limiter: &RedisLimiter, algorithm: Algorithm) {
    let limits = [yearly(algorithm, 60), yearly(algorithm, 40)];
    let mut callers = JoinSet::new();
    let policy = format!("crowd {algorithm}");
    for _ in 0..16 {
        let (limiter, limits, policy) = (limiter.clone(), limits.clone(), policy.clone());
        callers.spawn(async move {
            let asked = [check(&policy, "left", &limits[0]), check(&policy, "right", &limits[1])];
            let mut records = Vec::new();
            for _ in 0..8 {
                let decision = limiter.check_all(&asked).await.unwrap();
                records.push(tallygate::history::Record::new(units(1), &decision));
            }
            records
        });
    }
    let records: Vec<_> = callers.join_all().await.into_iter().flatten().collect();
    let admitted = records.iter().filter(|record| record.allowed).count() as u64;
    within_bound(&limits[1], &records);
    for (subject, limit) in [("left", &limits[0]), ("right", &limits[1])] {
        assert_eq!(used(limiter, &policy, subject.as_bytes(), limit).await, admitted, "{algorithm}: {subject}");
    }
    assert!(admitted <= 40);
}

/// Whatever a subject contains: all its states share one slot, and no two subjects share a state.
async fn strange_subjects_keep_apart(cluster: &Cluster, limiter: &RedisLimiter) {
    let long = "x".repeat(1024);
    let longer = format!("{}y", "x".repeat(1023));
    let subjects: Vec<&[u8]> = vec![
        b"x",
        b"{x}",
        b"}{",
        b"{",
        b"}",
        b"{}",
        b"{}x",
        b"a}b{c",
        b"a:b",
        b"a",
        b"%7Bx%7D",
        "zo\u{eb}".as_bytes(),
        "zoe\u{308}".as_bytes(),
        "\u{202e}x".as_bytes(),
        b"\0",
        b"\0\xff\r\n",
        b"\xff",
        b" ",
        long.as_bytes(),
        longer.as_bytes(),
    ];
    let limits = [limit("1/day"), limit("1/day sliding_log")];
    let (mut keys, mut slots) = (HashSet::new(), HashSet::new());
    for subject in &subjects {
        let policies = ["p", "{q}:"].map(|policy| Key::new(policy, subject).unwrap());
        let written = [policies[0].encode("tallygate", "tb"), policies[1].encode("tallygate", "sl")];
        let [one, other] = written.each_ref().map(|key| cluster.slot_of(key.as_bytes()));
        assert_eq!(one, other, "{written:?}");
        slots.insert(one);
        keys.extend(written);
        let checks = [Check::new(policies[0], &limits[0]), Check::new(policies[1], &limits[1])];
        let decision = limiter.check_all(&checks).await.unwrap();
        assert!(decision.allowed() && !decision.split(), "{subject:?} was used by another");
    }
    assert_eq!(keys.len(), 2 * subjects.len());
    assert!(slots.len() > subjects.len() / 2, "the subjects are spread over slots");
    for subject in &subjects {
        let check = Check::new(Key::new("p", subject).unwrap(), &limits[0]);
        assert!(!limiter.check(check).await.unwrap().allowed(), "{subject:?} is forgotten");
    }
}

/// A plan and credits of one subject share a slot; the other limit of the call is in another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payers_in_one_slot_pay_beside_limits_in_others() {
    let cluster = Cluster::start(valkey_if_possible(), 3, 0);
    let limiter = patient(&cluster.url()).await;
    let (plan, credits, team) =
        (limit("10/h fixed_window"), limit("8/365d fixed_window"), limit("15/365d fixed_window"));
    let other = (0..).map(|at| at.to_string()).find(|name| slot_of(&cluster, name) != slot_of(&cluster, "alice"));
    let other = other.unwrap();
    let checks = |cost| {
        let of = |check: Check<'static>| check.cost(units(cost));
        let leak = |limit: &Limit| &*Box::leak(Box::new(limit.clone()));
        let other = Box::leak(other.clone().into_boxed_str());
        let paying = of(check("credits", "alice", leak(&credits))).paying_rest();
        [of(check("plan", "alice", leak(&plan))), paying, of(check("team", other, leak(&team)))]
    };
    let paid =
        |decision: &tallygate::Decision| decision.statuses().iter().map(|status| status.units()).collect::<Vec<_>>();
    let left = async || {
        let seen = limiter.peek_all(&checks(1)).await.unwrap();
        seen.statuses().iter().map(|status| status.remaining()).collect::<Vec<_>>()
    };
    let allowed = limiter.check_all(&checks(12)).await.unwrap();
    assert_eq!((allowed.split(), paid(&allowed)), (true, vec![10, 2, 12]));
    // The other slot denies, and the payer gets its units back.
    let denied = limiter.check_all(&checks(5)).await.unwrap();
    assert_eq!((denied.allowed(), paid(&denied), left().await), (false, vec![0; 3], vec![0, 6, 3]));
    let up_to = tallygate::call::UpTo::new(units(9));
    let granted = limiter.check_up_to(&checks(1), up_to).await.unwrap();
    assert_eq!((granted.granted(), paid(&granted), left().await), (Some(3), vec![0, 3, 3], vec![0, 3, 0]));
    let receipts = allowed.receipts(&checks(12));
    assert_eq!(limiter.refund(&receipts).await.unwrap(), [10, 2, 12]);
    // The same with an id: each slot remembers its part, and forgets what it gives back.
    let id = tallygate::request::RequestId::new("one").unwrap();
    let asked = checks(12);
    for replayed in [false, true] {
        let once = limiter.once(id).check_all(&asked).await.unwrap();
        assert_eq!((once.replayed(), paid(&once)), (replayed, vec![10, 2, 12]));
    }
    assert_eq!(left().await, [0, 3, 0]);
    let other_id = tallygate::request::RequestId::new("two").unwrap();
    limiter.refund(&limiter.once(id).check_all(&asked).await.unwrap().receipts(&asked)).await.unwrap();
    limiter.check(checks(5)[2]).await.unwrap();
    for _ in 0..2 {
        let denied = limiter.once(other_id).check_all(&asked).await.unwrap();
        assert_eq!((denied.allowed(), denied.replayed(), left().await), (false, false, vec![10, 5, 7]));
    }
    every_key_of(&cluster);
}
