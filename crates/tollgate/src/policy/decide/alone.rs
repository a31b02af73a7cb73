//! The common call: one policy applies, and it enforces. No groups, no lists, the same verdict.

use super::super::verdict::Rulings;
use super::{Bench, Charge, Excess, Found, Mode, Ruling, Verdict, too_costly};
use crate::limiter::{self, InvalidCheck};
use crate::store::{MemoryStore, Store};

/// Decides a call under one policy.
pub(super) async fn decide<S: Store>(store: &S, local: &MemoryStore, found: Found) -> Result<Verdict, InvalidCheck> {
    let Charge::Take(cost) = found.charge else {
        return super::decide(store, local, vec![found]).await;
    };
    let simple = found.takes(Mode::Enforce) && found.policy.excess() != Excess::Drain;
    let Some(check) = found.check().filter(|check| simple && !too_costly(check)) else {
        return super::decide(store, local, vec![found]).await;
    };
    let decision = match limiter::take(store, &[check]).await {
        Ok(decision) => decision,
        Err(error) => {
            let found = [found];
            let mut bench = Bench::new(store, local, &found);
            let group = bench.groups(|_| true);
            bench.fall_back(&group, error, true).await;
            return Ok(bench.into_verdict());
        }
    };
    let Found { policy, place, descriptor, subject, limit, .. } = found;
    let ruling = Ruling {
        policy,
        place,
        descriptor,
        subject,
        limit,
        status: *decision.binding(),
        source: decision.source(),
        asked: cost.get(),
        charged: if decision.allowed() { cost.get() } else { 0 },
        given_back: 0,
    };
    let (decided_at, split) = (Some(decision.decided_at()), decision.split());
    Ok(Verdict { rulings: Rulings::One([ruling]), decided_at, split, store_error: None })
}
