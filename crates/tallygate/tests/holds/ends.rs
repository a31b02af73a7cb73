//! How holds end.

use tallygate::hold::{Holds, Resolution, Resolve};

use super::*;

#[tokio::test]
async fn what_is_not_used_comes_back_at_once() {
    for limit in limits() {
        let (limiter, _) = limiter();
        let check = Check::new(key("alice"), &limit);
        let hold = reserve(&limiter, check, 8, 60).await;
        assert_eq!(numbers(&limiter, check).await, [2, 8, 0], "{limit}");
        let Resolved { state, done, parts, .. } = limiter.settle(&hold, Units::Same(3)).await.unwrap();
        assert_eq!((state, done), (HoldState::Settled, true), "{limit}");
        let HoldPart { reserved, held, settled, refunded, unpaid, .. } = parts[0];
        assert_eq!([reserved, held, settled, refunded, unpaid], [8, 0, 3, 5, 0], "{limit}");
        assert_eq!(numbers(&limiter, check).await, [7, 0, 0], "{limit}");
    }
}

#[tokio::test]
async fn a_second_end_changes_nothing_and_says_what_the_first_did() {
    for limit in limits() {
        let (limiter, clock) = limiter();
        let check = Check::new(key("alice"), &limit);
        let [settled, cancelled] = [reserve(&limiter, check, 4, 60).await, reserve(&limiter, check, 4, 60).await];
        limiter.settle(&settled, Units::Same(1)).await.unwrap();
        limiter.cancel(&cancelled).await.unwrap();
        let before = numbers(&limiter, check).await;
        for (hold, state, numbers) in
            [(&settled, HoldState::Settled, [1, 3]), (&cancelled, HoldState::Cancelled, [0, 4])]
        {
            for again in [
                limiter.settle(hold, Units::Same(4)).await.unwrap(),
                limiter.settle_partial(hold, Units::Same(1)).await.unwrap(),
                limiter.cancel(hold).await.unwrap(),
                limiter.extend(hold, Duration::from_secs(600)).await.unwrap(),
            ] {
                assert_eq!((again.state, again.done), (state, false), "{limit}");
                assert_eq!([again.parts[0].settled, again.parts[0].refunded], numbers, "{limit}");
            }
        }
        assert_eq!(numbers(&limiter, check).await, before, "{limit}");
        clock.advance(tallygate::hold::RETENTION);
        let later = limiter.settle(&settled, Units::Same(4)).await.unwrap();
        assert_eq!((later.state, later.done), (HoldState::NoLongerKnown, false), "{limit}");
    }
}

/// `on_abandon` says what becomes of units that nobody settles. The next decision on the key finds out, as of the deadline.
#[tokio::test]
async fn an_abandoned_hold_is_resolved_by_the_next_decision() {
    use tallygate::hold::OnAbandon;
    for limit in limits() {
        for (on_abandon, left) in [(OnAbandon::Charge, 2), (OnAbandon::Refund, 10)] {
            let terms = HoldTerms::DEFAULT.with_on_abandon(on_abandon);
            let (limiter, clock) = limiter();
            let check = Check::new(key("alice"), &limit).with_holds(Some(&terms));
            let hold = reserve(&limiter, check, 8, 1).await;
            clock.advance(Duration::from_micros(999_999));
            assert_eq!(status(&limiter, check).await.held(), 8, "{limit}");
            clock.advance(Duration::from_micros(1));
            // A call that knows nothing of holds finds out, too.
            let [remaining, held, _] = numbers(&limiter, Check::new(key("alice"), &limit)).await;
            assert_eq!((remaining, held), (left, 0), "{limit}, {on_abandon}");
            let late = limiter.settle(&hold, Units::Same(1)).await.unwrap();
            assert_eq!((late.state, late.done), (HoldState::Expired, false), "{limit}");
        }
    }
}

#[tokio::test]
async fn a_stream_is_settled_part_by_part() {
    for limit in limits() {
        let (limiter, clock) = limiter();
        let check = Check::new(key("alice"), &limit);
        let hold = reserve(&limiter, check, 9, 10).await;
        let part = limiter.settle_partial(&hold, Units::Same(4)).await.unwrap();
        assert_eq!((part.state, part.parts[0].held, part.parts[0].settled), (HoldState::Open, 5, 4), "{limit}");
        assert_eq!(status(&limiter, check).await.held(), 5, "{limit}");
        clock.advance(Duration::from_secs(9));
        let extended = limiter.extend(&hold, Duration::from_secs(10)).await.unwrap();
        assert_eq!(extended.expires_at.map(|at| at.as_micros() - START.as_micros()), Some(19_000_000), "{limit}");
        clock.advance(Duration::from_secs(9));
        let settled = limiter.settle(&hold, Units::Same(1)).await.unwrap();
        assert_eq!((settled.parts[0].settled, settled.parts[0].held), (5, 0), "{limit}");
        // A bucket has regained one of them in the meantime, which is not given back a second time.
        assert!((3..=4).contains(&settled.parts[0].refunded), "{limit}: {settled:?}");
    }
}

/// An endless extension overflowed.
#[tokio::test]
async fn an_endless_extension_is_one_of_a_day() {
    let (limiter, _) = limiter();
    let limit: Limit = "10/h".parse().unwrap();
    let hold = reserve(&limiter, Check::new(key("alice"), &limit), 8, 60).await;
    let extended = limiter.extend(&hold, Duration::MAX).await.unwrap();
    assert_eq!(extended.expires_at.map(|at| at.as_micros() - START.as_micros()), Some(86_400_000_000));
}

/// A client that got no answer repeats the call, and by then the hold may have been extended by a task of its own.
#[tokio::test]
async fn a_part_is_settled_once_though_the_hold_is_extended_before_the_repeat() {
    let (limiter, _) = limiter();
    for limit in limits() {
        let check = Check::new(Key::new("tokens", limit.algorithm().name()).unwrap(), &limit);
        let hold = reserve(&limiter, check, 8, 60).await;
        let part = Resolution::new(&hold, Resolve::SettlePart(Units::Same(3)));
        let extension = Resolution::new(&hold, Resolve::Extend(Duration::from_secs(90)));
        for resolution in [&part, &extension, &part] {
            assert!(limiter.store().resolve(resolution).await.unwrap().done);
        }
        let settled = limiter.settle(&hold, Units::Same(0)).await.unwrap();
        assert_eq!((settled.parts[0].settled, settled.parts[0].refunded), (3, 5), "{limit}");
    }
}

/// What was not charged is added up: it overflowed, and the hold was lost.
#[tokio::test]
async fn endless_units_are_the_most_that_a_limit_can_have() {
    let (limiter, _) = limiter();
    let limit: Limit = "10/h".parse().unwrap();
    let hold = reserve(&limiter, Check::new(key("alice"), &limit), 8, 60).await;
    for parts in 1..=2 {
        let part = limiter.settle_partial(&hold, Units::Same(u64::MAX)).await.unwrap().parts[0];
        assert_eq!(part.settled + part.unpaid, parts * Cost::MAX.get());
    }
    let each = Units::Each(vec![("tokens".to_owned(), u64::MAX)]);
    let settled = limiter.settle(&hold, each).await.unwrap().parts[0];
    assert_eq!(settled.settled + settled.unpaid, 3 * Cost::MAX.get());
}

#[tokio::test]
async fn units_are_settled_by_policy() {
    let (limiter, _) = limiter();
    let (requests, tokens): (Limit, Limit) = ("60/h".parse().unwrap(), "1000/h".parse().unwrap());
    let checks = [
        Check::new(Key::new("requests", "alice").unwrap(), &requests),
        Check::new(Key::new("tokens", "alice").unwrap(), &tokens).cost(units(900)),
    ];
    let hold = limiter.reserve(&checks, Duration::from_secs(60)).await.unwrap().hold.unwrap().into_hold();
    // One number does not say which of them is meant.
    let unclear = limiter.settle(&hold, Units::Same(250)).await.unwrap();
    assert!(!unclear.done && unclear.refused.is_some() && unclear.state == HoldState::Open);
    let settled = limiter.settle(&hold, Units::Each(vec![("tokens".to_owned(), 250)])).await.unwrap();
    let of = |at: usize| (settled.parts[at].settled, settled.parts[at].refunded);
    assert_eq!((of(0), of(1)), ((1, 0), (250, 650)));
}

/// One request over one of several limits holds nothing of the others.
#[tokio::test]
async fn a_denied_reservation_holds_nothing() {
    let (limiter, _) = limiter();
    for (few, many) in limits().zip(limits()) {
        let policy = format!("few-{few}");
        let checks = [
            Check::new(Key::new("many", &policy).unwrap(), &many).cost(units(2)),
            Check::new(Key::new("few", &policy).unwrap(), &few).cost(units(6)),
        ];
        let first = limiter.reserve(&checks, Duration::from_secs(60)).await.unwrap();
        let denied = limiter.reserve(&checks, Duration::from_secs(60)).await.unwrap();
        assert!(first.decision.allowed() && !denied.decision.allowed() && denied.hold.is_none());
        assert_eq!(numbers(&limiter, checks[0]).await, [8, 2, 0], "{many}");
        assert_eq!(numbers(&limiter, checks[1]).await, [4, 6, 0], "{few}");
    }
}

#[tokio::test]
async fn a_reset_and_a_changed_limit_close_holds() {
    for limit in limits() {
        let (limiter, _) = limiter();
        let check = Check::new(key("alice"), &limit);
        let hold = reserve(&limiter, check, 8, 60).await;
        assert!(limiter.reset(check).await.unwrap());
        assert_eq!(numbers(&limiter, check).await, [10, 0, 0], "{limit}");
        let settled = limiter.settle(&hold, Units::Same(1)).await.unwrap();
        assert_eq!((settled.parts[0].refunded, status(&limiter, check).await.remaining()), (0, 10), "{limit}");

        let hold = reserve(&limiter, check, 8, 60).await;
        let changed = Limit::builder(10, Duration::from_secs(1800)).algorithm(limit.algorithm()).build().unwrap();
        let check = Check::new(key("alice"), &changed);
        limiter.check(check).await.unwrap();
        assert_eq!(numbers(&limiter, check).await, [1, 0, 0], "{limit}: what was held stays used");
        let settled = limiter.settle(&hold, Units::Same(1)).await.unwrap();
        assert_eq!((settled.done, settled.parts[0].refunded), (true, 0), "{limit}");
        assert_eq!(status(&limiter, check).await.remaining(), 1, "{limit}");
    }
}

/// A token works for the states that it was made for, and for nothing else.
#[tokio::test]
async fn a_token_cannot_be_aimed_elsewhere() {
    let (limiter, _) = limiter();
    for limit in limits() {
        let (alice, bob) = (Check::new(key("alice"), &limit), Check::new(key("bob"), &limit));
        let hold = reserve(&limiter, alice, 8, 60).await;
        let _other = reserve(&limiter, bob, 8, 60).await;
        let aimed = Hold::new(hold.id(), &[bob]);
        let longer = Hold::new(hold.id(), &[alice, Check::new(Key::new("more", "alice").unwrap(), &limit)]);
        for forged in [&aimed, &longer, &Hold::new(tallygate::hold::HoldId::random(), &[alice])] {
            let answer = limiter.cancel(forged).await.unwrap();
            assert_eq!((answer.state, answer.done), (HoldState::NoLongerKnown, false), "{limit}");
        }
        assert_eq!([numbers(&limiter, alice).await, numbers(&limiter, bob).await], [[2, 8, 0]; 2], "{limit}");
        let token: Hold = hold.to_string().parse().unwrap();
        assert!(limiter.cancel(&token).await.unwrap().done, "{limit}");
        for check in [alice, bob] {
            limiter.reset(check).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_dropped_guard_cancels_and_a_result_settles() {
    let (limiter, _) = limiter();
    let tokens = limiter.limit("tokens", "10/h").unwrap();
    let left = async || tokens.peek("alice").await.unwrap().binding().remaining();
    drop(tokens.reserve("alice", 8, Duration::from_secs(60)).await.unwrap());
    assert_eq!(left().await, 10);
    let answer = tokens.run("alice", 8, Duration::from_secs(60), async { ("done", 3) }).await.unwrap();
    assert_eq!((answer, left().await), ("done", 7));
    // The caller leaves.
    let endless = tokens.run("alice", 5, Duration::from_secs(60), std::future::pending::<((), u64)>());
    assert!(tokio::time::timeout(Duration::from_millis(1), endless).await.is_err());
    assert_eq!(left().await, 7);
    let panics = async { if true { panic!("the worker fails") } else { ((), 1) } };
    let (task, again) = (tokens.clone(), tokens.clone());
    let ended = tokio::spawn(async move { task.run("alice", 5, Duration::from_secs(60), panics).await.is_ok() }).await;
    assert!(ended.is_err() && again.peek("alice").await.unwrap().binding().remaining() == 7);
    let denied = tokens.run("alice", 8, Duration::from_secs(60), async { ((), 1) }).await;
    assert!(matches!(denied, Err(tallygate::limiter::RunError::Denied(_))));
}
