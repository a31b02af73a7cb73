//! The common call: one policy applies, and it enforces. No groups, no lists, the same verdict.

use super::super::{Excess, Mode, Ruling, Verdict};
use super::{Bench, Charge, Found};
use crate::check::Check;
use crate::decision::Decision;
use crate::limiter::InvalidCheck;
use crate::store::{MemoryStore, Store, StoreError};

/// Decides a call under one policy.
pub(super) async fn decide<S: Store>(store: &S, local: &MemoryStore, found: Found) -> Result<Verdict, InvalidCheck> {
    let Some(check) = common(&found) else { return super::together(store, local, vec![found]).await };
    match store.check(&[check]).await {
        Ok(decision) => Ok(verdict(found, &decision)),
        Err(error) => Ok(fall_back(store, local, found, error).await),
    }
}

/// What to ask of a store, if that is all there is to it.
fn common(found: &Found) -> Option<Check<'_>> {
    let takes = matches!(found.charge, Charge::Take(_));
    let plain = found.policy.mode() == Mode::Enforce && found.policy.excess() != Excess::Drain;
    // No store is asked about a limit of zero, nor about more than there ever is.
    let asked = |check: &Check<'_>| check.cost.get() <= check.limit.capacity() && check.limit.amount() > 0;
    found.check().filter(|check| takes && plain && asked(check))
}

fn verdict(found: Found, decision: &Decision) -> Verdict {
    let asked = found.cost().get();
    let Found { policy, place, descriptor, subject, own, .. } = found;
    let ruling = Ruling {
        policy,
        place,
        descriptor,
        subject,
        own,
        status: *decision.binding(),
        source: decision.source(),
        asked,
        charged: if decision.allowed() { asked } else { 0 },
        charged_at: Some(decision.decided_at()),
        given_back: 0,
    };
    let (decided_at, split) = (Some(decision.decided_at()), decision.split());
    Verdict { rulings: ruling.into(), decided_at, split, store_error: None }
}

#[cold]
async fn fall_back<S: Store>(store: &S, local: &MemoryStore, found: Found, error: StoreError) -> Verdict {
    let found = [found];
    let mut bench = Bench::new(store, local, &found);
    let group = bench.groups(|_| true);
    bench.fall_back(&group, error, true).await;
    bench.into_verdict()
}
