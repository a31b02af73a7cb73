//! One limit of a layer: how much, for whom, for which requests.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use tallygate::Limit;
use tallygate::hold::HoldTerms;
use tallygate::limit::{IntoLimit, LimitError};
use tallygate::policy::{CallerLimit, Match, Mode, OnError, Policy};

use crate::caller::{Addresses, Caller};
use crate::request_view::RequestView;

type Chosen = Arc<dyn Fn(&Parts) -> Option<Limit> + Send + Sync>;
type Condition = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;

/// One limit of a layer: how much, for whom, for which requests. All rules of a layer make one decision.
#[derive(Clone)]
pub struct Rule {
    pub(crate) name: String,
    limit: Limit,
    pub(crate) anonymous: Option<Limit>,
    pub(crate) caller: Caller,
    chosen: Option<Chosen>,
    condition: Option<Condition>,
    mode: Mode,
    on_error: OnError,
    allotment: bool,
    holds: Option<HoldTerms>,
}

impl Rule {
    /// A limit for each client address: a [`Limit`] or its text. `name` appears in headers and problems, and is part of the key.
    ///
    /// # Errors
    /// If the text is not a limit.
    pub fn new(name: impl Into<String>, limit: impl IntoLimit) -> Result<Self, LimitError> {
        let (mut name, limit) = (name.into(), limit.into_limit()?);
        if name.is_empty() {
            name.push_str("limit");
        }
        Ok(Self {
            name,
            limit,
            anonymous: None,
            caller: Caller::address(),
            chosen: None,
            condition: None,
            mode: Mode::default(),
            on_error: OnError::default(),
            allotment: false,
            holds: None,
        })
    }

    /// What identifies a caller. Defaults to [`Caller::address`].
    #[must_use]
    pub fn by(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }

    /// A limit for this request, such as that of the caller's plan; `None` for the rule's own. It is called on every request: parse
    /// limits before, and clone them here.
    #[must_use]
    pub fn limit_for(mut self, chosen: impl Fn(&Parts) -> Option<Limit> + Send + Sync + 'static) -> Self {
        self.chosen = Some(Arc::new(chosen));
        self
    }

    /// The limit that all unidentified callers share. Defaults to the rule's own.
    ///
    /// # Errors
    /// If the text is not a limit.
    pub fn anonymous(mut self, limit: impl IntoLimit) -> Result<Self, LimitError> {
        self.anonymous = Some(limit.into_limit()?);
        Ok(self)
    }

    /// The requests it applies to, for example those of one method. All by default.
    #[must_use]
    pub fn when(mut self, condition: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.condition = Some(Arc::new(condition));
        self
    }

    /// Whether it refuses. Defaults to [`Mode::Enforce`].
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// What to answer when the store is unreachable. Defaults to [`OnError::Local`]: this process decides alone, with
    /// its share of the limit ([`RateLimit::instances`](crate::RateLimit::instances)).
    #[must_use]
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// Whether units of hot keys may be taken in advance and spent without the store, if that is
    /// [`Allotments`](tallygate::store::Allotments) around another. Defaults to false.
    #[must_use]
    pub fn allotment(mut self, allotment: bool) -> Self {
        self.allotment = allotment;
        self
    }

    /// What it grants to holds, where the layer [reserves](crate::RateLimit::reserve). Defaults to [`HoldTerms::DEFAULT`].
    #[must_use]
    pub fn holds(mut self, terms: HoldTerms) -> Self {
        self.holds = Some(terms);
        self
    }

    /// The same, granting the default to holds if nothing else was said.
    pub(crate) fn reserved(mut self) -> Self {
        self.holds.get_or_insert(HoldTerms::DEFAULT);
        self
    }

    /// Whether a closure needs the parts of the request.
    pub(crate) fn needs_parts(&self) -> bool {
        self.condition.is_some() || self.chosen.is_some() || self.caller.needs_parts()
    }

    /// Subject and limit for this request; `None` if the rule does not apply. `policy` is the compiled rule.
    pub(crate) fn found(&self, policy: &Arc<Policy>, request: RequestView<'_>, addresses: &Addresses) -> Option<Match> {
        if self.condition.as_ref().is_some_and(|condition| !condition(request.parts())) {
            return None;
        }
        let (subject, known) = self.caller.subject(request, addresses);
        let limit = self.limit_of(request, known).map_or(CallerLimit::OfPolicy, CallerLimit::Override);
        Some(Match::new(Arc::clone(policy), 0, subject).with_limit(limit))
    }

    /// The limit of this request, if it is not the rule's own.
    fn limit_of(&self, request: RequestView<'_>, known: bool) -> Option<Limit> {
        match (known, &self.anonymous, &self.chosen) {
            (false, Some(anonymous), _) => Some(anonymous.clone()),
            (_, _, Some(chosen)) => chosen(request.parts()),
            _ => None,
        }
    }

    pub(crate) fn policy(&self, domain: &str, name: String) -> Policy {
        let policy = Policy::new(name, domain, &self.limit).expect("both have a name");
        let policy = policy.with_mode(self.mode).with_on_error(self.on_error).with_allotment(self.allotment);
        policy.with_holds(self.holds)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, limit, caller, mode, on_error, .. } = self;
        let mut rule = f.debug_struct("Rule");
        rule.field("name", name).field("limit", limit).field("caller", caller);
        rule.field("mode", mode).field("on_error", on_error).finish_non_exhaustive()
    }
}
