//! What can be wrong with a question. The store is not asked then.

use std::time::Duration;

use super::{Call, Verb, fund};
use crate::check::{Check, Cost, CostError};
use crate::hold::{HoldTerms, Reservation};
use crate::key::KeyError;
use crate::request::InvalidRequestId;

/// An invalid question. The store was not asked, and `on_error` must not turn this into an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidCheck {
    /// The cost is above the capacity of the limit, so waiting does not help.
    #[error(
        "a cost of {cost} can never pass `{policy}`, which holds at most {capacity}: lower the cost or raise the limit"
    )]
    CostAboveCapacity {
        /// The policy.
        policy: String,
        /// The cost.
        cost: u64,
        /// The capacity of the limit.
        capacity: u64,
    },
    /// A call that takes what is left needs more than a limit ever has.
    #[error(
        "at least {at_least} units can never pass `{policy}`, which holds at most {capacity}: lower the least or raise the limit"
    )]
    AtLeastAboveCapacity {
        /// The policy.
        policy: String,
        /// The fewest units.
        at_least: u64,
        /// The capacity of the limit.
        capacity: u64,
    },
    /// Two checks of one call are about the same state.
    #[error("two checks of one call use policy `{policy}` for the same subject: give each limit its own policy name")]
    SameKey {
        /// The policy.
        policy: String,
    },
    /// The policy name or the subject cannot be a key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The cost is zero or too large.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The id of the call cannot be one.
    #[error(transparent)]
    RequestId(#[from] InvalidRequestId),
    /// A call that takes what is left asks for more than it may take.
    #[error("at least {at_least} units are asked for, but at most {at_most}: lower the first or raise the second")]
    AtLeastAboveMost {
        /// The fewest units.
        at_least: Cost,
        /// The most units.
        at_most: Cost,
    },
    /// More units would be held than the limit grants to holds.
    #[error(
        "a hold of {units} can never pass `{policy}`, of which at most {most} may be held: reserve less or raise the limit"
    )]
    HoldAboveMost {
        /// The policy.
        policy: String,
        /// The units to hold.
        units: u64,
        /// The most that may be held.
        most: u64,
    },
    /// Units would be held for no time, or for longer than the limit grants.
    #[error(
        "a hold under `{policy}` lasts from 1 ms to {longest:?}, not {ttl:?}: choose another time, and extend it if need be"
    )]
    HoldTtl {
        /// The policy.
        policy: String,
        /// The time.
        ttl: Duration,
        /// The longest.
        longest: Duration,
    },
    /// Units of a concurrency limit would be charged or given back without a hold.
    #[error("`{policy}` limits what is in flight, so `{}` cannot be used with it: reserve, and settle or cancel when the work is done", .verb.name())]
    OnlyReserved {
        /// The policy.
        policy: String,
        /// What was asked for.
        verb: Verb,
    },
    /// The first check of a call is a further payer.
    #[error("`{policy}` pays what the check before it cannot, but no check is before it: name the first payer first")]
    NoFirstPayer {
        /// The policy.
        policy: String,
    },
    /// The payers of one cost are of several subjects.
    #[error(
        "`{policy}` pays the rest of the check before it, which has another subject: the payers of a cost are limits of one subject"
    )]
    PayersOfSubjects {
        /// The policy of the later payer.
        policy: String,
    },
    /// The payers of one cost differ in what belongs to the cost.
    #[error(
        "`{policy}` pays the rest of the check before it, which has another cost, mode or excess: give all payers of a cost the same"
    )]
    PayersDiffer {
        /// The policy of the later payer.
        policy: String,
    },
    /// A payer has a limit of zero, or all of them together hold more than a limit may.
    #[error(
        "the payers of `{policy}` have limits of at least 1, and together at most {}, units: leave out what never pays, or lower the others",
        Cost::MAX
    )]
    PayersCapacity {
        /// The policy of the first payer.
        policy: String,
    },
    /// Units would be held of a cost with several payers.
    #[error("`{policy}` is one of several payers of a cost, of which nothing can be held: check and refund instead")]
    HoldOverPayers {
        /// The policy.
        policy: String,
    },
    /// The call has no checks, or too many.
    #[error("a call has 1 to {} checks; this one has {count}", Call::MAX_CHECKS)]
    Count {
        /// The number of checks.
        count: usize,
    },
}

/// Reports what is wrong with the checks of a call, if anything is.
pub(super) fn validate(verb: Verb, checks: &[Check<'_>]) -> Result<(), InvalidCheck> {
    if checks.is_empty() || checks.len() > Call::MAX_CHECKS {
        return Err(InvalidCheck::Count { count: checks.len() });
    }
    for fund in fund::each(checks, Check::pays_rest) {
        let payers = &checks[fund];
        let (check, capacity) = (&payers[0], fund::capacity(payers));
        if payers.len() > 1 || check.pays_rest() {
            validate_payers(verb, payers, capacity)?;
        }
        // Of a limit that changes, the store knows which is in force.
        let changes = payers.iter().any(|check| check.changes().is_some());
        if verb.decides() && check.cost.get() > capacity && !check.is_zero() && !changes {
            let (policy, cost) = (check.key.policy().to_owned(), check.cost.get());
            return Err(InvalidCheck::CostAboveCapacity { policy, cost, capacity });
        }
    }
    let cannot = |check: &&Check<'_>| check.limit.is_concurrency() && (check.is_nothing(verb) || check.drains());
    if let Some(check) = checks.iter().find(cannot).filter(|check| !check.is_zero()) {
        let policy = check.key.policy().to_owned();
        return Err(InvalidCheck::OnlyReserved { policy, verb });
    }
    // At most 32 checks: comparing all pairs is cheaper than hashing.
    let repeated = |(at, check): &(usize, &Check<'_>)| checks[..*at].iter().any(|other| other.key == check.key);
    if let Some((_, twice)) = checks.iter().enumerate().find(repeated) {
        return Err(InvalidCheck::SameKey { policy: twice.key.policy().to_owned() });
    }
    Ok(())
}

/// Whether these checks can pay one cost.
#[cold]
fn validate_payers(verb: Verb, payers: &[Check<'_>], capacity: u64) -> Result<(), InvalidCheck> {
    let first = &payers[0];
    let policy = |check: &Check<'_>| check.key.policy().to_owned();
    if first.pays_rest() {
        return Err(InvalidCheck::NoFirstPayer { policy: policy(first) });
    }
    if verb == Verb::Reserve && payers.len() > 1 {
        return Err(InvalidCheck::HoldOverPayers { policy: policy(first) });
    }
    // What is in flight is held, and nothing can be held of several payers.
    if let Some(check) = payers.iter().find(|check| verb != Verb::Reserve && check.limit.is_concurrency()) {
        return Err(InvalidCheck::OnlyReserved { policy: policy(check), verb });
    }
    if payers.iter().any(Check::is_zero) || capacity > Cost::MAX.get() {
        return Err(InvalidCheck::PayersCapacity { policy: policy(first) });
    }
    for check in payers {
        if check.key.subject() != first.key.subject() {
            return Err(InvalidCheck::PayersOfSubjects { policy: policy(check) });
        }
        let terms = |check: &Check<'_>| (check.cost, check.mode(), check.drains());
        if terms(check) != terms(first) {
            return Err(InvalidCheck::PayersDiffer { policy: policy(check) });
        }
    }
    Ok(())
}

/// Whether a reservation is within what the limit of a check grants to holds.
pub(crate) fn validate_hold(check: &Check<'_>, reservation: &Reservation) -> Result<(), InvalidCheck> {
    let terms = check.terms();
    let (most, units, ttl) = (terms.most_units(check.limit.capacity()), check.cost.get(), reservation.ttl());
    let policy = || check.key.policy().to_owned();
    if !HoldTerms::accepts(ttl, terms.longest()) {
        return Err(InvalidCheck::HoldTtl { policy: policy(), ttl, longest: terms.longest() });
    }
    if units > most && !check.is_zero() && !check.is_hopeless() && check.changes().is_none() {
        return Err(InvalidCheck::HoldAboveMost { policy: policy(), units, most });
    }
    Ok(())
}
