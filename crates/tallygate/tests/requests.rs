//! Calls with an id: a repeat is answered as the first, and charged nothing.

use std::time::Duration;

use tallygate::call::UpTo;
use tallygate::clock::ManualClock;
use tallygate::decision::Source;
use tallygate::hold::{HoldState, Units};
use tallygate::request::RequestId;
use tallygate::store::{DenyCache, Overflow};
use tallygate::{Algorithm, Check, CheckError, Cost, Decision, Key, Limit, Limiter, MemoryStore};

use crate::START;

fn limiter() -> (Limiter, ManualClock) {
    let clock = ManualClock::new(START);
    (Limiter::new(MemoryStore::builder().clock(clock.clone()).build()), clock)
}

fn id(text: &str) -> RequestId {
    RequestId::new(text).unwrap()
}

fn units(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

fn of<'a>(policy: &'a str, subject: &'a str, limit: &'a Limit) -> Check<'a> {
    Check::new(Key::new(policy, subject).unwrap(), limit)
}

/// What was said, without whether it was said before.
fn said(decision: &Decision) -> (bool, Vec<tallygate::Status>, Option<u64>, Option<tallygate::clock::Timestamp>) {
    (decision.allowed(), decision.statuses().to_vec(), decision.granted(), decision.decided_at())
}

#[tokio::test]
async fn a_repeat_is_answered_as_the_first_and_charged_nothing() {
    for &algorithm in Algorithm::OVER_TIME {
        let limit = Limit::builder(10, Duration::from_secs(3600)).algorithm(algorithm).build().unwrap();
        let (limiter, clock) = limiter();
        let checks = [of("p", "s", &limit).cost(units(3)), of("q", "s", &limit)];
        let first = limiter.once(id("a")).check_all(&checks).await.unwrap();
        let up_to = UpTo::new(units(20));
        let granted = limiter.once(id("b")).check_up_to(&checks, up_to).await.unwrap();
        assert_eq!((first.allowed(), granted.granted()), (true, Some(7)), "{algorithm}");
        assert!(!first.replayed() && !granted.replayed());
        for _ in 0..3 {
            clock.advance(Duration::from_secs(70));
            let before = limiter.peek_all(&checks).await.unwrap();
            for (again, before) in [
                (limiter.once(id("a")).check_all(&checks).await.unwrap(), &first),
                (limiter.once(id("b")).check_up_to(&checks, up_to).await.unwrap(), &granted),
            ] {
                assert!(again.replayed() && said(&again) == said(before), "{algorithm}: {again:?}");
            }
            assert_eq!(limiter.peek_all(&checks).await.unwrap(), before, "{algorithm}");
        }
    }
}

#[tokio::test]
async fn other_arguments_under_the_same_id_are_an_error_and_charged_nothing() {
    let (limiter, limit) = (limiter().0, "10/h".parse().unwrap());
    let check = of("p", "s", &limit);
    let once = limiter.once(id("a"));
    assert!(once.check(check).await.unwrap().allowed());
    let up_to = UpTo::new(units(1));
    assert_eq!(once.check(check.cost(units(2))).await, Err(CheckError::Conflict));
    assert_eq!(once.check(of("q", "s", &limit)).await, Err(CheckError::Conflict));
    assert_eq!(once.check_all(&[check, of("q", "s", &limit)]).await, Err(CheckError::Conflict));
    assert_eq!(once.check_up_to(&[check], up_to).await, Err(CheckError::Conflict));
    let reserved = once.reserve(&[check], Duration::from_secs(1)).await;
    assert_eq!(reserved.map(|reserved| reserved.decision), Err(CheckError::Conflict));
    assert!(!CheckError::Conflict.may_have_charged());
    let left = async |check| limiter.peek(check).await.unwrap().binding().remaining();
    assert_eq!([left(check).await, left(of("q", "s", &limit)).await], [9, 10]);
    assert!(once.check(check).await.unwrap().replayed());
}

#[tokio::test]
async fn a_denial_is_not_remembered() {
    let ((limiter, clock), limit) = (limiter(), "1/s".parse().unwrap());
    let check = of("p", "s", &limit);
    assert!(limiter.check(check).await.unwrap().allowed());
    let once = limiter.once(id("a"));
    assert!(!once.check(check).await.unwrap().allowed());
    // Other arguments are no conflict either.
    assert!(!once.check_all(&[check, of("q", "s", &limit)]).await.unwrap().allowed());
    clock.advance(Duration::from_secs(1));
    let allowed = once.check(check).await.unwrap();
    assert!(allowed.allowed() && !allowed.replayed());
}

#[tokio::test]
async fn an_answer_is_remembered_for_as_long_as_the_id_says() {
    let ((limiter, clock), limit) = (limiter(), "10/h".parse().unwrap());
    let (check, kept) = (of("p", "s", &limit), Duration::from_millis(250));
    let once = limiter.once(id("a").kept_for(kept).unwrap());
    assert!(!once.check(check).await.unwrap().replayed());
    clock.advance(kept - Duration::from_micros(1));
    assert!(once.check(check).await.unwrap().replayed());
    // The repeat has not prolonged it.
    clock.advance(Duration::from_micros(1));
    assert!(!once.check(check.cost(units(2))).await.unwrap().replayed());
    assert_eq!(limiter.peek(check).await.unwrap().binding().remaining(), 7);
}

#[tokio::test]
async fn an_id_belongs_to_the_subjects_of_its_call() {
    let (limiter, limit) = (limiter().0, "10/h".parse().unwrap());
    // One limit of all: whichever check is first, callers do not meet.
    for checks in [
        [of("p", "a", &limit), of("all", "all", &limit)],
        [of("p", "b", &limit), of("all", "all", &limit)],
        [of("all", "all", &limit), of("p", "c", &limit)],
        [of("all", "all", &limit), of("p", "d", &limit)],
    ] {
        let once = limiter.once(id("1"));
        assert!(!once.check_all(&checks).await.unwrap().replayed());
        assert!(once.check_all(&checks).await.unwrap().replayed());
    }
    assert_eq!(limiter.peek(of("all", "all", &limit)).await.unwrap().binding().remaining(), 6);
}

#[tokio::test]
async fn a_limit_that_was_changed_is_no_other_argument() {
    let (limiter, limit, changed) = (limiter().0, "10/h".parse().unwrap(), "4/min".parse().unwrap());
    let first = limiter.once(id("a")).check(of("p", "s", &limit)).await.unwrap();
    let again = limiter.once(id("a")).check(of("p", "s", &changed)).await.unwrap();
    assert!(again.replayed() && said(&again) == said(&first));
    assert_eq!(again.binding().limit(), 10);
}

#[tokio::test]
async fn a_repeated_reservation_has_the_first_hold() {
    let (limiter, limit) = (limiter().0, "10/h".parse().unwrap());
    let (checks, ttl) = ([of("p", "s", &limit).cost(units(4))], Duration::from_secs(60));
    let once = limiter.once(id("a"));
    let first = once.reserve(&checks, ttl).await.unwrap().hold.unwrap().into_hold();
    let again = once.reserve(&checks, ttl).await.unwrap();
    assert!(again.decision.replayed());
    let again = again.hold.unwrap().into_hold();
    assert_eq!(again, first);
    let settled = limiter.settle(&again, Units::Same(1)).await.unwrap();
    assert_eq!((settled.state, settled.parts[0].refunded), (HoldState::Settled, 3));
    // Whatever has become of it.
    let later = once.reserve(&checks, ttl).await.unwrap().hold.unwrap().into_hold();
    assert_eq!(later, first);
    assert_eq!(limiter.peek(checks[0]).await.unwrap().binding().remaining(), 9);
}

/// A client whose connection was cut asks again: it must not find that its hold was cancelled meanwhile.
#[tokio::test]
async fn a_caller_that_left_finds_the_hold_open() {
    let (limiter, limit) = (limiter().0, "10/h".parse().unwrap());
    let (checks, ttl) = ([of("p", "s", &limit).cost(units(4))], Duration::from_secs(60));
    let call = tallygate::call::Call::reserve(&checks, tallygate::hold::Reservation::new(ttl)).unwrap();
    let answer = call.with_request_id(Some(id("a"))).ask(&**limiter.store()).await.unwrap();
    assert!(answer.allowed());
    let again = limiter.once(id("a")).reserve(&checks, ttl).await.unwrap();
    let settled = again.hold.unwrap().settle(Units::AsReserved).await.unwrap();
    assert_eq!((settled.state, settled.parts[0].settled), (HoldState::Settled, 4));
}

/// Ids are chosen by callers: they must not push anything out.
#[tokio::test]
async fn a_full_store_denies_what_it_cannot_remember_and_makes_room_in_time() {
    for overflow in [Overflow::Deny, Overflow::Shared(1)] {
        let clock = ManualClock::new(START);
        let store = MemoryStore::builder().clock(clock.clone()).capacity(10).overflow(overflow).build();
        let (limiter, limit) = (Limiter::new(store), "1000/h".parse().unwrap());
        let check = of("p", "s", &limit);
        let ask = async |number: u64| limiter.once(id(&number.to_string())).check(check).await;
        // A call may need a place for its state, too.
        for number in 0..8 {
            assert!(ask(number).await.is_ok(), "{number}");
        }
        let used = 1000 - limiter.peek(check).await.unwrap().binding().remaining();
        let denied = ask(100).await.unwrap();
        assert_eq!((denied.allowed(), denied.source()), (false, Source::Overflow));
        assert_eq!(limiter.peek(check).await.unwrap().binding().remaining(), 1000 - used);
        assert!(limiter.check(check).await.unwrap().allowed(), "one without an id needs no room");
        for number in 0..8 {
            assert!(ask(number).await.unwrap().replayed(), "{number}");
        }
        clock.advance(RequestId::KEPT);
        assert!(ask(100).await.unwrap().allowed());
    }
}

#[tokio::test]
async fn a_deny_cache_passes_calls_with_an_id_on() {
    let clock = ManualClock::new(START);
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let limiter = Limiter::new(DenyCache::new(store).clock(clock));
    let limit = "1/h".parse().unwrap();
    let check = of("p", "s", &limit);
    let once = limiter.once(id("a"));
    assert!(once.check(check).await.unwrap().allowed());
    assert_eq!(limiter.check(check).await.unwrap().source(), Source::Store);
    assert_eq!(limiter.check(check).await.unwrap().source(), Source::DenyCache);
    let again = once.check(check).await.unwrap();
    assert!(again.allowed() && again.replayed());
}

/// A limit of zero is answered without the store; the rest is remembered.
#[tokio::test]
async fn a_repeat_beside_a_limit_of_zero_is_one() {
    let (limiter, limit, zero) = (limiter().0, "10/h".parse().unwrap(), "0/h".parse().unwrap());
    let shadow = of("shadow", "s", &zero).with_mode(tallygate::policy::Mode::Shadow);
    let once = limiter.once(id("a"));
    let first = once.check_all(&[shadow, of("p", "s", &limit)]).await.unwrap();
    let again = once.check_all(&[shadow, of("p", "s", &limit)]).await.unwrap();
    assert!(again.replayed() && said(&again) == said(&first));
    // What is denied in any case is not remembered, and conflicts with nothing.
    assert!(!once.check_all(&[of("none", "s", &zero), of("p", "s", &limit)]).await.unwrap().allowed());
}
