//! The explanation as JSON.

use serde_json::{Value, json};
use tallygate::{Descriptor, Source};
use tallygate_http::{millis_up, verdict_json};

use super::{Applying, Explained};

/// One object: the call, what became of each policy, and the answer as the server would give it.
pub(super) fn explained(explained: &Explained<'_>) -> Value {
    let applying = explained.applying.iter().map(applying);
    let others = explained.others.iter().map(|(policy, reason)| {
        json!({
            "policy": policy.name(),
            "descriptor": reason.descriptor,
            "applies": false,
            "because": reason.because,
        })
    });
    json!({
        "domain": explained.domain,
        "descriptors": explained.descriptors.iter().map(entries).collect::<Vec<_>>(),
        "cost": explained.cost.get(),
        "policies": applying.chain(others).collect::<Vec<_>>(),
        "answer": verdict_json(explained.verdict),
    })
}

fn applying(one: &Applying<'_>) -> Value {
    let ruling = one.ruling;
    let (policy, status) = (ruling.policy(), ruling.status());
    let limited = ruling.source() != Source::Unlimited;
    json!({
        "policy": policy.name(),
        "descriptor": ruling.descriptor(),
        "applies": true,
        "because": one.because,
        "mode": policy.mode().name(),
        "limit": ruling.limit().map(ToString::to_string),
        "own_limit": ruling.limit() != policy.limit(),
        "subject": ruling.subject(),
        "key": one.key,
        "allowed": status.allowed(),
        "source": ruling.source().name(),
        "remaining": limited.then(|| status.remaining()),
        "would_charge": one.would_charge,
        "retry_after_ms": status.retry_after().map(millis_up),
        "reset_after_ms": millis_up(status.reset_after()),
    })
}

/// A list, for the order has a meaning and a key may come twice.
fn entries(descriptor: &Descriptor) -> Value {
    descriptor.entries().iter().map(|(key, value)| json!({ "key": key, "value": value })).collect()
}
