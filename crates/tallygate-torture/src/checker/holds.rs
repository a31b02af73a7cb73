//! What holders have used, by what they were answered: neither more nor less is used in the end, and never more than the limit at a time.

use tallygate::Algorithm;

use crate::history::{Holding, Log, StateKey, Violation};

/// Compares a state of which units are only reserved with its history.
pub fn check(log: &Log, key: usize, state: &StateKey) -> Vec<Violation> {
    let name = format!("{}/{} ({})", state.policy, state.subject, state.limit);
    let mut violations = Vec::new();
    let mut complain = |check, what: String| violations.push(Violation::new(check, format!("{name}: {what}")));
    let mine = || log.holdings.iter().filter(|holding| holding.keys.contains(&key));
    let lost = log.losses.iter().any(|loss| loss.concerns(key));
    let Some(last) = log.peeked.get(key).copied().flatten() else { return violations };
    let used = state.limit.capacity() - last.remaining;
    // What was lost may have come back as it was before it was settled; a lost state may be counted from zero.
    let most: u64 = mine().map(|holding| if lost { holding.reserved } else { holding.used(key).most }).sum();
    if used > most {
        complain("denied calls charge nobody", format!("{used} units are used, at most {most} were reserved"));
    }
    if lost {
        return violations;
    }
    let least: u64 = mine().map(|holding| holding.used(key).least).sum();
    // A bucket of a day regains a unit now and then.
    let regained = u64::from(state.limit.algorithm() == Algorithm::TokenBucket);
    if used + regained < least {
        complain("nothing is forgotten", format!("{used} units are used, {least} were settled"));
    }
    if last.held > 0 {
        complain("holds end", format!("{} units are held after every deadline", last.held));
    }
    for wrong in mine().filter_map(|holding| holding.wrong.as_ref()) {
        complain("a hold ends once", wrong.clone());
    }
    if let Some(most) = most_at_a_time(mine(), key).filter(|most| *most > state.limit.capacity()) {
        complain("bound", format!("{most} units were held or settled at one time"));
    }
    violations
}

/// The most units that were certainly used at one time.
fn most_at_a_time<'l>(holdings: impl Iterator<Item = &'l Holding>, key: usize) -> Option<u64> {
    let mut changes = Vec::new();
    for holding in holdings {
        let (Some(from), used) = (holding.granted_at, holding.used(key)) else { continue };
        match (holding.ended_at, holding.abandoned) {
            (Some(to), _) => changes.extend([(from, 0, holding.reserved), (to, holding.reserved, used.least)]),
            // It counts until its deadline, and perhaps longer: what is certain is what stays.
            _ => changes.push((from, 0, used.least)),
        }
    }
    // What is given back at an instant counts before what is taken at it.
    changes.sort_unstable_by_key(|&(at, before, after)| (at, after > before));
    let mut used = 0;
    let sums = changes.into_iter().map(|(_, before, after)| {
        used = used + after - before;
        used
    });
    sums.max()
}
