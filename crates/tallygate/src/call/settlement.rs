//! What a call takes from each of its states, once each of its checks was judged.

use crate::policy::Mode;

/// The result of a call after each of its checks was judged on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settlement {
    enforced: bool,
    allowed: bool,
}

/// What a call takes from one of its states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taking {
    /// The full cost.
    Cost,
    /// Whatever is left.
    Rest,
    /// Nothing.
    Nothing,
}

impl Settlement {
    /// Settles a call from the mode of each check and whether it fits. `denied` if the call is known to be denied.
    pub fn of(denied: bool, judged: impl Iterator<Item = (Mode, bool)>) -> Self {
        let (mut enforced, mut quotas, mut quota) = (!denied, false, false);
        for (mode, fits) in judged {
            match mode {
                Mode::Enforce => enforced &= fits,
                Mode::Quota => (quotas, quota) = (true, quota || fits),
                Mode::Shadow => {}
            }
        }
        Self { enforced, allowed: enforced && (quota || !quotas) }
    }

    /// Whether the call may proceed.
    pub fn allowed(self) -> bool {
        self.allowed
    }

    /// How many units an allowed call takes that takes at most `most` of what is left, given the mode of each check and what its
    /// state has left: no more than any enforcing limit has, and than the quota that has most.
    pub fn granted(most: u64, left: impl Iterator<Item = (Mode, u64)>) -> u64 {
        let (mut granted, mut quota) = (most, None);
        for (mode, left) in left {
            match mode {
                Mode::Enforce => granted = granted.min(left),
                Mode::Quota => quota = quota.max(Some(left)),
                Mode::Shadow => {}
            }
        }
        granted.min(quota.unwrap_or(most))
    }

    /// What a check that fits takes of `granted` units, if its state has `left`. A quota pays all or nothing, a shadow what it can.
    pub fn part_of_grant(mode: Mode, granted: u64, left: u64) -> u64 {
        match mode {
            Mode::Quota if left < granted => 0,
            _ => granted.min(left),
        }
    }

    /// What to take from the state of a check, given whether it `fits`. Enforcing policies are charged all or none,
    /// quotas unless an enforcing policy denies, shadows if the call is allowed. A cost that does not fit is drained if
    /// the policy says so.
    pub fn taking(self, mode: Mode, drains: bool, fits: bool) -> Taking {
        let may_take = match mode {
            Mode::Enforce => self.allowed || !fits,
            Mode::Quota => self.enforced,
            Mode::Shadow => self.allowed,
        };
        match (may_take, fits) {
            (true, true) => Taking::Cost,
            (true, false) if drains => Taking::Rest,
            _ => Taking::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_what_all_enforcing_limits_have_and_one_quota() {
        let (enforce, quota, shadow) = (Mode::Enforce, Mode::Quota, Mode::Shadow);
        let granted = |left: &[(Mode, u64)]| Settlement::granted(10, left.iter().copied());
        assert_eq!(granted(&[]), 10);
        assert_eq!(granted(&[(enforce, 30), (shadow, 1)]), 10);
        assert_eq!(granted(&[(enforce, 7), (enforce, 3), (quota, 20)]), 3);
        assert_eq!(granted(&[(enforce, 7), (quota, 2), (quota, 5), (shadow, 1)]), 5);
        let parts = [enforce, quota, shadow].map(|mode| Settlement::part_of_grant(mode, 5, 5));
        assert_eq!(parts, [5; 3]);
        assert_eq!([quota, shadow].map(|mode| Settlement::part_of_grant(mode, 5, 4)), [0, 4]);
    }
}
