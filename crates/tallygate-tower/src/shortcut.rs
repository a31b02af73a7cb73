//! The shortcut of what most layers do: one rule, the embedded store, and nobody who wants to know more than what is left.

use http::{Method, Response};
use tallygate::{Cost, Status, Store};

use crate::future::is_refused;
use crate::seen::Seen;
use crate::settings::{Plan, Settings};

impl<S: Store> Settings<S> {
    /// Takes the cost of a request if its only rule allows it. `None` has taken nothing, and leaves the request to be decided.
    ///
    /// In line, without a verdict: each copy of what was just written waits for it, and a verdict is copied often.
    #[inline(always)]
    pub(crate) fn take_short(&self, seen: Seen<'_>) -> Option<Status> {
        let Plan::Rules { rules, compiled } = &self.plan else { return None };
        let (true, [rule], Some(store)) = (self.short, &rules[..], self.store.embedded()) else { return None };
        // It may be a preflight.
        if *seen.method == Method::OPTIONS {
            return None;
        }
        if self.by_address {
            self.addresses.look(seen);
        }
        let (subject, known) = rule.caller.subject(seen, &self.addresses);
        if !known && rule.anonymous.is_some() {
            return None;
        }
        compiled.take_now(store, 0, &subject, Cost::ONE)
    }

    /// Says in headers what the only rule has left.
    pub(crate) fn tell_status<B>(&self, status: &Status, response: &mut Response<B>) {
        if let Plan::Rules { compiled, .. } = &self.plan
            && (self.headers.dialect().is_list() || !is_refused(response))
        {
            self.headers.apply_allowed(0, &compiled.policies()[0], status, response.headers_mut());
        }
        self.expose(response.headers_mut());
    }
}
