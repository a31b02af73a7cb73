//! The explanation as JSON.

use serde::Serialize;
use tallygate::clock::Timestamp;
use tallygate::decision::Source;
use tallygate::policy::Descriptor;
use tallygate_http::{Answer, millis_up, verdict_answer};

use super::{Applying, Explained};

/// One object: the call, each policy, and the answer as the server would give it.
#[derive(Serialize)]
pub(super) struct Json<'e> {
    domain: &'e str,
    descriptors: Vec<Vec<Entry<'e>>>,
    cost: u64,
    policies: Vec<Policy<'e>>,
    answer: Answer<'e>,
}

/// In a list, because the order has a meaning and a key may occur twice.
#[derive(Serialize)]
struct Entry<'e> {
    key: &'e str,
    value: &'e str,
}

#[derive(Serialize)]
struct Policy<'e> {
    policy: &'e str,
    descriptor: usize,
    applies: bool,
    because: &'e str,
    #[serde(flatten)]
    ruling: Option<Ruling<'e>>,
}

/// What a policy that applies says.
#[derive(Serialize)]
struct Ruling<'e> {
    mode: &'static str,
    limit: Option<String>,
    own_limit: bool,
    subject: &'e str,
    key: Option<&'e str>,
    allowed: bool,
    source: &'static str,
    remaining: Option<u64>,
    would_charge: u64,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    /// When the window of a calendar ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    reset_at_ms: Option<u64>,
}

impl<'e> Json<'e> {
    pub(super) fn new(explained: &'e Explained<'_>) -> Self {
        let others = explained.others.iter().map(|reason| Policy {
            policy: reason.policy.name(),
            descriptor: reason.descriptor,
            applies: false,
            because: &reason.because,
            ruling: None,
        });
        let decided_at = explained.verdict.decided_at();
        Self {
            domain: explained.domain,
            descriptors: explained.descriptors.iter().map(entries).collect(),
            cost: explained.cost.get(),
            policies: explained.applying.iter().map(|one| applying(one, decided_at)).chain(others).collect(),
            answer: verdict_answer(explained.verdict),
        }
    }
}

fn applying<'e>(one: &'e Applying<'_>, decided_at: Option<Timestamp>) -> Policy<'e> {
    let ruling = one.ruling;
    let (policy, status) = (ruling.policy(), ruling.status());
    let limited = ruling.source() != Source::Unlimited;
    let said = Ruling {
        mode: policy.mode().name(),
        limit: ruling.limit().map(ToString::to_string),
        own_limit: ruling.limit() != policy.limit(),
        subject: ruling.subject(),
        key: one.key.as_deref(),
        allowed: status.allowed(),
        source: ruling.source().name(),
        remaining: limited.then(|| status.remaining()),
        would_charge: one.would_charge,
        retry_after_ms: status.retry_after().map(millis_up),
        reset_after_ms: millis_up(status.reset_after()),
        reset_at_ms: decided_at.and_then(|at| status.reset_at(at)).map(|at| at.as_micros().div_ceil(1000)),
    };
    let (name, descriptor) = (policy.name(), ruling.descriptor());
    Policy { policy: name, descriptor, applies: true, because: &one.because, ruling: Some(said) }
}

fn entries(descriptor: &Descriptor) -> Vec<Entry<'_>> {
    descriptor.entries().iter().map(|(key, value)| Entry { key, value }).collect()
}
