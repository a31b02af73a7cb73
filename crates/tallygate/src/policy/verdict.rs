//! The answer to a call under policies.

use std::sync::Arc;

use super::{Mode, Policy, Subject};
use crate::check::{Check, Cost};
use crate::clock::Timestamp;
use crate::decision::{Source, Status};
use crate::few::Few;
use crate::key::Key;
use crate::limit::Limit;
use crate::store::{MemoryStore, Store, StoreError};

/// The answer to a call under policies: what became of it, and one ruling for each policy that applied to a descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub(super) rulings: Few<Ruling>,
    pub(super) decided_at: Option<Timestamp>,
    pub(super) split: bool,
    /// In a box, as it is rare and large.
    pub(super) store_error: Option<Box<StoreError>>,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It may proceed.
    Allowed,
    /// A limit is used up.
    Denied,
    /// The store cannot answer, and a policy denies what it cannot decide.
    Unavailable,
}

/// What one policy says about one descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    pub(super) policy: Arc<Policy>,
    pub(super) place: usize,
    pub(super) descriptor: usize,
    pub(super) subject: Subject,
    /// The limit of this caller, if it is not the policy's own.
    pub(super) own: Option<Option<Limit>>,
    pub(super) status: Status,
    pub(super) source: Source,
    pub(super) asked: u64,
    pub(super) charged: u64,
    /// When, on the clock of whoever charged it.
    pub(super) charged_at: Option<Timestamp>,
    pub(super) given_back: u64,
}

impl Verdict {
    /// What becomes of the call.
    pub fn outcome(&self) -> Outcome {
        let denied = |ruling: &&Ruling| ruling.policy.mode() == Mode::Enforce && !ruling.status.allowed();
        let mut refusals = self.rulings.iter().filter(denied).peekable();
        if refusals.peek().is_some() {
            let by_limit = refusals.any(|ruling| ruling.source != Source::OnErrorDeny);
            return if by_limit { Outcome::Denied } else { Outcome::Unavailable };
        }
        let quotas = || self.rulings.iter().filter(|ruling| ruling.policy.mode() == Mode::Quota);
        if quotas().next().is_some() && quotas().all(|ruling| !ruling.status.allowed()) {
            let by_limit = quotas().any(|ruling| ruling.source != Source::OnErrorDeny);
            return if by_limit { Outcome::Denied } else { Outcome::Unavailable };
        }
        Outcome::Allowed
    }

    /// Whether the call may proceed.
    pub fn allowed(&self) -> bool {
        self.outcome() == Outcome::Allowed
    }

    /// One ruling for each policy that applied, in the order of policies and descriptors.
    pub fn rulings(&self) -> &[Ruling] {
        &self.rulings
    }

    /// The ruling that binds: of those that can refuse, the denied one with the longest wait, or else the one with least
    /// left. `None` if no limit applied.
    pub fn binding(&self) -> Option<&Ruling> {
        let limits = self.rulings.iter().filter(|ruling| ruling.mode() != Mode::Shadow && ruling.limit().is_some());
        let outcome = self.outcome();
        let binds = |ruling: &&Ruling| match outcome {
            // A quota that is used up binds only if the call is denied.
            Outcome::Allowed => ruling.mode() != Mode::Quota || ruling.status.allowed(),
            // Of a policy that could not be evaluated nobody knows the wait.
            Outcome::Denied => ruling.source != Source::OnErrorDeny,
            Outcome::Unavailable => true,
        };
        limits.clone().filter(binds).max_by(|a, b| a.status.tightness(&b.status)).or_else(|| limits.clone().next())
    }

    /// Gives back what the call was charged, to `store` or, what was decided without it, to `local`: for those who learn only
    /// afterwards whether it counts. Answers the verdict as it is then. What cannot be given back stays charged.
    pub async fn give_back<S: Store>(&self, store: &S, local: &MemoryStore) -> Self {
        let mut after = self.clone();
        for at in 0..after.rulings.len() {
            let ruling = &self.rulings[at];
            let (Ok(charged), Some(limit)) = (Cost::new(ruling.charged), ruling.limit()) else { continue };
            // One state that several descriptors met was charged once.
            let same = |other: &Ruling| (other.place, &other.subject) == (ruling.place, &ruling.subject);
            let given = match self.rulings[..at].iter().position(same) {
                Some(earlier) => after.rulings[earlier].given_back,
                None => {
                    let key = Key::new(ruling.policy.key_name(), &ruling.subject).expect("it was a key before");
                    let check = Check::new(key, limit).cost(charged);
                    let given = match ruling.source {
                        Source::OnErrorLocal => local.refund(&check, ruling.charged_at).await,
                        _ => store.refund(&check, ruling.charged_at).await,
                    };
                    given.unwrap_or(0)
                }
            };
            let ruling = &mut after.rulings[at];
            ruling.given_back = given;
            ruling.charged -= given.min(ruling.charged);
            ruling.status = ruling.status.with_given_back(given);
        }
        after
    }

    /// The instant on the store's clock as of which it was decided, if a store was asked. A refund names it.
    pub fn decided_at(&self) -> Option<Timestamp> {
        self.decided_at
    }

    /// Whether limits in different slots of a cluster were charged one after the other.
    pub fn split(&self) -> bool {
        self.split
    }

    /// Why the store could not answer, if it could not.
    pub fn store_error(&self) -> Option<&StoreError> {
        self.store_error.as_deref()
    }
}

impl Ruling {
    /// The policy.
    pub fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// The place of the policy among all of the set.
    pub fn place(&self) -> usize {
        self.place
    }

    /// Which descriptor of the call.
    pub fn descriptor(&self) -> usize {
        self.descriptor
    }

    /// Whom it counts.
    pub fn subject(&self) -> &str {
        self.subject.as_str()
    }

    /// The limit that held: the policy's, or this caller's own. `None` never refuses.
    pub fn limit(&self) -> Option<&Limit> {
        self.policy.limit_or(self.own.as_ref())
    }

    /// What the limit says.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Where that came from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Whether the policy refuses.
    pub fn mode(&self) -> Mode {
        self.policy.mode()
    }

    /// The units that were asked for; zero for a look.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// The units that were charged.
    pub fn charged(&self) -> u64 {
        self.charged
    }

    /// The units that were given back.
    pub fn given_back(&self) -> u64 {
        self.given_back
    }

    /// Whether the limit is nearly reached, as the policy defines it.
    pub fn near(&self) -> bool {
        let (limit, used) =
            (self.status.limit(), self.status.limit() - self.status.remaining().min(self.status.limit()));
        self.limit().is_some() && self.status.allowed() && used * 100 > limit * u64::from(self.policy.near())
    }
}
