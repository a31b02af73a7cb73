//! What has become of a hold, as JSON and as a problem: what the server answers and the command line prints.

use std::time::Duration;

use serde::Serialize;
use tallygate::hold::Refused::{DifferentUnits, Overrun, Renewed};
use tallygate::hold::{HoldPart, HoldState, Resolved};

use crate::{Problem, ProblemCode, millis_up};

/// What has become of a hold: of its units the most of any policy, and what each policy says.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct HoldAnswer<'a> {
    /// What has become of it.
    pub state: &'static str,
    /// For each number the largest of any policy; absent if the hold is not known.
    #[serde(flatten)]
    pub units: Option<HoldUnits>,
    /// Of an open hold, when it expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_after_ms: Option<u64>,
    /// In the order of the reservation; absent if the hold is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies: Option<Vec<HoldOfPolicy<'a>>>,
}

/// Units of a hold.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[non_exhaustive]
pub struct HoldUnits {
    /// Reserved.
    pub reserved: u64,
    /// Still held.
    pub held: u64,
    /// Used, and charged.
    pub settled: u64,
    /// Given back.
    pub refunded: u64,
    /// Used, and not charged.
    pub unpaid: u64,
    /// How far what is used of the limit is above its capacity, now.
    pub debt: u64,
}

/// What has become of a hold under one policy.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct HoldOfPolicy<'a> {
    /// The policy.
    pub policy: &'a str,
    /// Its units.
    #[serde(flatten)]
    pub units: HoldUnits,
    /// The capacity of the limit.
    pub limit: u64,
    /// Units left of the limit, now.
    pub remaining: u64,
}

impl<'a> HoldAnswer<'a> {
    /// What a store answered about a hold of `policies`, one name for each of its places, in order.
    pub fn new(policies: impl IntoIterator<Item = &'a str>, resolved: &Resolved) -> Self {
        let state = resolved.state.name();
        if resolved.state == HoldState::NoLongerKnown {
            return Self { state, units: None, expires_after_ms: None, policies: None };
        }
        let part = |(policy, part): (&'a str, &HoldPart)| HoldOfPolicy {
            policy,
            units: HoldUnits::of(part),
            limit: part.status.limit(),
            remaining: part.status.remaining(),
        };
        let policies: Vec<HoldOfPolicy<'a>> = policies.into_iter().zip(&resolved.parts).map(part).collect();
        let units = policies.iter().fold(HoldUnits::default(), |most, part| most.max(part.units));
        let open = resolved.expires_at.filter(|_| resolved.state == HoldState::Open);
        let expires_after_ms = open.map(|at| {
            let left = at.as_micros().saturating_sub(resolved.decided_at.as_micros());
            millis_up(Duration::from_micros(left))
        });
        Self { state, units: Some(units), expires_after_ms, policies: Some(policies) }
    }

    /// Why the hold was not resolved as asked, if it was not.
    pub fn problem(&self, resolved: &Resolved) -> Option<Problem> {
        let ended = |detail: &str| Problem::new(ProblemCode::HoldEnded, detail);
        match (resolved.refused, resolved.state) {
            (Some(DifferentUnits), _) => Some(Problem::new(
                ProblemCode::DifferentUnits,
                "Different numbers of units were reserved under the policies of this hold: name the units of each policy, or \
                 leave them out if all were used.",
            )),
            (Some(Overrun(at)), _) => {
                let part = self.policies.iter().flatten().nth(at);
                let (policy, held) = part.map_or(("", 0), |part| (part.policy, part.units.held));
                let policy = policy.escape_debug();
                Some(Problem::new(
                    ProblemCode::OverrunRefused,
                    format!(
                        "`{policy}` holds {held} units of this hold, and refuses to settle more: settle at most {held}, and \
                         reserve what is missing."
                    ),
                ))
            }
            (Some(Renewed), _) => Some(Problem::new(
                ProblemCode::HoldRenewed,
                "The hold was renewed since, and has another token: use the `hold` of the last answer to /v1/renew. Nothing was changed.",
            )),
            _ if resolved.done => None,
            (None, HoldState::Settled) => Some(ended("The hold was settled before; `settled` and `refunded` say how.")),
            (None, HoldState::Cancelled) => Some(ended("The hold was cancelled before; its units were given back.")),
            (None, HoldState::Expired) => Some(ended(
                "The hold expired before this call: `settled` stays charged, and `refunded` was given back, as `on_abandon` \
                 says; reserve for longer, or extend in time.",
            )),
            _ => Some(ended(
                "The hold is not known: it was resolved or expired too long ago, or its state was reset or lost.",
            )),
        }
    }
}

impl HoldUnits {
    fn of(part: &HoldPart) -> Self {
        let HoldPart { reserved, held, settled, refunded, unpaid, status, .. } = *part;
        Self { reserved, held, settled, refunded, unpaid, debt: status.debt() }
    }

    fn max(self, other: Self) -> Self {
        Self {
            reserved: self.reserved.max(other.reserved),
            held: self.held.max(other.held),
            settled: self.settled.max(other.settled),
            refunded: self.refunded.max(other.refunded),
            unpaid: self.unpaid.max(other.unpaid),
            debt: self.debt.max(other.debt),
        }
    }
}
