//! The interface between the limiter and the engine that keeps the states.

mod allotments;
mod deny_cache;
mod error;
mod memory;

use std::future::Future;
use std::sync::Arc;

use crate::call::Call;
use crate::decision::Decision;
pub use allotments::Allotments;
pub use deny_cache::DenyCache;
pub use error::{StoreError, StoreErrorKind};
pub use memory::saved::{RestoreError, Restoring, SavedEntry, SavedKey, Secret};
pub use memory::{MemoryStore, MemoryStoreBuilder, Overflow};

/// Keeps states and answers calls about them. Each call is atomic: it takes effect as a whole or not at all, as of one
/// instant.
///
/// A wrapper around a store is a store. It needs one method for all verbs, and [`Verb::effect`](crate::call::Verb::effect)
/// says what a verb may do:
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tallygate::call::{Call, Effect};
/// use tallygate::{Decision, Limiter, MemoryStore, Store, StoreError};
///
/// /// Counts the calls that may charge.
/// struct Counted<S> {
///     store: S,
///     charges: AtomicU64,
/// }
///
/// impl<S: Store> Store for Counted<S> {
///     async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
///         if call.verb().effect() == Effect::Charges {
///             self.charges.fetch_add(1, Ordering::Relaxed);
///         }
///         self.store.call(call).await
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Counted { store: MemoryStore::new(), charges: AtomicU64::new(0) });
/// limiter.limit("api", "10/s")?.check("user:42").await?;
/// assert_eq!(limiter.store().charges.load(Ordering::Relaxed), 1);
/// # Ok(()) }
/// ```
///
/// A store of its own decides with [`Call::settle`] (and [`Call::takes_at_most`] for calls that take what is left), answers with [`Status::from_parts`](crate::Status::from_parts) and
/// [`Decision::new`], and takes the numbers of a limit from [`Limit::numbers`](crate::Limit::numbers).
pub trait Store: Send + Sync {
    /// Answers a call. A future that is dropped before it is ready leaves nothing charged that was denied, and nothing
    /// half done.
    fn call(&self, call: &Call<'_>) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// The same answer, if the store can give it without waiting. `None` means that nothing was done.
    fn call_now(&self, call: &Call<'_>) -> Option<Result<Decision, StoreError>> {
        let _ = call;
        None
    }
}

impl<S: Store> Store for Arc<S> {
    fn call(&self, call: &Call<'_>) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        (**self).call(call)
    }

    #[inline(always)]
    fn call_now(&self, call: &Call<'_>) -> Option<Result<Decision, StoreError>> {
        (**self).call_now(call)
    }
}
