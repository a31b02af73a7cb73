//! Where policies keep their states: the shared store, and a local one for when it cannot answer.

use std::sync::Arc;

use crate::store::MemoryStore;

/// The store that decides, and the local store in this process that decides for policies with `on_error: local` while
/// the first cannot. Cheap to clone if the store is.
#[derive(Debug, Clone)]
pub struct Stores<S> {
    pub(super) shared: S,
    pub(super) local: Arc<MemoryStore>,
}

impl<S> Stores<S> {
    /// Creates the pair of `shared` and an empty local store.
    pub fn new(shared: S) -> Self {
        Self { shared, local: Arc::default() }
    }

    /// Replaces the local store, for example with a shared one.
    #[must_use]
    pub fn with_local(self, local: Arc<MemoryStore>) -> Self {
        Self { local, ..self }
    }

    /// The same local store with another shared store.
    pub fn with_shared<T>(&self, shared: T) -> Stores<T> {
        Stores { shared, local: Arc::clone(&self.local) }
    }

    /// The store that decides.
    pub fn shared(&self) -> &S {
        &self.shared
    }

    /// The local store.
    pub fn local(&self) -> &Arc<MemoryStore> {
        &self.local
    }
}
