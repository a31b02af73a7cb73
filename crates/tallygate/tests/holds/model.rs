//! Random histories: the law of conservation, and a hold as a charge and a refund.

use std::collections::HashMap;

use tallygate::hold::OnAbandon;
use tallygate_testkit::random::Random;

use super::*;

/// A fixed window of a model that keeps the whole history.
#[derive(Default)]
struct Window {
    /// When each hold was charged, what is left of it, its deadline, and whether it is refunded when it is abandoned.
    open: HashMap<usize, (u64, u64, u64, bool)>,
    /// Units used for good, by the window in which they were charged.
    used: HashMap<u64, u64>,
}

const SPAN: u64 = 60_000_000;

impl Window {
    fn expire(&mut self, now: u64) {
        let ended: Vec<usize> =
            self.open.iter().filter(|(_, (_, _, deadline, _))| *deadline <= now).map(|(id, _)| *id).collect();
        for id in ended {
            let (at, left, _, refunds) = self.open.remove(&id).expect("it was listed");
            *self.used.entry(at / SPAN).or_default() += if refunds { 0 } else { left };
        }
    }

    fn held(&self, now: u64) -> u64 {
        self.open.values().filter(|(at, ..)| at / SPAN == now / SPAN).map(|(_, left, ..)| left).sum()
    }

    fn used(&self, now: u64) -> u64 {
        self.used.get(&(now / SPAN)).copied().unwrap_or(0)
    }
}

/// held + used + free = capacity + debt, where `held` and `used` are those of the history.
#[tokio::test]
async fn nothing_is_lost_or_made_in_a_fixed_window() {
    const CAPACITY: u64 = 40;
    let limit: Limit = "40/min fixed_window".parse().unwrap();
    let terms = [OnAbandon::Charge, OnAbandon::Refund].map(|on_abandon| HoldTerms::DEFAULT.with_on_abandon(on_abandon));
    let mut debts = 0;
    for seed in 0..20 {
        let (limiter, clock) = limiter();
        let (mut random, mut model) = (Random::new(seed), Window::default());
        let mut holds: HashMap<usize, Hold> = HashMap::new();
        for step in 0..600 {
            clock.advance(Duration::from_micros(random.between(0, 8) * random.between(0, 1_500_000)));
            let now = clock.now().as_micros();
            model.expire(now);
            let refunds = random.chance(50);
            let check = Check::new(key("alice"), &limit).with_holds(Some(&terms[usize::from(refunds)]));
            let cost = random.between(1, 12);
            let known: Vec<usize> = holds.keys().copied().collect();
            match random.between(0, 9) {
                0..=1 => {
                    let decision = limiter.check(check.cost(units(cost))).await.unwrap();
                    *model.used.entry(now / SPAN).or_default() += decision.binding().units();
                }
                2..=5 => {
                    let ttl = random.between(1, 90_000);
                    let asked = [check.cost(units(cost))];
                    let reserved = limiter.reserve(&asked, Duration::from_millis(ttl)).await.unwrap();
                    if let Some(hold) = reserved.hold {
                        holds.insert(step, hold.into_hold());
                        model.open.insert(step, (now, cost, now + ttl * 1000, refunds));
                    }
                }
                _ if known.is_empty() => {}
                6..=8 => {
                    let id = random.pick(&known);
                    let (actual, partial) = (random.between(0, 16), random.chance(40));
                    let hold = &holds[&id];
                    let answer = match partial {
                        true => limiter.settle_partial(hold, Units::Same(actual)).await.unwrap(),
                        false => limiter.settle(hold, Units::Same(actual)).await.unwrap(),
                    };
                    let Some(&(at, left, deadline, refunds)) = model.open.get(&id) else {
                        assert!(!answer.done, "seed {seed}, step {step}");
                        continue;
                    };
                    assert!(answer.done, "seed {seed}, step {step}: {answer:?}");
                    let beyond = actual.saturating_sub(left);
                    *model.used.entry(at / SPAN).or_default() += actual.min(left);
                    *model.used.entry(now / SPAN).or_default() += beyond - answer.parts[0].unpaid.min(beyond);
                    match partial {
                        true => model.open.insert(id, (at, left - actual.min(left), deadline, refunds)),
                        false => model.open.remove(&id),
                    };
                }
                _ => {
                    let id = random.pick(&known);
                    let answer = limiter.cancel(&holds[&id]).await.unwrap();
                    assert_eq!(answer.done, model.open.remove(&id).is_some(), "seed {seed}, step {step}");
                }
            }
            let seen = status(&limiter, check).await;
            let (held, used) = (model.held(now), model.used(now));
            assert_eq!(seen.held(), held, "seed {seed}, step {step}");
            assert_eq!(held + used + seen.remaining(), CAPACITY + seen.debt(), "seed {seed}, step {step}: used {used}");
            debts += u64::from(seen.debt() > 0);
        }
    }
    assert!(debts > 100, "only {debts} debts");
}

/// The same history without holds: what is not used is refunded by receipt, at the same instants.
#[tokio::test]
async fn a_hold_is_a_charge_and_a_refund() {
    for (seed, &algorithm) in (0..).zip(Algorithm::OVER_TIME) {
        let limit = Limit::builder(40, Duration::from_secs(60)).algorithm(algorithm).build().unwrap();
        let terms = HoldTerms::DEFAULT.with_on_abandon(OnAbandon::Refund);
        let ((held, clock), (plain, plain_clock)) = (limiter(), limiter());
        let mut random = Random::new(seed);
        let mut open: Vec<(Hold, u64, u64, u64)> = Vec::new();
        let check = Check::new(key("alice"), &limit);
        let (mut settled, mut abandoned) = (0, 0);
        for step in 0..3000 {
            clock.advance(Duration::from_micros(random.between(0, 8) * random.between(0, 1_500_000)));
            let now = clock.now().as_micros();
            // Those that are abandoned, in the order of their deadlines.
            open.sort_by_key(|(hold, _, _, deadline)| (*deadline, hold.id()));
            while open.first().is_some_and(|(_, _, _, deadline)| *deadline <= now) {
                let (_, at, left, deadline) = open.remove(0);
                plain_clock.set(tallygate::clock::Timestamp::from_micros(deadline));
                give_back(&plain, check, at, left).await;
                abandoned += 1;
            }
            plain_clock.set(clock.now());
            let cost = random.between(1, 12);
            match random.between(0, 5) {
                0 => {
                    held.check(check.cost(units(cost)).with_holds(Some(&terms))).await.unwrap();
                    plain.check(check.cost(units(cost))).await.unwrap();
                }
                1..=3 => {
                    let ttl = random.between(1, 90_000);
                    let asked = [check.cost(units(cost)).with_holds(Some(&terms))];
                    let reserved = held.reserve(&asked, Duration::from_millis(ttl)).await.unwrap();
                    let charged = plain.check(check.cost(units(cost))).await.unwrap();
                    assert_eq!(reserved.decision.allowed(), charged.allowed(), "{algorithm}, step {step}");
                    if let Some(hold) = reserved.hold {
                        open.push((hold.into_hold(), now, cost, now + ttl * 1000));
                    }
                }
                _ if open.is_empty() => {}
                _ => {
                    let place = usize::try_from(random.between(0, open.len() as u64 - 1)).unwrap();
                    let (hold, at, left, _) = open.remove(place);
                    let actual = random.between(0, left);
                    let answer = held.settle(&hold, Units::Same(actual)).await.unwrap();
                    assert!(answer.done, "{algorithm}, step {step}");
                    let given = give_back(&plain, check, at, left - actual).await;
                    assert_eq!(answer.parts[0].refunded, given, "{algorithm}, step {step}");
                    settled += 1;
                }
            }
            let (one, two) = (status(&held, check).await, status(&plain, check).await);
            let seen = |status: Status| (status.remaining(), status.reset_after());
            assert_eq!(seen(one), seen(two), "{algorithm}, step {step}");
            let most: u64 = open.iter().map(|(_, _, left, _)| left).sum();
            assert!(one.held() <= most, "{algorithm}, step {step}: more is held than the open holds have");
        }
        assert!(settled > 200 && abandoned > 20, "{algorithm}: {settled} settled, {abandoned} abandoned");
    }
}

async fn give_back(limiter: &Limiter<MemoryStore>, check: Check<'_>, charged_at: u64, left: u64) -> u64 {
    let Ok(cost) = Cost::new(left) else { return 0 };
    let receipt = Receipt::new(check, cost, Some(tallygate::clock::Timestamp::from_micros(charged_at)));
    limiter.refund(&[receipt]).await.unwrap()[0]
}
