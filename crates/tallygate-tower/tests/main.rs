//! The layer around a service, in real servers, and in the examples.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod cancellation; // callers that disconnect at any poll
mod diagnostics; // common mistakes, each reported once with its remedy
mod documents; // the policy files of the guides, and the recipes
mod outbound; // throttled calls to a third party

/// The examples, as processes of their own.
mod examples {
    mod gateway; // in front of a language model, with callers that leave and a model that dies
    mod outbound; // workers that share a third party's quota
    mod plans; // copies of one service on one Redis
    pub mod process; // running an example
    mod services; // the examples that need one process
}

/// The layer around a service, as a program uses it.
mod limits {
    mod answers; // the answers to callers
    mod at_once; // a store that cannot answer at once changes no answer
    mod callers; // who is calling, and who only claims to be
    mod counting; // only failures, or only successes
    pub mod rig; // a service to limit, and requests to send
    mod rules; // how much, for whom, when
}

/// A layer that reserves, and settles by the response.
mod reserving {
    mod ends; // however a request ends
    mod redis; // callers that leave anywhere
    mod rig; // a service under two limits, and what their store says
    mod streams; // settled in parts, extended, cut, made to fit
}

/// The layer in real servers, over real ports.
mod servers {
    mod axum; // in axum, however it is put there
    mod hyper; // without a framework
    mod tonic; // as tonic's own client sees it
}
