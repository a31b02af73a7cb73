//! What most layers do: one rule, a store that answers at once, and nobody who wants to know more than what is left.

use http::{Method, Response};
use tallygate::{Cost, Status, Store};

use crate::decide::Limits;
use crate::future::is_refused;
use crate::request_view::RequestView;
use crate::settings::{Plan, Settings};

impl<S: Store> Limits<S> {
    /// Charges a request if its only rule allows it. `None` has charged nothing, and leaves the request to be evaluated.
    ///
    /// In line, without a verdict: a verdict is copied often, and a status is small.
    #[inline(always)]
    pub(crate) fn try_fast(&self, request: RequestView<'_>) -> Option<Status> {
        let Settings { plan: Plan::Rules { rules, compiled }, fast: true, .. } = &self.settings else { return None };
        let [rule] = &rules[..] else { return None };
        // It may be a preflight.
        if *request.method == Method::OPTIONS {
            return None;
        }
        if self.settings.by_address {
            self.settings.addresses.look(request);
        }
        let (subject, known) = rule.caller.subject(request, &self.settings.addresses);
        if !known && rule.anonymous.is_some() {
            return None;
        }
        compiled.check_now(&**self.stores.shared(), 0, &subject, Cost::ONE)
    }
}

impl Settings {
    /// Reports in headers what the only rule has left.
    pub(crate) fn report_status<B>(&self, status: &Status, response: &mut Response<B>) {
        if let Plan::Rules { compiled, .. } = &self.plan
            && (self.headers.dialect().is_list() || !is_refused(response))
        {
            self.headers.apply_allowed(0, &compiled.policies()[0], status, response.headers_mut());
        }
        self.expose(response.headers_mut());
    }
}
