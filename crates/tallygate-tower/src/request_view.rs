//! What rules see of a request.

use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Request};

/// What rules see of a request. Taking a request apart and reassembling it costs more than most rules, so it is done
/// only for closures.
#[derive(Clone, Copy)]
pub(crate) struct RequestView<'r> {
    pub(crate) method: &'r Method,
    pub(crate) headers: &'r HeaderMap,
    pub(crate) extensions: &'r Extensions,
    parts: Option<&'r Parts>,
}

impl<'r> RequestView<'r> {
    /// For everything but closures.
    pub(crate) fn whole<B>(request: &'r Request<B>) -> Self {
        Self { method: request.method(), headers: request.headers(), extensions: request.extensions(), parts: None }
    }

    pub(crate) fn apart(parts: &'r Parts) -> Self {
        Self { method: &parts.method, headers: &parts.headers, extensions: &parts.extensions, parts: Some(parts) }
    }

    /// What closures see.
    pub(crate) fn parts(self) -> &'r Parts {
        self.parts.expect("a request is taken apart where there are closures")
    }
}
