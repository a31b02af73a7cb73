//! Holds by Envoy's protocol: a descriptor that asks for one, and another that settles it when the stream is done.
//!
//! Envoy keeps the metadata of an answer for as long as a stream lasts, and can put it into the descriptors that it sends at the end
//! ([ADR 0042](../../../../../docs/adr/0042-holds-are-listed-in-pages-and-settled-by-proxies.md)). The keys of entries are those of the proxy's configuration: no client
//! can add one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tallygate::call::Verb;
use tallygate::hold::{Hold, HoldTerms, Holds as _, Resolve, Units};
use tallygate::policy::Verdict;
use tallygate::{CheckError, Cost, Limit, StoreError};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::answer::AnswerError;
use crate::app::App;
use crate::decision_event::Api;
use crate::edge::bounds::MAX_DESCRIPTORS;
use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::question::{Estimated, Question, Reserving};

/// The entry of a descriptor that asks for a hold. Its value is for how long, such as `60s`.
const RESERVE: &str = "tallygate.reserve";

/// The entry of a descriptor that settles a hold. Its value is what the metadata of the answer had under [`METADATA`].
const HOLD: &str = "tallygate.hold";

/// Where the hold is in the metadata of an answer.
const METADATA: &str = "hold";

/// What a request says about holds, taken out of it.
#[derive(Debug, Default)]
pub(super) struct Holding {
    /// What it settles, with the places of these descriptors.
    pub(super) settlements: Vec<(usize, Option<Settlement>)>,
    /// For how long it reserves, and the descriptors whose policies hold what was estimated.
    pub(super) reserving: Option<Stream>,
}

/// A reservation for a stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    ttl: Duration,
    /// The descriptors whose policies are settled.
    places: Vec<usize>,
    /// Those of them that do not say how many units.
    estimated: Vec<usize>,
}

/// A hold, and what was used of it.
#[derive(Debug, Clone)]
pub(super) struct Settlement {
    hold: Hold,
    units: Units,
}

impl Holding {
    /// Takes the entries and descriptors about holds out of a request.
    pub(super) fn take(request: &mut RateLimitRequest) -> Self {
        let mut holding = Self::default();
        // More are refused when it is read.
        if request.descriptors.len() > MAX_DESCRIPTORS {
            return holding;
        }
        let mut kept = Vec::with_capacity(request.descriptors.len());
        for (at, mut descriptor) in std::mem::take(&mut request.descriptors).into_iter().enumerate() {
            if let Some(entry) = descriptor.entries.iter().find(|entry| entry.key == HOLD) {
                holding.settlements.push((at, Settlement::read(&entry.value, &descriptor)));
                continue;
            }
            if let Some(entry) = descriptor.entries.iter().position(|entry| entry.key == RESERVE) {
                let ttl = ttl(&descriptor.entries.remove(entry).value);
                let stream = holding.reserving.get_or_insert_default();
                stream.ttl = ttl.max(stream.ttl);
                stream.places.push(kept.len());
                if descriptor.hits_addend.is_none() {
                    stream.estimated.push(kept.len());
                }
            }
            kept.push(descriptor);
        }
        request.descriptors = kept;
        holding
    }

    /// Settles what there is to settle. What becomes of it is in the metrics: Envoy does not look at the answer.
    /// Once begun it is finished: a proxy that has waited long enough does not ask again.
    pub(super) async fn settle(&self, app: &Arc<App>, api: Api) {
        let settlements: Vec<_> = self.settlements.iter().map(|(_, settlement)| settlement.clone()).collect();
        if settlements.is_empty() {
            return;
        }
        let app = Arc::clone(app);
        let settled = tokio::spawn(async move {
            for settlement in settlements {
                let Some(Settlement { hold, units }) = settlement else {
                    app.reject(api);
                    continue;
                };
                let loaded = app.policies.load_full();
                let _ = app.resolve(&loaded, api, &hold, &Resolve::Settle(units)).await;
            }
        });
        let _ = settled.await;
    }
}

impl Settlement {
    /// `None` if it is not what the metadata had.
    fn read(value: &str, descriptor: &RateLimitDescriptor) -> Option<Self> {
        let (token, places) = value.split_once('.')?;
        let hold: Hold = token.parse().ok()?;
        let used = descriptor.hits_addend.filter(|_| !descriptor.is_negative_hits);
        let keys: Vec<String> = hold.places().map(|(key, _)| key.policy().to_owned()).collect();
        let mut each = Vec::new();
        for place in places.split(',').filter(|place| !place.is_empty()) {
            let key = keys.get(place.parse::<usize>().ok()?)?.clone();
            each.extend(used.map(|used| (key, used.min(Cost::MAX.get()))));
        }
        let units = if used.is_some() { Units::Each(each) } else { Units::AsReserved };
        Some(Self { hold, units })
    }
}

/// A time is written as the window of a limit is. It cannot become an error: perhaps a client wrote it.
fn ttl(text: &str) -> Duration {
    let span = format!("1/{text}").parse::<Limit>().map(|limit| limit.window());
    span.unwrap_or(Reserving::TTL).clamp(HoldTerms::SHORTEST, HoldTerms::LONGEST)
}

/// Reserves for a stream. If the proxy is gone before the answer, the hold is cancelled: nobody else knows it.
pub(super) async fn reserve(
    app: &Arc<App>,
    api: Api,
    mut question: Question,
    Stream { ttl, places, estimated }: Stream,
    deadline: Option<Instant>,
) -> Result<(Verdict, Value), AnswerError> {
    question.verb = Verb::Reserve;
    question.reserving =
        Some(Reserving { ttl, units: Vec::new(), estimated: Estimated::Only(estimated), at_most: true });
    let (sender, answered) = oneshot::channel();
    let app = Arc::clone(app);
    tokio::spawn(async move {
        let answer = app.answer(api, &question, deadline).await;
        let verdict = answer.map(|answer| answer.into_verdict());
        let hold = verdict.as_ref().ok().and_then(Verdict::hold);
        let answer = verdict.map(|verdict| {
            let written = hold.as_ref().map_or(Value::Null, |hold| Value::from(written(hold, &verdict, &places)));
            (verdict, written)
        });
        if sender.send(answer).is_err()
            && let Some(hold) = hold
        {
            app.stores.shared().cancel_soon(hold);
        }
    });
    let stopping = || StoreError::unavailable("the server is stopping".to_owned());
    answered.await.unwrap_or_else(|_| Err(CheckError::from(stopping()).into()))
}

/// The token, and which of its places belong to these descriptors.
fn written(hold: &Hold, verdict: &Verdict, descriptors: &[usize]) -> String {
    let estimated = |policy: &str| {
        let mut rulings = verdict.rulings().iter();
        rulings.any(|ruling| ruling.policy().key_name() == policy && descriptors.contains(&ruling.descriptor()))
    };
    let places = hold.places().enumerate().filter(|(_, (key, _))| estimated(key.policy()));
    let places: Vec<String> = places.map(|(place, _)| place.to_string()).collect();
    format!("{hold}.{}", places.join(","))
}

/// Adds the hold to the metadata of an answer.
pub(super) fn add_to(metadata: &mut Value, hold: Value) {
    if !hold.is_null() {
        metadata[METADATA] = hold;
    }
}
