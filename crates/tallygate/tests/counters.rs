//! Counters: sums, errors, TTLs.

use std::sync::Arc;
use std::time::Duration;

use tallygate::clock::ManualClock;
use tallygate::counter::{CounterError, CounterValue};
use tallygate::store::StoreErrorKind;
use tallygate::{Counter, MemoryStore};

use crate::START;

fn store() -> (Arc<MemoryStore>, ManualClock) {
    let clock = ManualClock::new(START);
    (Arc::new(MemoryStore::builder().clock(clock.clone()).build()), clock)
}

#[tokio::test]
async fn counters_count_up_and_down_and_can_be_deleted() {
    let (store, _) = store();
    let counter = Counter::new(Arc::clone(&store), "n").unwrap();
    assert_eq!(counter.get().await.unwrap(), CounterValue::Integer(0));
    assert!(store.is_empty(), "looking creates nothing");
    assert_eq!(counter.incr().await.unwrap(), 1);
    assert_eq!(counter.incr_by(41).await.unwrap(), 42);
    assert_eq!(counter.decr().await.unwrap(), 41);
    assert_eq!(counter.decr_by(50).await.unwrap(), -9);
    assert_eq!(Counter::new(Arc::clone(&store), "other").unwrap().incr().await.unwrap(), 1);
    assert_eq!(counter.delete().await.unwrap(), CounterValue::Integer(-9));
    assert_eq!(counter.delete().await.unwrap(), CounterValue::Integer(0));
    assert_eq!(counter.incr().await.unwrap(), 1);
}

#[tokio::test]
async fn counters_refuse_to_overflow_and_stay_unchanged() {
    let (store, _) = store();
    let counter = Counter::new(store, "n").unwrap();
    counter.incr_by(i64::MAX).await.unwrap();
    assert!(matches!(counter.incr().await, Err(CounterError::Overflow { .. })));
    assert_eq!(counter.get().await.unwrap(), CounterValue::Integer(i64::MAX));
    counter.delete().await.unwrap();
    counter.incr_by(i64::MIN).await.unwrap();
    assert!(matches!(counter.decr().await, Err(CounterError::Overflow { .. })));
    assert!(matches!(counter.decr_by(i64::MIN).await, Err(CounterError::Overflow { .. })));
    assert_eq!(counter.get().await.unwrap(), CounterValue::Integer(i64::MIN));
}

#[tokio::test]
async fn fractions_are_kept_and_whole_sums_are_whole_again() {
    let (store, _) = store();
    let counter = Counter::new(store, "n").unwrap();
    assert!((counter.incr_by_float(1.5).await.unwrap() - 1.5).abs() < f64::EPSILON);
    assert!(matches!(counter.incr().await, Err(CounterError::NotAnInteger { .. })));
    assert_eq!(counter.get().await.unwrap(), CounterValue::Float(1.5));
    counter.incr_by_float(-0.5).await.unwrap();
    assert_eq!(counter.get().await.unwrap(), CounterValue::Integer(1));
    assert_eq!(counter.incr().await.unwrap(), 2);
    for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert!(matches!(counter.incr_by_float(wrong).await, Err(CounterError::NotFinite { .. })));
    }
    counter.incr_by_float(f64::MAX).await.unwrap();
    assert!(matches!(counter.incr_by_float(f64::MAX).await, Err(CounterError::Overflow { .. })));
    assert!((counter.get().await.unwrap().as_f64() - f64::MAX).abs() < f64::EPSILON);
}

#[tokio::test]
async fn the_first_call_sets_the_ttl_and_no_later_one_extends_it() {
    let (store, clock) = store();
    let second = Duration::from_secs(1);
    let counter = Counter::new(Arc::clone(&store), "n").unwrap().expires_after(second).unwrap();
    let longer = Counter::new(Arc::clone(&store), "n").unwrap().expires_after(10 * second).unwrap();
    assert_eq!(counter.incr().await.unwrap(), 1);
    clock.advance(second - Duration::from_micros(1));
    assert_eq!(longer.incr().await.unwrap(), 2);
    clock.advance(Duration::from_micros(1));
    assert_eq!(longer.get().await.unwrap(), CounterValue::Integer(0), "it ended a second after it was made");
    assert_eq!(longer.incr().await.unwrap(), 1);
    clock.advance(9 * second);
    assert_eq!(counter.incr().await.unwrap(), 2);
    clock.advance(second);
    assert_eq!(counter.incr().await.unwrap(), 1);
    // A counter created without a TTL never gets one.
    let endless = Counter::new(Arc::clone(&store), "endless").unwrap();
    endless.incr().await.unwrap();
    Counter::new(store, "endless").unwrap().expires_after(second).unwrap().incr().await.unwrap();
    clock.advance(1000 * second);
    assert_eq!(endless.get().await.unwrap(), CounterValue::Integer(2));
}

#[tokio::test]
async fn counters_count_as_keys_of_the_store_and_expired_ones_make_room() {
    let clock = ManualClock::new(START);
    let store = Arc::new(MemoryStore::builder().capacity(50).clock(clock.clone()).build());
    let named = |name: String| Counter::new(Arc::clone(&store), name).unwrap();
    for made in 0..50 {
        named(format!("{made}")).expires_after(Duration::from_secs(1)).unwrap().incr().await.unwrap();
    }
    let refused = named("new".to_owned()).incr().await;
    assert!(
        matches!(&refused, Err(CounterError::Store(error)) if error.kind() == StoreErrorKind::Refused),
        "{refused:?}"
    );
    assert_eq!(named("7".to_owned()).incr().await.unwrap(), 2, "existing counters still count");
    clock.advance(Duration::from_secs(1));
    for _ in 0..100 {
        named("7".to_owned()).get().await.unwrap();
    }
    assert!(store.len() < 10, "{} are left", store.len());
    assert_eq!(named("new".to_owned()).incr().await.unwrap(), 1);
}

#[test]
fn a_ttl_is_a_millisecond_to_a_hundred_years() {
    let (shortest, longest) = (Duration::from_millis(1), Duration::from_secs(100 * 365 * 86_400));
    let accepted = |ttl| Counter::new(store().0, "n").unwrap().expires_after(ttl).map(|_| ttl);
    for ttl in [shortest, longest] {
        assert_eq!(accepted(ttl), Ok(ttl));
    }
    for ttl in [Duration::ZERO, shortest - Duration::from_nanos(1), longest + Duration::from_nanos(1)] {
        assert_eq!(accepted(ttl), Err(CounterError::Ttl(ttl)));
    }
}

#[test]
fn a_text_is_a_finite_number_or_none() {
    let read = CounterValue::from_text;
    assert_eq!(read("-7"), Ok(CounterValue::Integer(-7)));
    assert_eq!(read("1.5"), Ok(CounterValue::Float(1.5)));
    assert_eq!(read("1e300"), Ok(CounterValue::Float(1e300)));
    for wrong in ["", "seven", "inf", "-inf", "nan", "1e999"] {
        assert_eq!(read(wrong), Err(CounterError::NotANumber(wrong.to_owned())));
    }
}

#[test]
fn a_whole_number_of_18_digits_is_a_float() {
    let largest = 99_999_999_999_999_984;
    for sign in [1, -1] {
        let whole = CounterValue::Integer(sign * largest);
        assert_eq!(CounterValue::from_f64(whole.as_f64()), whole);
        let beyond = CounterValue::Integer(sign * 100_000_000_000_000_000).as_f64();
        assert_eq!(CounterValue::from_f64(beyond), CounterValue::Float(beyond));
    }
}
