//! Who may do what: the tokens of requests, and guesses of tokens.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use axum::extract::FromRequestParts;
use http::header::AUTHORIZATION;
use http::request::Parts;
use tallygate::call::{Call, Verb};
use tallygate::decision::Source;
use tallygate::{Check, Decision, Key, Limit, Limiter, MemoryStore};
use tallygate_http::{Problem, ProblemCode};

use crate::http::Connection;
use crate::settings::Settings;
use crate::token::{Digest, Refunds, Scope, Token, digest, is_same};

/// How many peers are remembered that have guessed tokens. Those of others are all compared.
const PEERS: usize = 10_000;

/// The token that a request shows, and the connection it came by.
#[derive(Debug)]
pub(crate) struct Credentials {
    shown: Option<Digest>,
    connection: Option<Connection>,
}

impl Credentials {
    pub(crate) fn of(parts: &Parts) -> Self {
        let header = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer = |(scheme, _): &(&str, &str)| scheme.eq_ignore_ascii_case("bearer");
        let shown =
            header.and_then(|value| value.split_once(' ')).filter(bearer).map(|(_, token)| digest(token.trim()));
        Self { shown, connection: parts.extensions.get().cloned() }
    }

    fn peer(&self) -> &str {
        self.connection.as_ref().map_or("unknown", |connection| &connection.peer)
    }
}

impl<S: Sync> FromRequestParts<S> for Credentials {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(parts))
    }
}

/// The name of the token of somebody who operates the server, in the extensions of a request.
#[derive(Debug, Clone)]
pub(crate) struct Operator(pub(crate) String);

/// Who may do what.
#[derive(Debug)]
pub(crate) struct Access {
    token: Option<Token>,
    /// Whether checks need a token.
    guards_checks: bool,
    refunds: Refunds,
    pub(crate) guesses: Guesses,
}

impl Access {
    /// Without `settings.refunds`, refunds need a token.
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            token: settings.token.clone(),
            guards_checks: settings.token.as_ref().is_some_and(Token::guards_checks),
            refunds: settings.refunds.unwrap_or(Refunds::Token),
            guesses: Guesses::default(),
        }
    }

    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// The name of the token that the request has, if it has this scope.
    pub(crate) fn authorize(&self, credentials: &Credentials, scope: Scope) -> Result<&str, Problem> {
        let Some(token) = &self.token else {
            let detail = "This needs a token, and the server has none: start it with --token-file or TALLYGATE_TOKEN.";
            return Err(Problem::new(ProblemCode::Forbidden, detail));
        };
        let unauthorized = || {
            let detail = "This needs a token of the server: send the header `Authorization: Bearer <token>`.";
            Problem::new(ProblemCode::Unauthorized, detail)
        };
        let shown = credentials.shown.as_ref().ok_or_else(unauthorized)?;
        self.guesses.admit(credentials, shown)?;
        let Some(holder) = token.holder_of(shown) else {
            self.guesses.wrong(credentials);
            return Err(unauthorized());
        };
        if let Some(connection) = &credentials.connection {
            let _ = connection.known.set(*shown);
        }
        if !holder.may(scope) {
            let detail = format!("The token `{}` does not have the scope `{scope}`.", holder.name());
            return Err(Problem::new(ProblemCode::Forbidden, detail));
        }
        Ok(holder.name())
    }

    /// Requires a token with the scope `check`, if there is one.
    pub(crate) fn check(&self, credentials: &Credentials) -> Result<(), Problem> {
        if self.guards_checks { self.authorize(credentials, Scope::Check).map(drop) } else { Ok(()) }
    }

    /// Requires the scope `refund`, unless refunds are open: then the same as a check.
    pub(crate) fn refund(&self, credentials: &Credentials) -> Result<(), Problem> {
        match self.refunds {
            Refunds::Open => self.check(credentials),
            Refunds::Token => self.authorize(credentials, Scope::Refund).map(drop),
        }
    }
}

/// Slows the guessing of tokens: after a burst of wrong ones, those of the peer are refused without a comparison, but for a few a
/// second. There is no such limit for all peers together: it would let anybody lock the operators out.
#[derive(Debug)]
pub(crate) struct Guesses {
    limiter: Limiter<MemoryStore>,
    /// Wrong tokens of one peer.
    per_peer: Limit,
    /// Lines in the log.
    log: Limit,
    /// Tokens that were wrong, and those that were not compared.
    pub(crate) wrong: AtomicU64,
    pub(crate) unchecked: AtomicU64,
}

impl Default for Guesses {
    fn default() -> Self {
        let limit = |text: &str| text.parse().expect("a limit");
        Self {
            limiter: Limiter::new(MemoryStore::builder().capacity(PEERS).build()),
            per_peer: limit("2/s burst 20"),
            log: limit("1/10s"),
            wrong: AtomicU64::new(0),
            unchecked: AtomicU64::new(0),
        }
    }
}

fn key<'k>(name: &'k str, subject: &'k str) -> Key<'k> {
    Key::new(name, subject).expect("a name, and an address")
}

impl Guesses {
    /// An error if the token must not be compared now.
    fn admit(&self, credentials: &Credentials, shown: &Digest) -> Result<(), Problem> {
        // Who has shown this very token on this connection does not guess, even if others at the same address do.
        let known = credentials.connection.as_ref().and_then(|connection| connection.known.get());
        if known.is_some_and(|known| is_same(known, shown)) {
            return Ok(());
        }
        let checks = [Check::new(key("guesses", credentials.peer()), &self.per_peer)];
        let peek = Call::new(Verb::Peek, &checks).ok().and_then(|call| call.ask_now(&**self.limiter.store()));
        // A peer without room of its own shares the count of others: theirs are no reason to refuse it.
        let may = |decision: Decision| decision.allowed() || decision.source() == Source::Overflow;
        if peek.and_then(Result::ok).is_none_or(may) {
            return Ok(());
        }
        self.unchecked.fetch_add(1, Relaxed);
        let detail = "Too many wrong tokens came from this address: this one was not looked at; retry shortly.";
        Err(Problem::new(ProblemCode::TooManyWrongTokens, detail))
    }

    fn wrong(&self, credentials: &Credentials) {
        let wrong = self.wrong.fetch_add(1, Relaxed) + 1;
        let charge = |name, subject, limit| self.limiter.check_now(Check::new(key(name, subject), limit));
        let _ = charge("guesses", credentials.peer(), &self.per_peer);
        if charge("log", "wrong", &self.log).is_ok_and(|decision| decision.allowed()) {
            let (peer, unchecked) = (credentials.peer(), self.unchecked.load(Relaxed));
            tracing::warn!(peer, wrong, unchecked, "a wrong token was shown; the numbers are since the start");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tallygate::clock::ManualClock;
    use tallygate::store::Overflow;

    use super::*;

    const TOKENS: &str = "ops:operate:0123456789abcdef\nshop:check,refund:fedcba9876543210";

    fn access(refunds: Option<Refunds>) -> Access {
        Access::new(&Settings { token: Some(Token::new(TOKENS).unwrap()), refunds, ..Settings::default() })
    }

    fn connection(peer: &str) -> Connection {
        Connection { peer: peer.into(), known: Arc::default() }
    }

    fn shows(token: &str, connection: &Connection) -> Credentials {
        Credentials { shown: Some(digest(token)), connection: Some(connection.clone()) }
    }

    fn code(result: Result<impl Sized, Problem>) -> Option<ProblemCode> {
        result.err().map(|problem| problem.code())
    }

    /// 91,000 guesses a second were compared.
    #[test]
    fn guessing_is_slowed_and_counted_and_locks_nobody_else_out() {
        let access = access(None);
        let (guesser, operator) = (connection("192.0.2.1"), connection("192.0.2.2"));
        let before = connection("192.0.2.1");
        assert_eq!(code(access.authorize(&shows("0123456789abcdef", &before), Scope::Operate)), None);
        for guess in 0..10_000 {
            assert!(access.authorize(&shows(&format!("{guess:016}"), &guesser), Scope::Operate).is_err());
        }
        let (wrong, unchecked) = (access.guesses.wrong.load(Relaxed), access.guesses.unchecked.load(Relaxed));
        assert!(wrong >= 20 && wrong + unchecked == 10_000, "{wrong} {unchecked}");
        assert!(wrong < 2_000, "{wrong}: as many as the bucket regains while this runs");
        let right = |connection: &Connection| access.authorize(&shows("0123456789abcdef", connection), Scope::Operate);
        assert_eq!(code(right(&guesser)), Some(ProblemCode::TooManyWrongTokens), "not even the right one is looked at");
        assert_eq!(code(right(&operator)), None, "from elsewhere");
        assert_eq!(code(right(&before)), None, "from the same address, on a connection that has shown it");
        let other = access.authorize(&shows("fedcba9876543210", &before), Scope::Check);
        assert_eq!(code(other), Some(ProblemCode::TooManyWrongTokens), "a holder of one token may not guess others");
    }

    /// Its address shared the count of others that had no room in memory.
    #[test]
    fn guesses_from_many_networks_locked_the_operators_out() {
        let mut access = access(None);
        let store = MemoryStore::builder().capacity(16).overflow(Overflow::Shared(1)).clock(ManualClock::default());
        access.guesses.limiter = Limiter::new(store.build());
        for guess in 0..10_000 {
            let guesser = connection(&format!("192.0.{}.{}", guess / 250, guess % 250));
            assert!(access.authorize(&shows("a wrong one, and long", &guesser), Scope::Operate).is_err());
        }
        let operator = connection("198.51.100.1");
        let wrong = access.authorize(&shows("another wrong one", &operator), Scope::Operate);
        assert_eq!(code(wrong), Some(ProblemCode::Unauthorized));
        assert_eq!(code(access.authorize(&shows("0123456789abcdef", &operator), Scope::Operate)), None);
    }

    #[test]
    fn a_refund_needs_its_scope_unless_refunds_are_open() {
        let anybody = Credentials { shown: None, connection: None };
        let peer = connection("192.0.2.1");
        for (refunds, nobody, ops) in [
            (None, Some(ProblemCode::Unauthorized), None),
            (Some(Refunds::Token), Some(ProblemCode::Unauthorized), None),
            // Checks are guarded, as a token has that scope.
            (Some(Refunds::Open), Some(ProblemCode::Unauthorized), Some(ProblemCode::Forbidden)),
        ] {
            let access = access(refunds);
            assert_eq!(code(access.refund(&anybody)), nobody, "{refunds:?}");
            assert_eq!(code(access.refund(&shows("0123456789abcdef", &peer))), ops, "{refunds:?}");
            assert_eq!(code(access.refund(&shows("fedcba9876543210", &peer))), None, "{refunds:?}");
        }
        let open = Access::new(&Settings { refunds: Some(Refunds::Open), ..Settings::default() });
        assert_eq!(code(open.refund(&anybody)), None);
        assert_eq!(code(Access::new(&Settings::default()).refund(&anybody)), Some(ProblemCode::Forbidden));
    }
}
