//! Outbound calls: wait until a limit has room for them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tallygate::limit::{IntoLimit, LimitError};
pub use tallygate::limiter::NotReady;
use tallygate::policy::{Policy, Subject};
use tallygate::{Check, Cost, Key, Limit, Limiter, MemoryStore, Store};
use tower_layer::Layer;
use tower_service::Service;

/// Delays calls to a service until a limit has room for them. With a shared store, all processes together stay within the
/// quota of a third party.
///
/// ```
/// use std::time::Duration;
/// use tallygate_tower::outbound::Throttle;
///
/// let layer = Throttle::new("stripe", "100/s", tokio::time::sleep)?.patience(Duration::from_secs(5));
/// # Ok::<(), tallygate_tower::LimitError>(())
/// ```
pub struct Throttle<Z, S = MemoryStore> {
    limiter: Limiter<S>,
    terms: Arc<Terms>,
    sleep: Z,
}

#[derive(Debug, Clone)]
struct Terms {
    name: String,
    account: Subject,
    limit: Limit,
    cost: Cost,
    patience: Duration,
}

impl<Z> Throttle<Z> {
    /// Calls to `name` under `limit` (a [`Limit`] or its text), in this process. `sleep` is the timer of your runtime, such as
    /// `tokio::time::sleep`. The state belongs to the policy `name` of the domain `outbound`.
    ///
    /// # Errors
    /// If the text is not a limit.
    ///
    /// # Panics
    /// If `name` is empty.
    #[track_caller]
    pub fn new(name: impl Into<String>, limit: impl IntoLimit, sleep: Z) -> Result<Self, LimitError> {
        let Ok(policy) = Policy::unlimited(name, "outbound") else { panic!("the name of the service is empty") };
        let limit = limit.into_limit()?;
        let (name, account) = (policy.key_name().to_owned(), Subject::new([]));
        let terms = Terms { name, account, limit, cost: Cost::ONE, patience: Duration::from_secs(30) };
        Ok(Self { limiter: Limiter::new(MemoryStore::new()), terms: Arc::new(terms), sleep })
    }
}

impl<Z, S> Throttle<Z, S> {
    /// A shared store: all processes that use it stay within the limit together.
    #[must_use]
    pub fn store<T: Store>(self, store: T) -> Throttle<Z, T> {
        Throttle { limiter: Limiter::new(store), terms: self.terms, sleep: self.sleep }
    }

    /// The account whose quota it is, where the third party has a quota for each account.
    #[must_use]
    pub fn account(mut self, account: impl AsRef<str>) -> Self {
        Arc::make_mut(&mut self.terms).account = Subject::new([("account", account.as_ref())]);
        self
    }

    /// How many units a call takes. Defaults to one.
    #[must_use]
    pub fn cost(mut self, cost: Cost) -> Self {
        Arc::make_mut(&mut self.terms).cost = cost;
        self
    }

    /// How long a call may wait in total. Defaults to 30 seconds. A call that would have to wait longer fails at once.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        Arc::make_mut(&mut self.terms).patience = patience;
        self
    }
}

impl<Z: Clone, S> Clone for Throttle<Z, S> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), terms: Arc::clone(&self.terms), sleep: self.sleep.clone() }
    }
}

impl<Z, S> fmt::Debug for Throttle<Z, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttle").field("terms", &self.terms).finish_non_exhaustive()
    }
}

impl<T, Z: Clone, S> Layer<T> for Throttle<Z, S> {
    type Service = Throttled<T, Z, S>;

    fn layer(&self, inner: T) -> Self::Service {
        Throttled { inner, throttle: self.clone() }
    }
}

/// A service whose calls are delayed. Created by [`Throttle`].
#[derive(Debug)]
pub struct Throttled<T, Z, S = MemoryStore> {
    inner: T,
    throttle: Throttle<Z, S>,
}

impl<T: Clone, Z: Clone, S> Clone for Throttled<T, Z, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), throttle: self.throttle.clone() }
    }
}

/// Why a call was not made, or how it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ThrottleError<E> {
    /// It would have had to wait for too long, or the store failed.
    #[error("{0}")]
    NotReady(#[source] NotReady),
    /// The call was made, and failed.
    #[error("{0}")]
    Service(#[source] E),
}

impl<T, R, Z, S, F> Service<R> for Throttled<T, Z, S>
where
    T: Service<R> + Clone + Send + 'static,
    T::Future: Send,
    R: Send + 'static,
    Z: FnMut(Duration) -> F + Clone + Send + 'static,
    F: Future<Output = ()> + Send,
    S: Store + 'static,
{
    type Response = T::Response;
    type Error = ThrottleError<T::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<T::Response, ThrottleError<T::Error>>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(ThrottleError::Service)
    }

    fn call(&mut self, request: R) -> Self::Future {
        // The instance that is ready is the one to call.
        let clone = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, clone);
        let Throttle { limiter, terms, sleep } = self.throttle.clone();
        Box::pin(async move {
            let key = Key::new(&terms.name, &terms.account).expect("policy names and subjects make valid keys");
            let check = Check::new(key, &terms.limit).cost(terms.cost);
            limiter.until_ready(&[check], terms.patience, sleep).await.map_err(ThrottleError::NotReady)?;
            ready.call(request).await.map_err(ThrottleError::Service)
        })
    }
}
