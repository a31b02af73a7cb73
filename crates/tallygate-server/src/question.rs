//! What a call asks, whichever edge reads it.

use std::time::Duration;

use tallygate::call::{UpTo, Verb};
use tallygate::clock::Timestamp;
use tallygate::key::KeyError;
use tallygate::policy::{Action, Ask, Descriptor, Domain};
use tallygate::request::RequestId;
use tallygate::{Check, Cost, Key, Limit};

use crate::answer::AnswerError;

#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) verb: Verb,
    pub(crate) about: About,
    /// For a check that takes what is left.
    pub(crate) up_to: Option<UpTo>,
    /// For a reservation.
    pub(crate) reserving: Option<Reserving>,
    /// For a check or a reservation that may be repeated.
    pub(crate) request_id: Option<RequestId>,
}

/// For how long units are held, and how many of single policies. The others hold the cost.
#[derive(Debug)]
pub(crate) struct Reserving {
    pub(crate) ttl: Duration,
    pub(crate) units: Vec<(String, Cost)>,
    /// The descriptors whose policies hold what was learned, if they learn, unless they are named.
    pub(crate) estimated: Estimated,
    /// Whether it may be for less, if a policy does not grant as long.
    pub(crate) at_most: bool,
}

/// The descriptors for which a reservation does not say how many units.
#[derive(Debug)]
pub(crate) enum Estimated {
    All,
    Only(Vec<usize>),
}

impl Estimated {
    pub(crate) fn has(&self, descriptor: usize) -> bool {
        match self {
            Self::All => true,
            Self::Only(descriptors) => descriptors.contains(&descriptor),
        }
    }
}

impl Reserving {
    /// How long units are held if the call does not say.
    pub(crate) const TTL: Duration = Duration::from_secs(60);
}

/// Which limits a call is about.
#[derive(Debug)]
pub(crate) enum About {
    /// The policies of a domain that the descriptors match. Each descriptor has its own action, because Envoy's protocol
    /// can mix checks, peeks and refunds in one call.
    Policies { domain: String, asks: Vec<Ask> },
    /// A limit that the call carries.
    AdHoc(AdHoc),
}

/// A key and its limit, validated by [`AdHoc::new`].
#[derive(Debug)]
pub(crate) struct AdHoc {
    pub(crate) policy: String,
    pub(crate) key: String,
    pub(crate) limit: Limit,
    pub(crate) cost: Cost,
    charged_at: Option<Timestamp>,
}

impl Question {
    /// About the policies of `domain`, with the same action for every descriptor. A refund returns units charged at
    /// `charged_at`, by default just now.
    pub(crate) fn by_policy(
        verb: Verb,
        domain: String,
        descriptors: impl IntoIterator<Item = Descriptor>,
        cost: Cost,
        charged_at: Option<Timestamp>,
    ) -> Self {
        // The evaluation makes a reservation of a check.
        let asked = if verb == Verb::Reserve { Verb::Check } else { verb };
        let action = Action::new(asked, cost).with_charged_at(charged_at);
        let asks = descriptors.into_iter().map(|descriptor| Ask::new(descriptor, action)).collect();
        Self { verb, about: About::Policies { domain, asks }, up_to: None, reserving: None, request_id: None }
    }

    /// Whether a descriptor asks for units back. Only Envoy's protocol mixes verbs.
    pub(crate) fn refunds(&self) -> bool {
        match &self.about {
            About::Policies { asks, .. } => asks.iter().any(|ask| ask.action.verb == Verb::Refund),
            About::AdHoc(_) => self.verb == Verb::Refund,
        }
    }

    /// For how long a reservation holds its units.
    pub(crate) fn ttl(&self) -> Duration {
        self.reserving.as_ref().map_or(Reserving::TTL, |reserving| reserving.ttl)
    }

    /// Whether a reservation may hold its units for less long, if a policy does not grant as long.
    pub(crate) fn takes_shorter(&self) -> bool {
        self.reserving.as_ref().is_some_and(|reserving| reserving.at_most)
    }

    /// The units that are reserved of single policies, by the names of their keys.
    pub(crate) fn units_of(&self, domain: &Domain) -> Result<Vec<(String, Cost)>, AnswerError> {
        let units = self.reserving.iter().flat_map(|reserving| &reserving.units);
        let of_policy = |(name, units): &(String, Cost)| {
            let found = domain.policies().iter().find(|policy| policy.name() == name);
            let found = found.ok_or_else(|| AnswerError::unknown_policy(domain, name))?;
            Ok((found.key_name().to_owned(), *units))
        };
        units.map(of_policy).collect()
    }

    /// `None` for ad hoc questions.
    pub(crate) fn domain(&self) -> Option<&str> {
        match &self.about {
            About::Policies { domain, .. } => Some(domain),
            About::AdHoc(_) => None,
        }
    }
}

impl AdHoc {
    pub(crate) fn new(
        policy: String,
        key: String,
        limit: Limit,
        cost: Cost,
        charged_at: Option<Timestamp>,
    ) -> Result<Self, KeyError> {
        Key::new(&policy, &key)?;
        Ok(Self { policy, key, limit, cost, charged_at })
    }

    pub(crate) fn check(&self) -> Check<'_> {
        let key = Key::new(&self.policy, &self.key).expect("validated by `new`");
        Check::new(key, &self.limit).cost(self.cost).with_charged_at(self.charged_at)
    }
}
