use super::*;

/// A thread that was suspended for seconds between reading the clock and locking brought an old instant. It was
/// taken for a clock that had been set back, and the next call found seconds of refill.
#[test]
fn a_long_wait_for_the_lock_does_not_turn_the_clock_back() {
    let store = MemoryStore::new();
    let latest = store.now();
    let stale = Timestamp::from_micros(latest.as_micros() - 5_000_000);
    assert!(store.in_order(stale, latest) >= latest);
    let moment = Timestamp::from_micros(latest.as_micros() - 5);
    assert_eq!(store.in_order(moment, latest), latest);
}

/// Each policy had its own shared states, so a caller who could name policies could exhaust the memory.
#[test]
fn a_full_store_stays_bounded_whatever_policies_are_named() {
    let store = MemoryStore::builder().capacity(100).overflow(Overflow::Shared(2)).build();
    let store = std::sync::Arc::new(store);
    let limit: crate::Limit = "5/h".parse().unwrap();
    let name = |at: usize| format!("policy {at}");
    let check = |policy: &str| {
        crate::Limiter::over(store.clone())
            .check_now(Check::new(Key::new(policy, "somebody").unwrap(), &limit))
            .unwrap()
    };
    let allowed = (0..10_000).filter(|&at| check(&name(at)).allowed()).count();
    assert_eq!((allowed, store.len()), (228, 228));
    // Keys that had a state before still have it.
    assert!(check(&name(0)).allowed() && check(&name(200)).allowed());
}

#[test]
fn a_clock_that_was_set_back_is_believed() {
    let store = MemoryStore::new();
    let now = store.now();
    let hour_ahead = Timestamp::from_micros(now.as_micros() + 3_600_000_000);
    assert!(store.in_order(now, hour_ahead) < hour_ahead);
}

/// Less than a second behind the latest decision, a call waited for the lock. Otherwise a new reading decides.
#[test]
fn a_second_is_too_long_to_have_waited_for_the_lock() {
    let store = MemoryStore::new();
    let before = |at: Timestamp, micros: u64| Timestamp::from_micros(at.as_micros() - micros);
    let latest = before(store.now(), 3_600_000_000);
    assert_eq!(store.in_order(before(latest, 999_999), latest), latest);
    assert!(store.in_order(before(latest, 1_000_000), latest) > latest);
    assert_eq!(store.in_order(latest, latest), latest);
}

#[test]
fn a_store_is_for_a_million_keys_unless_it_is_told_otherwise() {
    let MemoryStoreBuilder { capacity, overflow, clock, sweep } = MemoryStore::builder();
    assert_eq!((capacity, overflow, clock.is_none(), sweep), (1_000_000, Overflow::Shared(1024), true, true));
    assert_eq!(MemoryStore::builder().capacity(0).capacity, 1);
}

#[test]
fn the_capacity_is_divided_among_the_shards_and_a_full_store_always_has_a_shared_state() {
    let fill = |overflow: Overflow| {
        let store = MemoryStore::builder().capacity(3 * 4096 + 1).overflow(overflow).build();
        let limit: crate::Limit = "1/h".parse().unwrap();
        for at in 0..40_000 {
            let name = at.to_string();
            store.answer(&Call::new(Verb::Check, &[Check::new(Key::new("p", &name).unwrap(), &limit)]).unwrap());
        }
        store.len()
    };
    assert_eq!(fill(Overflow::Deny), 3 * 4096 + 1);
    // One in each of two shards.
    assert_eq!(fill(Overflow::Shared(0)), 3 * 4096 + 1 + 2);
}

#[test]
fn a_store_has_a_shard_for_each_4096_keys_up_to_64() {
    let shards = |capacity: usize| MemoryStore::builder().capacity(capacity).build().shards.len();
    for (capacity, count) in
        [(1, 1), (8191, 1), (8192, 2), (3 * 4096, 2), (4 * 4096, 4), (64 * 4096, 64), (1 << 20, 64)]
    {
        assert_eq!(shards(capacity), count, "{capacity}");
    }
}

/// What is left of a state, and whether there is one.
fn left(store: &MemoryStore, check: &Check<'_>) -> (u64, bool) {
    let decision = store.answer(&Call::new(Verb::Peek, &[*check]).unwrap());
    (decision.binding().remaining(), store.encoded_state(check).is_some())
}

#[test]
fn a_store_that_follows_takes_what_was_charged_and_leaves_no_more() {
    let limit: crate::Limit = "10/h".parse().unwrap();
    let check = Check::new(Key::new("p", "s").unwrap(), &limit);
    for (followed, expected) in [
        (vec![(0, 10)], (10, false)),
        (vec![(2, 8)], (8, true)),
        (vec![(2, 20)], (8, true)),
        (vec![(2, 3)], (3, true)),
        (vec![(0, 3)], (3, true)),
        (vec![(7, 20), (2, 20)], (1, true)),
        (vec![(7, 20), (4, 20)], (0, true)),
        (vec![(25, 20)], (0, true)),
    ] {
        let store = MemoryStore::new();
        for &(units, remaining) in &followed {
            store.follow(&check, units, remaining);
        }
        assert_eq!(left(&store, &check), expected, "{followed:?}");
        assert_eq!(store.is_empty(), !expected.1);
    }
}

/// Of ten units, this store has charged two by itself and followed four.
#[test]
fn no_more_is_given_back_than_was_taken_to_follow() {
    let limit: crate::Limit = "10/h".parse().unwrap();
    let check = |units| Check::new(Key::new("p", "s").unwrap(), &limit).cost(Cost::new(units).unwrap());
    for (refunds, remaining) in [(vec![1], 5), (vec![4], 8), (vec![5], 8), (vec![3, 3, 3], 8)] {
        let store = MemoryStore::new();
        assert!(store.answer(&Call::new(Verb::Check, &[check(2)]).unwrap()).allowed());
        store.follow(&check(1), 4, 20);
        for &units in &refunds {
            store.follow_refund(&check(units));
        }
        assert_eq!(left(&store, &check(1)).0, remaining, "{refunds:?}");
        store.follow_reset(&check(1));
        assert!(store.is_empty());
    }
}

#[test]
fn a_followed_refund_is_of_the_window_that_was_charged() {
    let clock = crate::clock::ManualClock::new(Timestamp::from_micros(3_600_000_000_000));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let limit: crate::Limit = "10/h fixed_window".parse().unwrap();
    let check = Check::new(Key::new("p", "s").unwrap(), &limit).cost(Cost::new(4).unwrap());
    let before = check.with_charged_at(Some(clock.now()));
    store.follow(&check, 4, 20);
    clock.advance(std::time::Duration::from_secs(3600));
    store.follow(&check, 4, 20);
    store.follow_refund(&before);
    assert_eq!(left(&store, &check).0, 6);
    store.follow_refund(&check);
    assert_eq!(left(&store, &check).0, 10);
}

#[test]
fn what_is_followed_has_no_state_of_its_own_in_a_full_store() {
    let store = MemoryStore::builder().capacity(1).overflow(Overflow::Shared(1)).build();
    let limit: crate::Limit = "10/h".parse().unwrap();
    let check = |subject| Check::new(Key::new("p", subject).unwrap(), &limit);
    store.follow(&check("a"), 4, 20);
    assert_eq!((left(&store, &check("a")).0, left(&store, &check("b")).0, store.len()), (6, 10, 1));
    store.follow_refund(&check("a"));
    assert_eq!(left(&store, &check("a")).0, 6, "how much was followed is not known");
}

/// Keys that share a state lost what was left of it, if one of them had nothing left in the store that is followed.
#[test]
fn a_shared_state_follows_what_was_used_and_nothing_else() {
    let store = MemoryStore::builder().capacity(2).overflow(Overflow::Shared(1)).build();
    let limit: crate::Limit = "10/h".parse().unwrap();
    let check = |subject| Check::new(Key::new("p", subject).unwrap(), &limit);
    store.follow(&check("a"), 1, 20);
    assert_eq!(store.len(), 2);
    store.follow(&check("b"), 0, 0);
    assert_eq!(left(&store, &check("c")).0, 10);
    store.follow(&check("b"), 3, 0);
    assert_eq!(left(&store, &check("c")).0, 7);
    store.follow_refund(&check("b"));
    assert_eq!((left(&store, &check("c")).0, store.len()), (7, 3));
}

/// Keys that found room between the charge of a shared state and its refund had their own units given back.
#[test]
fn what_a_shared_state_was_charged_is_not_given_back_to_a_state_of_its_own() {
    let clock = crate::clock::ManualClock::new(Timestamp::from_micros(3_600_000_000_000));
    let store = MemoryStore::builder().capacity(1).clock(clock.clone()).build();
    let (short, limit): (crate::Limit, crate::Limit) = ("1/s".parse().unwrap(), "10/h".parse().unwrap());
    let first = [Check::new(Key::new("p", "first").unwrap(), &short)];
    let held = [Check::new(Key::new("p", "held").unwrap(), &limit)];
    assert!(store.answer(&Call::new(Verb::Check, &first).unwrap()).allowed());
    let shared = store.answer(&Call::new(Verb::Check, &held).unwrap());
    assert_eq!((shared.source(), shared.receipts(&held).len()), (Source::Overflow, 0));
    clock.advance(std::time::Duration::from_secs(1));
    let own = store.answer(&Call::new(Verb::Check, &held).unwrap());
    assert_eq!((own.source(), own.receipts(&held).len()), (Source::Store, 1));
}

#[test]
fn two_checks_of_a_full_store_do_not_drain_the_state_that_they_share() {
    let store = MemoryStore::builder().capacity(1).overflow(Overflow::Shared(1)).build();
    let limit: crate::Limit = "10/h".parse().unwrap();
    let check = |subject| Check::new(Key::new("p", subject).unwrap(), &limit);
    let drains = |subject| check(subject).with_excess(crate::policy::Excess::Drain).cost(Cost::new(9).unwrap());
    let known = store.answer(&Call::new(Verb::Check, &[check("known")]).unwrap());
    assert!(known.allowed());
    let mixed = store.answer(&Call::new(Verb::Check, &[check("known"), check("new")]).unwrap());
    assert_eq!((mixed.allowed(), mixed.source()), (true, Source::Overflow));
    assert!(!store.answer(&Call::new(Verb::Check, &[drains("a"), drains("b")]).unwrap()).allowed());
    assert_eq!(left(&store, &check("c")).0, 9);
}

#[test]
fn a_refund_of_a_key_without_a_state_leaves_room_for_it() {
    let store = MemoryStore::builder().capacity(1).build();
    let limit: crate::Limit = "10/h".parse().unwrap();
    let checks = [Check::new(Key::new("p", "s").unwrap(), &limit)];
    assert_eq!(store.answer(&Call::new(Verb::Refund, &checks).unwrap()).source(), Source::Store);
}

/// A call of several shards is made at one instant, after all that they decided before.
#[test]
fn a_call_of_several_shards_has_one_instant() {
    let store = MemoryStore::new();
    let limit: crate::Limit = "10/h".parse().unwrap();
    let names: Vec<String> = (0..20).map(|at| at.to_string()).collect();
    let checks: Vec<Check<'_>> = names.iter().map(|name| Check::new(Key::new("p", name).unwrap(), &limit)).collect();
    let homes: Vec<&Padded> = checks.iter().map(|check| store.shard_of(store.print(&check.key))).collect();
    // As if another thread had read the clock a little later, and locked first.
    let later = Timestamp::from_micros(store.now().as_micros() + 500_000);
    lock(homes[7]).decides_at(later);
    let decided_at = store.answer(&Call::new(Verb::Check, &checks).unwrap()).decided_at().unwrap();
    assert_eq!(decided_at, later);
    assert!(homes.iter().all(|home| lock(home).latest() == later));
    // One check alone, too.
    let alone = store.answer(&Call::new(Verb::Check, &checks[..1]).unwrap()).decided_at().unwrap();
    assert_eq!((alone, lock(homes[0]).latest()), (later, later));
}

/// Two keys of a full store share a state only if it is of the same shard and the same kind.
#[test]
fn states_of_other_shards_and_kinds_are_not_shared() {
    let store = MemoryStore::builder().capacity(8192).overflow(Overflow::Shared(1)).build();
    let limits: [crate::Limit; 2] = ["10/h", "10/h fixed_window"].map(|limit| limit.parse().unwrap());
    let names: Vec<String> = (0..20_000).map(|at| at.to_string()).collect();
    let check = |at: usize, kind: usize| Check::new(Key::new("p", &names[at]).unwrap(), &limits[kind]);
    for at in 0..names.len() - 100 {
        store.answer(&Call::new(Verb::Check, &[check(at, 0)]).unwrap());
    }
    let home = |at: usize| store.shard_index(store.print(&check(at, 0).key));
    let (one, new) = (names.len() - 1, names.len() - 100..names.len() - 1);
    let (other, same) = (new.clone().find(|&at| home(at) != home(one)), new.clone().find(|&at| home(at) == home(one)));
    let (other, same) = (other.unwrap(), same.unwrap());
    let shared = |at: usize| store.print(&check(at, 0).key).shared("p", 1);
    for at in [one, other] {
        lock(&store.shards[home(at)]).reset(shared(at), limits[0].algorithm());
    }
    let ask = |checks: [Check<'_>; 2]| {
        let decision = store.answer(&Call::new(Verb::Peek, &checks).unwrap());
        (decision.source(), decision.allowed())
    };
    assert_eq!(ask([check(one, 0), check(other, 0)]), (Source::Overflow, true));
    assert_eq!(ask([check(one, 0), check(same, 1)]), (Source::Overflow, true));
    assert_eq!(ask([check(one, 0), check(same, 0)]), (Source::Overflow, false));
}

#[test]
fn a_key_without_room_has_nothing_left() {
    let store = MemoryStore::builder().capacity(1).overflow(Overflow::Deny).build();
    let limit: crate::Limit = "10/h".parse().unwrap();
    let check = |subject| Check::new(Key::new("p", subject).unwrap(), &limit);
    assert!(store.answer(&Call::new(Verb::Check, &[check("a")]).unwrap()).allowed());
    let denied = store.answer(&Call::new(Verb::Check, &[check("b")]).unwrap());
    assert_eq!((denied.allowed(), denied.binding().remaining()), (false, 0));
}

/// However many states are shared, a key that finds room has one of its own.
#[test]
fn shared_states_take_no_room_from_others() {
    let clock = crate::clock::ManualClock::new(Timestamp::from_micros(3_600_000_000_000));
    let store = MemoryStore::builder().capacity(1).overflow(Overflow::Shared(1)).clock(clock.clone()).build();
    let (short, limit): (crate::Limit, crate::Limit) = ("1/s".parse().unwrap(), "10/h".parse().unwrap());
    let ask = |policy: &str, limit: &crate::Limit| {
        store.answer(&Call::new(Verb::Check, &[Check::new(Key::new(policy, "s").unwrap(), limit)]).unwrap())
    };
    assert_eq!(ask("first", &short).source(), Source::Store);
    let allowed = (0..100).filter(|at| ask(&format!("p{at}"), &limit).allowed()).count();
    assert_eq!((allowed, store.len()), (64, 65));
    clock.advance(std::time::Duration::from_secs(1));
    // Each call looks for expired states in a part of the table.
    let mut own = (0..20).map(|at| ask(&format!("new{at}"), &limit)).filter(|own| own.source() == Source::Store);
    assert!(own.next().is_some_and(|own| own.allowed()));
}

/// Nothing is removed from this store, so an expired counter holds the only place.
#[tokio::test]
async fn an_expired_counter_begins_anew_in_its_own_place() {
    let clock = crate::clock::ManualClock::new(Timestamp::from_micros(3_600_000_000_000));
    let store = MemoryStore::builder().capacity(1).clock(clock.clone()).without_sweep().build();
    let store = std::sync::Arc::new(store);
    let counter = |name| {
        let counter = crate::counter::Counter::new(store.clone(), name).unwrap();
        counter.expires_after(std::time::Duration::from_secs(1)).unwrap()
    };
    assert_eq!(counter("a").incr().await.unwrap(), 1);
    assert_eq!(counter("a").incr().await.unwrap(), 2);
    clock.advance(std::time::Duration::from_secs(1));
    assert!(counter("b").incr().await.is_err());
    assert_eq!(counter("a").incr().await.unwrap(), 1);
    assert!(counter("b").incr().await.is_err());
}
