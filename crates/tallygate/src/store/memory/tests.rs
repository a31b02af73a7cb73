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
fn a_store_has_a_shard_for_each_4096_keys_up_to_64() {
    let shards = |capacity: usize| MemoryStore::builder().capacity(capacity).build().shards.len();
    for (capacity, count) in
        [(1, 1), (8191, 1), (8192, 2), (3 * 4096, 2), (4 * 4096, 4), (64 * 4096, 64), (1 << 20, 64)]
    {
        assert_eq!(shards(capacity), count, "{capacity}");
    }
}
