//! The common call: one policy applies, and it enforces. No groups, no lists, the same verdict.

use super::super::verdict::Rulings;
use super::super::{Excess, Mode, Ruling, Verdict};
use super::{Bench, Charge, Found};
use crate::check::Check;
use crate::limiter::InvalidCheck;
use crate::store::{MemoryStore, Store};

/// Decides a call under one policy.
pub(super) async fn decide<S: Store>(store: &S, local: &MemoryStore, found: Found) -> Result<Verdict, InvalidCheck> {
    let Charge::Take(cost) = found.charge else {
        return super::decide(store, local, vec![found]).await;
    };
    let simple = found.policy.mode() == Mode::Enforce && found.policy.excess() != Excess::Drain;
    // No store is asked about a limit of zero, nor about more than there ever is.
    let asked = |check: &Check<'_>| simple && check.cost.get() <= check.limit.capacity() && check.limit.amount() > 0;
    let Some(check) = found.check().filter(asked) else {
        return super::decide(store, local, vec![found]).await;
    };
    let decision = match store.check(&[check]).await {
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
