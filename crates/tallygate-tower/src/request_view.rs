//! What rules see of a request.

use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Request};

/// What rules see of a request. To take it apart and put it together again costs more than most rules do, so that is done
/// only for closures.
#[derive(Clone, Copy)]
pub(crate) struct RequestView<'r> {
    pub(crate) method: &'r Method,
    pub(crate) headers: &'r HeaderMap,
    pub(crate) extensions: &'r Extensions,
    parts: Option<&'r Parts>,
}

impl<'r> RequestView<'r> {
    /// Enough for all but closures.
    pub(crate) fn whole<B>(request: &'r Request<B>) -> Self {
        Self { method: request.method(), headers: request.headers(), extensions: request.extensions(), parts: None }
    }

    pub(crate) fn apart(parts: &'r Parts) -> Self {
        Self { method: &parts.method, headers: &parts.headers, extensions: &parts.extensions, parts: Some(parts) }
    }

    /// What closures get to see.
    pub(crate) fn parts(self) -> &'r Parts {
        self.parts.expect("a request is taken apart where there are closures")
    }
}
