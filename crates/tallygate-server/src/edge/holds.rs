//! `/v1/settle`, `/v1/cancel`, `/v1/extend`, `/v1/renew`: what becomes of a hold. Its token is all that is needed.

mod list;
mod request;
mod response;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use tallygate::call::InvalidCheck;
use tallygate::hold::{HoldTerms, Resolve};
use tallygate_http::{Problem, ProblemCode};

use super::access::Credentials;
use super::json::{invalid, require_json};
use super::{Refused, store_problem};
use crate::app::App;
use crate::decision_event::Api;
use crate::loaded::Loaded;
pub(super) use list::list;
use request::{Ask, Renewals};

pub(super) async fn settle(state: State<Arc<App>>, from: Credentials, headers: HeaderMap, body: Bytes) -> Answered {
    resolve(&state, &from, &headers, &body, request::settle).await
}

pub(super) async fn cancel(state: State<Arc<App>>, from: Credentials, headers: HeaderMap, body: Bytes) -> Answered {
    resolve(&state, &from, &headers, &body, request::cancel).await
}

pub(super) async fn extend(state: State<Arc<App>>, from: Credentials, headers: HeaderMap, body: Bytes) -> Answered {
    resolve(&state, &from, &headers, &body, request::extend).await
}

/// Renews one hold, or several at once: in one trip to each server of the store.
pub(super) async fn renew(state: State<Arc<App>>, from: Credentials, headers: HeaderMap, body: Bytes) -> Answered {
    let app = &*state;
    app.access.check(&from)?;
    let loaded = app.policies.load_full();
    let asked = require_json(&headers).and_then(|()| request::renew(&body));
    let extendable = |asks: &[Ask]| asks.iter().try_for_each(|ask| extendable(ask, &loaded));
    let asked = asked.and_then(|asked| match &asked {
        Renewals::One(ask) => extendable(std::slice::from_ref(ask)).map(|()| asked),
        Renewals::Several(asks) => extendable(asks).map(|()| asked),
    });
    match asked.inspect_err(|_| app.reject(Api::Http))? {
        Renewals::One(ask) => {
            let resolved = app.resolve(&loaded, Api::Http, &ask.hold, &ask.resolve).await;
            response::write(&ask, &loaded, &resolved.map_err(|error| store_problem(&error))?)
        }
        Renewals::Several(asks) => {
            let renewals = asks.into_iter().map(|ask| {
                let (app, loaded) = (Arc::clone(&state), Arc::clone(&loaded));
                tokio::spawn(async move {
                    let renewed = app.resolve(&loaded, Api::Http, &ask.hold, &ask.resolve).await;
                    (ask, renewed)
                })
            });
            let mut renewed = Vec::new();
            for renewal in renewals.collect::<Vec<_>>() {
                let stopping = |_| Problem::new(ProblemCode::Overloaded, "The server is stopping: ask another one.");
                renewed.push(renewal.await.map_err(stopping)?);
            }
            Ok(response::write_each(&renewed, &loaded))
        }
    }
}

type Answered = Result<Response, Refused>;

/// The token is all that is needed: a settlement gives back only what its holder has reserved.
async fn resolve(
    app: &App,
    from: &Credentials,
    headers: &HeaderMap,
    body: &Bytes,
    read: fn(&[u8], &Loaded) -> Result<Ask, Problem>,
) -> Answered {
    app.access.check(from)?;
    let loaded = app.policies.load_full();
    let ask = require_json(headers).and_then(|()| read(body, &loaded));
    let ask = ask.and_then(|ask| extendable(&ask, &loaded).map(|()| ask)).inspect_err(|_| app.reject(Api::Http))?;
    let resolved = app.resolve(&loaded, Api::Http, &ask.hold, &ask.resolve).await;
    response::write(&ask, &loaded, &resolved.map_err(|error| store_problem(&error))?)
}

/// A hold is extended by no more than it could have been reserved for.
fn extendable(ask: &Ask, loaded: &Loaded) -> Result<(), Problem> {
    let (Resolve::Extend(ttl) | Resolve::Renew { ttl, .. }) = ask.resolve else { return Ok(()) };
    let granted = ask.hold.places().map(|(key, _)| {
        let policy = loaded.policy(key.policy());
        (key, policy.and_then(|policy| policy.holds()).unwrap_or(&HoldTerms::DEFAULT).longest())
    });
    match granted.min_by_key(|(_, longest)| *longest) {
        Some((key, longest)) if ttl > longest => {
            let policy = loaded.name_of(key.policy()).to_owned();
            Err(invalid(InvalidCheck::HoldTtl { policy, ttl, longest }))
        }
        _ => Ok(()),
    }
}
