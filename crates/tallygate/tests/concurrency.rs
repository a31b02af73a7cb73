//! What is in flight: reserved, renewed and released, on the embedded store.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tallygate::call::{InvalidCheck, Verb};
use tallygate::clock::ManualClock;
use tallygate::hold::{Hold, HoldState, HoldTerms, Refused, Turn, Units};
use tallygate::limiter::{HoldGuard, Leases};
use tallygate::policy::Excess;
use tallygate::{Check, CheckError, Cost, Key, Limit, Limiter, MemoryStore, Status};

use crate::START;

const TEN: Duration = Duration::from_secs(10);

fn limiter() -> (Limiter<MemoryStore>, ManualClock) {
    let clock = ManualClock::new(START);
    (Limiter::new(MemoryStore::builder().clock(clock.clone()).build()), clock)
}

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

fn check<'a>(policy: &'a str, limit: &'a Limit) -> Check<'a> {
    Check::new(Key::new(policy, "alice").unwrap(), limit)
}

fn of(check: Check<'_>, units: u64) -> Check<'_> {
    check.cost(Cost::new(units).unwrap())
}

async fn acquire(limiter: &Limiter<MemoryStore>, checks: &[Check<'_>], ttl: Duration) -> Option<Hold> {
    limiter.reserve(checks, ttl).await.unwrap().hold.map(HoldGuard::into_hold)
}

async fn seen(limiter: &Limiter<MemoryStore>, check: Check<'_>) -> Status {
    limiter.peek(check).await.unwrap().binding()
}

#[test]
fn a_concurrency_limit_is_written_in_one_way() {
    assert_eq!(limit(" 20  concurrent ").to_string(), "20 concurrent");
    assert_eq!(limit("20 concurrent"), Limit::concurrent(20).build().unwrap());
    for (text, problem) in [
        ("20 concurrent/min", "nothing may follow"),
        ("20/min concurrency", "a concurrency limit has no window: write `20 concurrent`"),
        ("2000000000 concurrent", "the largest is 1000000000"),
    ] {
        let error = text.parse::<Limit>().unwrap_err().to_string();
        assert!(error.contains(problem), "{text}: {error}");
    }
    let windowed = Limit::per_minute(5).algorithm(tallygate::Algorithm::Concurrency).build();
    assert!(windowed.unwrap_err().to_string().contains("write `5 concurrent`"));
}

#[tokio::test]
async fn units_in_flight_come_back_when_their_hold_ends_and_not_by_time() {
    let (limiter, clock) = limiter();
    let jobs = limit("3 concurrent");
    let check = check("jobs", &jobs);
    let one = acquire(&limiter, &[check], TEN).await.unwrap();
    let two = acquire(&limiter, &[of(check, 2)], 2 * TEN).await.unwrap();
    let denied = limiter.reserve(&[check], TEN).await.unwrap().decision;
    assert_eq!((denied.allowed(), denied.binding().held()), (false, 3));
    assert_eq!(denied.binding().retry_after(), Some(TEN), "the first of them ends then at the latest");
    clock.advance(Duration::from_secs(9));
    assert_eq!(seen(&limiter, check).await.remaining(), 0);
    limiter.settle(&one, Units::AsReserved).await.unwrap();
    assert_eq!(seen(&limiter, check).await.remaining(), 1, "all of it comes back, whatever was used");
    // Two units are missing: nobody knows how many the next that ends has.
    let denied = limiter.peek(of(check, 3)).await.unwrap();
    assert_eq!(denied.binding().retry_after(), Some(Duration::from_secs(11)));
    clock.advance(Duration::from_secs(11));
    assert_eq!((seen(&limiter, check).await.remaining(), seen(&limiter, check).await.held()), (3, 0));
    let late = limiter.cancel(&two).await.unwrap();
    assert_eq!((late.state, late.done, late.parts[0].refunded), (HoldState::Expired, false, 2));
}

/// #39309 of the catalogue: refused by concurrency, but the requests were charged already.
#[tokio::test]
async fn beside_a_rate_limit_all_or_none_is_charged() {
    let (limiter, _) = limiter();
    let (jobs, requests) = (limit("1 concurrent"), limit("5/h"));
    let checks = [check("requests", &requests), check("jobs", &jobs)];
    let hold = acquire(&limiter, &checks, TEN).await.unwrap();
    assert!(acquire(&limiter, &checks, TEN).await.is_none());
    assert_eq!(seen(&limiter, checks[0]).await.remaining(), 4);
    let settled = limiter.settle(&hold, Units::Same(1)).await.unwrap();
    assert_eq!([settled.parts[0].settled, settled.parts[1].refunded], [1, 1]);
    assert_eq!([seen(&limiter, checks[0]).await.remaining(), seen(&limiter, checks[1]).await.remaining()], [4, 1]);
}

/// One number of units may be meant for the tokens alone: what is in flight is not used up.
#[tokio::test]
async fn a_settlement_of_tokens_ends_what_is_in_flight_too() {
    let (limiter, _) = limiter();
    let (jobs, tokens) = (limit("1 concurrent"), limit("1000/h"));
    let checks = [of(check("tokens", &tokens), 900), check("jobs", &jobs)];
    let hold = acquire(&limiter, &checks, TEN).await.unwrap();
    let open = limiter.settle_partial(&hold, Units::Same(100)).await.unwrap();
    assert_eq!((open.done, open.parts[0].held, open.parts[1].held), (true, 800, 1));
    let settled = limiter.settle(&hold, Units::Same(850)).await.unwrap();
    assert_eq!((settled.done, settled.parts[0].settled, settled.parts[1].refunded), (true, 950, 1));
    assert_eq!(seen(&limiter, checks[1]).await.remaining(), 1);
}

#[tokio::test]
async fn what_is_in_flight_is_not_checked_refunded_or_drained() {
    let (limiter, _) = limiter();
    let jobs = limit("3 concurrent");
    let check = check("jobs", &jobs);
    let said = |error: CheckError| error.to_string();
    for error in [
        said(limiter.check(check).await.unwrap_err()),
        said(limiter.check_now(check).unwrap_err().into()),
        said(limiter.check_all(&[check, Check::new(Key::new("p", "s").unwrap(), &limit("5/s"))]).await.unwrap_err()),
        said(limiter.reserve(&[check.with_excess(Excess::Drain)], TEN).await.unwrap_err()),
    ] {
        assert!(error.contains("`jobs` limits what is in flight") && error.contains("reserve"), "{error}");
    }
    let too_many = limiter.reserve(&[of(check, 4)], TEN).await.unwrap_err();
    assert!(matches!(too_many, CheckError::Invalid(InvalidCheck::CostAboveCapacity { .. })), "{too_many}");
    let receipt = tallygate::check::Receipt::new(check, Cost::ONE, None);
    let refused = limiter.refund(&[receipt]).await.unwrap_err();
    assert!(matches!(refused, CheckError::Invalid(InvalidCheck::OnlyReserved { verb: Verb::Refund, .. })));
    assert_eq!(seen(&limiter, check).await.remaining(), 3);
}

#[tokio::test]
async fn a_renewal_changes_the_token_and_the_one_before_changes_nothing() {
    let (limiter, clock) = limiter();
    let jobs = limit("1 concurrent");
    let check = check("jobs", &jobs);
    let first = acquire(&limiter, &[check], TEN).await.unwrap();
    let turn = |name| Turn::named(name);
    clock.advance(Duration::from_secs(5));
    // Its answer is lost, so it is repeated.
    for _ in 0..2 {
        let renewed = limiter.renew(&first, turn("2"), TEN).await.unwrap();
        assert_eq!((renewed.done, renewed.state), (true, HoldState::Open));
        assert_eq!(renewed.expires_at.unwrap().as_micros() - renewed.decided_at.as_micros(), 10_000_000);
    }
    for answer in [
        limiter.cancel(&first).await.unwrap(),
        limiter.settle(&first, Units::AsReserved).await.unwrap(),
        limiter.extend(&first, 6 * TEN).await.unwrap(),
        limiter.renew(&first, turn("3"), 6 * TEN).await.unwrap(),
    ] {
        assert_eq!((answer.done, answer.refused), (false, Some(Refused::Renewed)));
    }
    assert_eq!(seen(&limiter, check).await.held(), 1);
    let second = first.clone().at_turn(turn("2"));
    let read: Hold = second.to_string().parse().unwrap();
    clock.advance(Duration::from_secs(9));
    assert!(limiter.renew(&read, turn("3"), TEN).await.unwrap().done, "it lasts until 15 s");
    assert!(limiter.cancel(&second.at_turn(turn("3"))).await.unwrap().done);
    assert_eq!(seen(&limiter, check).await.remaining(), 1);
}

/// solid_queue#761: a place that was given up was released a second time by its holder of before, and then there was one too many.
#[tokio::test]
async fn a_late_release_frees_nobody_elses_place() {
    let (limiter, clock) = limiter();
    let jobs = limit("1 concurrent");
    let check = check("jobs", &jobs);
    let dead = acquire(&limiter, &[check], TEN).await.unwrap();
    clock.advance(TEN);
    let living = acquire(&limiter, &[check], TEN).await.unwrap();
    for answer in [limiter.cancel(&dead).await.unwrap(), limiter.renew(&dead, Turn::random(), TEN).await.unwrap()] {
        assert_eq!((answer.state, answer.done), (HoldState::Expired, false));
    }
    assert!(acquire(&limiter, &[check], TEN).await.is_none());
    for done in [true, false] {
        assert_eq!(limiter.cancel(&living).await.unwrap().done, done);
        assert_eq!(seen(&limiter, check).await.remaining(), 1);
    }
}

#[tokio::test]
async fn no_renewal_outlives_the_longest_life() {
    let (limiter, clock) = limiter();
    let (jobs, terms) = (limit("1 concurrent"), HoldTerms::DEFAULT.with_max_life(Duration::from_secs(25)));
    let check = check("jobs", &jobs).with_holds(Some(&terms));
    let too_long = limiter.reserve(&[check], 3 * TEN).await.unwrap_err();
    assert!(matches!(too_long, CheckError::Invalid(InvalidCheck::HoldTtl { .. })));
    let mut hold = acquire(&limiter, &[check], TEN).await.unwrap();
    for (turn, left) in [("2", 10), ("3", 9)] {
        clock.advance(Duration::from_secs(8));
        let renewed = limiter.renew(&hold, Turn::named(turn), TEN).await.unwrap();
        assert_eq!(renewed.expires_at.unwrap().as_micros() - renewed.decided_at.as_micros(), left * 1_000_000);
        hold = hold.at_turn(Turn::named(turn));
    }
    clock.advance(Duration::from_secs(9));
    assert_eq!(limiter.renew(&hold, Turn::named("4"), TEN).await.unwrap().state, HoldState::Expired);
    assert_eq!(seen(&limiter, check).await.remaining(), 1);
}

/// What is in flight was let in, so a lowered limit waits for it to end, and a raised one has room at once.
#[tokio::test]
async fn another_amount_keeps_what_is_in_flight() {
    let (limiter, _) = limiter();
    let (four, two, five) = (limit("4 concurrent"), limit("2 concurrent"), limit("5 concurrent"));
    let mut holds = Vec::new();
    for _ in 0..4 {
        holds.push(acquire(&limiter, &[check("jobs", &four)], TEN).await.unwrap());
    }
    let lowered = seen(&limiter, check("jobs", &two)).await;
    assert_eq!((lowered.remaining(), lowered.held(), lowered.debt()), (0, 2, 2));
    assert!(acquire(&limiter, &[check("jobs", &five)], TEN).await.is_some());
    assert!(limiter.renew(&holds[3], Turn::random(), TEN).await.unwrap().done);
    for hold in &holds[..3] {
        limiter.cancel(hold).await.unwrap();
        assert_eq!(acquire(&limiter, &[check("jobs", &two)], TEN).await, None);
    }
}

#[tokio::test]
async fn a_reset_ends_what_is_in_flight_and_its_holders_learn_it() {
    let (limiter, _) = limiter();
    let jobs = limit("1 concurrent");
    let check = check("jobs", &jobs);
    let hold = acquire(&limiter, &[check], TEN).await.unwrap();
    assert!(limiter.reset(check).await.unwrap());
    let renewed = limiter.renew(&hold, Turn::random(), TEN).await.unwrap();
    assert_eq!((renewed.state, renewed.done), (HoldState::Expired, false));
    let other = acquire(&limiter, &[check], TEN).await.unwrap();
    limiter.cancel(&hold).await.unwrap();
    assert_eq!(seen(&limiter, check).await.remaining(), 0, "the place of another");
    assert!(limiter.cancel(&other).await.unwrap().done);
}

fn is_ready(future: impl Future<Output = ()>) -> bool {
    pin!(future).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
}

#[tokio::test]
async fn leases_are_renewed_together_and_released_when_dropped() {
    let (limiter, clock) = limiter();
    let leases = Leases::new(limiter.clone(), Duration::from_secs(600));
    let jobs = limit("3 concurrent");
    let check = check("jobs", &jobs);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(leases.acquire(&[check]).await.unwrap().lease.unwrap());
    }
    assert!(leases.acquire(&[check]).await.unwrap().lease.is_none());
    for _ in 0..5 {
        clock.advance(Duration::from_secs(500));
        let before = held[0].hold();
        assert!(leases.renew_all() <= Duration::from_secs(200));
        assert!(held.iter().all(|lease| !lease.is_lost() && !is_ready(lease.lost())));
        assert!(held[0].hold() != before, "a new token");
    }
    drop(held.pop());
    assert_eq!((seen(&limiter, check).await.remaining(), leases.len()), (1, 2));
    assert_eq!(held.pop().unwrap().release().await.unwrap().parts[0].refunded, 1);
    let _last = held.pop().unwrap();
    assert_eq!(seen(&limiter, check).await.remaining(), 2);
}

#[tokio::test]
async fn a_holder_whose_lease_ended_learns_it() {
    let (limiter, clock) = limiter();
    let leases = Leases::new(limiter.clone(), Duration::from_secs(600));
    let jobs = limit("1 concurrent");
    let check = check("jobs", &jobs);
    let paused = leases.acquire(&[check]).await.unwrap().lease.unwrap();
    clock.advance(Duration::from_secs(600));
    let other = leases.acquire(&[check]).await.unwrap().lease.unwrap();
    leases.renew_all();
    assert!(paused.is_lost() && is_ready(paused.lost()) && !other.is_lost());
    assert_eq!(paused.release().await.unwrap().state, HoldState::Expired);
    assert_eq!(seen(&limiter, check).await.remaining(), 0);
}
