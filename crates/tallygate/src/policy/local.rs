//! What this process decides while the store cannot: its share of each limit, as far as it is not used up already.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{OnError, Policy, Ruling};
use crate::call::Verb;
use crate::check::{Check, Cost};
use crate::decision::Status;
use crate::limit::Limit;
use crate::store::MemoryStore;

/// The number of processes that share a store, as far as this one knows. Clones share the number.
///
/// While the store cannot answer, each process admits its part of a limit: see [`OnError::Local`].
#[derive(Debug, Clone)]
pub struct Instances(Arc<AtomicU32>);

impl Instances {
    /// Creates the number. Zero counts as one: this process.
    pub fn new(count: u32) -> Self {
        Self(Arc::new(AtomicU32::new(count.max(1))))
    }

    /// The number.
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Changes the number.
    pub fn set(&self, count: u32) {
        self.0.store(count.max(1), Ordering::Relaxed);
    }
}

impl Default for Instances {
    fn default() -> Self {
        Self::new(1)
    }
}

/// A fixed share of a limit, from 1 to 100 percent. Written `25%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Share(u8);

/// The error of an invalid share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a share: write a whole percentage from 1% to 100%, for example 25%")]
pub struct ShareError {
    text: String,
}

impl Share {
    /// Creates a share of 1 to 100 percent.
    pub fn percent(percent: u8) -> Option<Self> {
        (1..=100).contains(&percent).then_some(Self(percent))
    }
}

impl FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, ShareError> {
        let digits = text.strip_suffix('%').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let percent = digits.and_then(|digits| digits.parse().ok()).and_then(Self::percent);
        percent.ok_or_else(|| ShareError { text: text.to_owned() })
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

/// The local store. It follows the shared one: what that charges is charged here too, so that an outage gives nobody a
/// fresh share, and what that gives back is given back here, but nothing that was admitted here.
#[derive(Debug, Clone)]
pub(super) struct Local {
    pub(super) store: Arc<MemoryStore>,
    pub(super) instances: Instances,
}

/// How many states the local store has room for: two for each key that the shared store has charged. Keys beyond share states.
const STATES: usize = 200_000;

impl Default for Local {
    fn default() -> Self {
        Self { store: Arc::new(MemoryStore::builder().capacity(STATES).build()), instances: Instances::default() }
    }
}

impl Local {
    /// The part of a limit of a policy that this process may admit on its own.
    pub(super) fn share_of(&self, policy: &Policy, limit: &Limit) -> Limit {
        match policy.share() {
            Some(Share(percent)) => limit.share(u32::from(percent), 100),
            None => limit.share(1, self.instances.get()),
        }
    }

    /// Follows what the shared store answered to a ruling: one status for each payer.
    #[inline]
    pub(super) fn follow(&self, verb: Verb, ruling: &Ruling, statuses: &[Status]) {
        if ruling.policy.on_error() != OnError::Local {
            return;
        }
        for (check, status) in ruling.checks_now().zip(statuses) {
            let share = self.share_of(&ruling.policy, check.limit);
            let check = check.under(&share);
            if share.amount() == 0 {
                continue;
            }
            match verb {
                Verb::Check | Verb::Reserve => self.store.follow(&check, status.units(), status.remaining()),
                Verb::Refund => self.give_back(check, status.units()),
                Verb::Reset => self.store.follow_reset(&check),
                Verb::Peek => {}
            }
        }
    }

    /// Follows a refund of `units` that a payer of a ruling was charged.
    pub(super) fn follow_refund(&self, ruling: &Ruling, payer: usize, units: u64) {
        if ruling.policy.on_error() == OnError::Local
            && let Some(check) = ruling.checks_now().nth(payer)
        {
            let share = self.share_of(&ruling.policy, check.limit);
            self.give_back(check.with_charged_at(ruling.decided_at).under(&share), units);
        }
    }

    fn give_back(&self, check: Check<'_>, units: u64) {
        if let Ok(units) = Cost::new(units) {
            self.store.follow_refund(&check.cost(units));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_of_instances_share_a_number_of_at_least_one() {
        let instances = Instances::new(0);
        assert_eq!((instances.get(), Instances::default().get(), Instances::new(3).get()), (1, 1, 3));
        for (set, number) in [(7, 7), (0, 1)] {
            instances.clone().set(set);
            assert_eq!(instances.get(), number);
        }
    }

    #[test]
    fn shares_are_percentages() {
        for right in ["1%", "25%", "100%"] {
            assert_eq!(right.parse::<Share>().unwrap().to_string(), right);
        }
        for wrong in ["0%", "101%", "25", "%", "-5%", "1.5%", "+5%", "300%"] {
            assert!(wrong.parse::<Share>().unwrap_err().to_string().contains("25%"), "{wrong}");
        }
    }
}
