//! Lists of open holds.

use std::collections::BTreeMap;

use tallygate::hold::{HoldPage, HoldQuery, OpenHold};
use tallygate_redis::{Audit, Sweep};
use tallygate_testkit::{Cluster, Flavour};

use super::*;

/// When a hold was reserved and when it expires, and what it holds: policy, subject, units.
type Listed = (u64, u64, Vec<(String, String, u64)>);

fn listed(hold: &OpenHold) -> Listed {
    let part = |part: &tallygate::hold::OpenPart| (part.policy.clone(), part.subject.clone(), part.units);
    (hold.reserved_at.as_micros(), hold.expires_at.as_micros(), hold.parts.iter().map(part).collect())
}

/// All pages, sorted.
async fn pages(mut query: HoldQuery, mut page: impl AsyncFnMut(&HoldQuery) -> HoldPage) -> Vec<Listed> {
    let mut all = Vec::new();
    loop {
        let HoldPage { holds, next, .. } = page(&query).await;
        assert!(holds.is_sorted_by_key(|hold| hold.reserved_at));
        all.extend(holds.iter().map(listed));
        if next.is_none() {
            all.sort();
            return all;
        }
        query = query.after(next);
    }
}

fn queries() -> Vec<HoldQuery> {
    let all = HoldQuery::new;
    let odd = "zoë:{}%\u{1}";
    let older = Duration::from_secs(40);
    vec![
        all(),
        all().at_most(3),
        all().older_than(older),
        all().of_policy("b/tokens").unwrap(),
        all().of_subject("alice").unwrap().at_most(2),
        all().of_subject(odd).unwrap(),
        all().of_policy("b/tokens").unwrap().of_subject(odd).unwrap(),
        all().of_policy("b/tokens").unwrap().of_subject("alice").unwrap().at_most(1),
        all().of_policy("a").unwrap().of_subject("alice").unwrap().older_than(older),
        all().of_policy("nobody").unwrap(),
    ]
}

/// Random histories: both stores list the same, whatever is asked for, and it is what the history says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_stores_list_what_is_open() {
    let twins = Twins::start().await;
    let mut random = Random::new(42);
    let mut open: BTreeMap<u64, (Listed, Hold, Hold)> = BTreeMap::new();
    for round in 0..300 {
        let now = twins.clock.now().as_micros() + random.between(0, 2_000_000);
        twins.set(now);
        open.retain(|_, ((_, expires_at, _), ..)| now < *expires_at);
        // One limit for each key: another one would close its holds.
        let subjects = [
            ("alice", Algorithm::SlidingLog),
            ("zoë:{}%\u{1}", Algorithm::FixedWindow),
            ("bob", Algorithm::SlidingCounter),
        ];
        let (subject, algorithm) = random.pick(&subjects);
        // The windows that a reservation was sent with end with the year.
        let (one, two) = (yearly(algorithm, 1_000_000), yearly(Algorithm::TokenBucket, 1_000_000));
        match random.between(0, 3) {
            0 | 1 => {
                let seconds = random.between(1, 100);
                let (some, more) = (random.between(1, 9), random.between(1, 9));
                let check =
                    |policy, limit, cost| Check::new(Key::new(policy, subject).unwrap(), limit).cost(units(cost));
                let checks = [check("a", &one, some), check("b/tokens", &two, more)];
                let ttl = Duration::from_secs(seconds);
                let hold = reserve(&twins.redis, &checks, ttl).await.unwrap();
                let twin = twins.memory.reserve(&checks, ttl).await.unwrap().hold.unwrap().into_hold();
                let part = |policy: &str, units| (policy.to_owned(), subject.to_owned(), units);
                let known = (now, now + seconds * 1_000_000, vec![part("a", some), part("b/tokens", more)]);
                open.insert(round, (known, hold, twin));
            }
            _ => {
                let rounds: Vec<u64> = open.keys().copied().collect();
                if rounds.is_empty() {
                    continue;
                }
                let round = random.pick(&rounds);
                let (known, hold, twin) = open.get_mut(&round).unwrap();
                if random.between(0, 1) == 0 {
                    for part in &mut known.2 {
                        part.2 = part.2.saturating_sub(1);
                    }
                    let part = Units::Each(vec![("a".to_owned(), 1), ("b/tokens".to_owned(), 1)]);
                    twins.redis.settle_partial(hold, part.clone()).await.unwrap();
                    twins.memory.settle_partial(twin, part).await.unwrap();
                } else {
                    twins.redis.settle(hold, Units::AsReserved).await.unwrap();
                    twins.memory.settle(twin, Units::AsReserved).await.unwrap();
                    open.remove(&round);
                }
            }
        }
        if round % 10 != 9 {
            continue;
        }
        for query in queries() {
            let redis = pages(query.clone(), async |query| twins.redis.store().open_holds(query).await.unwrap()).await;
            let memory = pages(query.clone(), async |query| twins.memory.store().open_holds(query)).await;
            assert_eq!(redis, memory, "{query:?}");
            if query == HoldQuery::new() {
                let mut expected: Vec<Listed> = open.values().map(|(known, ..)| known.clone()).collect();
                expected.sort();
                assert_eq!(redis, expected);
            }
        }
    }
    assert!(open.len() > 5, "{}", open.len());
}

/// More than one step of a scan, on three masters: each hold is there once, and a page is bounded work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_listed_page_by_page() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let limiter = patient(&cluster.url()).await;
    let limit = limit("100/h");
    for number in 0..300 {
        let subject = format!("s{number}");
        let check = Check::new(Key::new("p", &subject).unwrap(), &limit).cost(units(2));
        assert!(reserve(&limiter, &[check], Duration::from_secs(600)).await.is_some());
    }
    let mut counts = BTreeMap::new();
    let listed = pages(HoldQuery::new().at_most(10), async |query| {
        let page = limiter.store().open_holds(query).await.unwrap();
        *counts.entry(page.holds.len() <= 510).or_insert(0) += 1;
        page
    });
    let listed = listed.await;
    let mut subjects: Vec<&str> = listed.iter().map(|(_, _, parts)| parts[0].1.as_str()).collect();
    subjects.sort_unstable();
    subjects.dedup();
    assert_eq!((listed.len(), subjects.len()), (300, 300));
    assert_eq!(counts.get(&false), None);
    let of_one = HoldQuery::new().of_policy("p").unwrap().of_subject("s7").unwrap();
    assert_eq!(limiter.store().open_holds(&of_one).await.unwrap().holds.len(), 1);
    let report = Audit::connect(&cluster.url()).await.unwrap().run(&Sweep::of("tallygate").unwrap(), |_| {}).await;
    let report = report.unwrap();
    let held: Vec<_> = report.usage.iter().map(|usage| (usage.kind, usage.open_holds, usage.held)).collect();
    assert!(held.contains(&("holds", 300, 600)) && held.contains(&("token_bucket", 0, 0)), "{held:?}");
}

/// A cursor of another list, or one that somebody made up, ends the list or goes on somewhere: it is never an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_cursor_is_answered() {
    let twins = Twins::start().await;
    let limit = limit("100/h");
    let check = Check::new(Key::new("p", "s").unwrap(), &limit);
    reserve(&twins.redis, &[check], Duration::from_secs(60)).await.unwrap();
    for text in
        ["0-0-0", "0-18446744073709551615-0", "18446744073709551615-0-0", "5-18446744073709551615-18446744073709551615"]
    {
        let cursor = Some(text.parse().unwrap());
        for query in [HoldQuery::new(), HoldQuery::new().of_policy("p").unwrap().of_subject("s").unwrap()] {
            let page = twins.redis.store().open_holds(&query.clone().after(cursor)).await;
            assert!(page.is_ok(), "{text}: {page:?}");
            twins.memory.store().open_holds(&query.after(cursor));
        }
    }
}
