//! Fewer faults and fewer callers that still show a violation.

use crate::history::Violation;
use crate::round;
use crate::schedule::Schedule;

/// Tries to make a failing schedule smaller, in at most `tries` rounds: without half of the faults, without one of them,
/// with half of the callers. The real world does not repeat itself, so what is dropped may matter a little; what is kept
/// has failed.
#[must_use]
pub fn minimise(schedule: &Schedule, violation: &Violation, mut tries: usize) -> Schedule {
    let mut best = schedule.clone();
    let mut piece = best.steps.len().div_ceil(2);
    let still_fails = |candidate: &Schedule| {
        let found = round::run(candidate).checked.violations;
        found.iter().any(|found| found.check == violation.check)
    };
    while piece > 0 && tries > 0 {
        let numbers: Vec<usize> = best.steps.iter().map(|step| step.number).collect();
        let mut smaller = None;
        for dropped in numbers.chunks(piece) {
            if tries == 0 {
                break;
            }
            tries -= 1;
            let kept: Vec<usize> = numbers.iter().copied().filter(|number| !dropped.contains(number)).collect();
            let candidate = best.reduced(&kept, best.load.callers);
            if still_fails(&candidate) {
                smaller = Some(candidate);
                break;
            }
        }
        match smaller {
            Some(candidate) => {
                piece = candidate.steps.len().div_ceil(2).min(piece);
                best = candidate;
            }
            None => piece /= 2,
        }
    }
    while best.load.callers > 1 && tries > 0 {
        tries -= 1;
        let numbers: Vec<usize> = best.steps.iter().map(|step| step.number).collect();
        let candidate = best.reduced(&numbers, best.load.callers / 2);
        if !still_fails(&candidate) {
            break;
        }
        best = candidate;
    }
    best
}
