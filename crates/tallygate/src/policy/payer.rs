//! Further limits of a policy that pay, in order, what its own limit cannot.

use super::{Policy, PolicyError, key_name};
use crate::algorithm::Algorithm;
use crate::check::Cost;
use crate::limit::{IntoLimit, Limit, LimitError};

/// A limit that pays what those before it cannot: credits after a plan, overage after credits. It counts the subject of its policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payer {
    name: String,
    /// The name of its states in a store.
    pub(super) key_name: String,
    limit: Limit,
}

impl Payer {
    /// A payer with a name of its own: a [`Limit`] or its text.
    ///
    /// # Errors
    /// If the text is not a limit.
    pub fn new(name: impl Into<String>, limit: impl IntoLimit) -> Result<Self, LimitError> {
        Ok(Self { name: name.into(), key_name: String::new(), limit: limit.into_limit()? })
    }

    /// Its name in answers.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of its states in a store: that of its policy, and its own.
    pub fn key_name(&self) -> &str {
        &self.key_name
    }

    /// Its limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }
}

impl Policy {
    /// The most payers of one policy, its own limit included.
    pub const MAX_PAYERS: usize = 8;

    /// Sets the further limits that pay what its own cannot, in order. A cost is charged if all of them have enough together: its own
    /// limit pays as much as it has, then the first of these, and so on. Units are given back to the last payer first.
    ///
    /// ```
    /// use tallygate::policy::{Payer, Policy};
    ///
    /// let plan = Policy::new("tokens", "llm", "100000/month in UTC")?;
    /// let policy = plan.with_payers([Payer::new("credits", "50000/365d fixed_window")?, Payer::new("overage", "20000/month in UTC")?])?;
    /// assert_eq!(policy.capacity(), Some(170_000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the policy has no limit, or one of them is zero; if they hold more than a limit may, or are too many; if a name is empty, that
    /// of the policy or of another payer, or has a `/`; or if units may be taken in advance.
    pub fn with_payers(mut self, payers: impl IntoIterator<Item = Payer>) -> Result<Self, PolicyError> {
        let (policy, mut payers) = (self.name.clone(), payers.into_iter().collect::<Vec<_>>());
        if payers.is_empty() {
            self.payers = payers;
            return Ok(self);
        }
        if payers.len() >= Self::MAX_PAYERS {
            return Err(PolicyError::TooManyPayers { policy });
        }
        if self.allotment {
            return Err(PolicyError::PayersInAdvance { policy });
        }
        for (at, payer) in payers.iter().enumerate() {
            let twice = || payers[..at].iter().any(|other| other.name == payer.name);
            if payer.name.is_empty() || payer.name == policy || payer.name.contains('/') || twice() {
                return Err(PolicyError::PayerName { policy, payer: payer.name.clone() });
            }
        }
        let Some(own) = &self.limit else { return Err(PolicyError::PayersOfUnlimited { policy }) };
        if payers.iter().map(Payer::limit).chain([own]).any(|limit| limit.algorithm() == Algorithm::Concurrency) {
            return Err(PolicyError::PayersInFlight { policy });
        }
        let capacities: Vec<u64> = payers.iter().map(Payer::limit).chain([own]).map(Limit::capacity).collect();
        let (zero, sum) = (capacities.contains(&0), capacities.iter().sum::<u64>());
        if zero || sum > Cost::MAX.get() {
            return Err(PolicyError::PayersCapacity { policy });
        }
        for payer in &mut payers {
            payer.key_name = key_name(&self.domain, &format!("{policy}/{}", payer.name));
        }
        self.payers = payers;
        Ok(self)
    }

    /// The further limits that pay what its own cannot, in order.
    pub fn payers(&self) -> &[Payer] {
        &self.payers
    }

    /// The most units that can be had at once, of all payers together. `None` without a limit.
    pub fn capacity(&self) -> Option<u64> {
        let further: u64 = self.payers.iter().map(|payer| payer.limit.capacity()).sum();
        Some(self.limit.as_ref()?.capacity() + further)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(limit: &str) -> Policy {
        Policy::new("tokens", "llm", limit).unwrap()
    }

    fn payer(name: &str, limit: &str) -> Payer {
        Payer::new(name, limit).unwrap()
    }

    #[test]
    fn payers_have_states_of_their_own_beside_those_of_the_policy() {
        let policy = policy("10/min").with_payers([payer("credits", "5/h"), payer("overage", "3/h")]).unwrap();
        let names: Vec<_> = policy.payers().iter().map(|payer| (payer.name(), payer.key_name())).collect();
        assert_eq!(names, [("credits", "llm/tokens/credits"), ("overage", "llm/tokens/overage")]);
        assert_eq!((policy.capacity(), policy.clone().with_payers([]).unwrap().capacity()), (Some(18), Some(10)));
        assert_eq!(Policy::unlimited("p", "d").unwrap().capacity(), None);
    }

    #[test]
    fn payers_that_cannot_pay_are_refused_with_the_remedy() {
        let refused = |of: Policy, payers: &[(&str, &str)]| {
            let payers: Vec<Payer> = payers.iter().map(|(name, limit)| payer(name, limit)).collect();
            of.with_payers(payers).unwrap_err().to_string()
        };
        for name in ["", "tokens", "a/b"] {
            let said = refused(policy("10/min"), &[(name, "5/h")]);
            assert!(said.contains("a name of its own"), "{said}");
        }
        assert!(refused(policy("10/min"), &[("a", "5/h"), ("a", "6/h")]).contains("a name of its own"));
        assert!(refused(policy("10/min"), &[("a", "0/h")]).contains("at least 1"));
        assert!(refused(policy("0/min"), &[("a", "1/h")]).contains("at least 1"));
        assert!(refused(policy("10/min"), &[("a", "1000000000/h")]).contains("1000000000"));
        assert!(refused(Policy::unlimited("p", "d").unwrap(), &[("a", "1/h")]).contains("give it a limit"));
        assert!(refused(policy("10/min"), &[("a", "3 concurrent")]).contains("in flight"));
        assert!(refused(policy("3 concurrent"), &[("a", "1/h")]).contains("in flight"));
        assert!(refused(policy("10/min").with_allotment(true), &[("a", "1/h")]).contains("allotment"));
        let many: Vec<String> = (0..8).map(|at| at.to_string()).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "1/h")).collect();
        assert!(refused(policy("10/min"), &many).contains("at most 8"));
        assert_eq!(
            policy("10/min")
                .with_payers(many[1..].iter().map(|(name, limit)| payer(name, limit)))
                .unwrap()
                .payers()
                .len(),
            7
        );
    }
}
