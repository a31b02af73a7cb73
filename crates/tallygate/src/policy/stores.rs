//! Where policies keep their states: a store, and one beside it for when it cannot answer.

use std::sync::Arc;

use crate::store::MemoryStore;

/// The store that decides, and the one in this process that decides for policies that say `on_error: local` while the first
/// cannot. Cheap to clone if the store is.
#[derive(Debug, Clone)]
pub struct Stores<S> {
    pub(super) shared: S,
    pub(super) local: Arc<MemoryStore>,
}

impl<S> Stores<S> {
    /// `shared`, and an empty store beside it.
    pub fn new(shared: S) -> Self {
        Self { shared, local: Arc::default() }
    }

    /// The same with another local store, such as one that others use too.
    #[must_use]
    pub fn with_local(self, local: Arc<MemoryStore>) -> Self {
        Self { local, ..self }
    }

    /// The same local store beside another store.
    pub fn with_shared<T>(&self, shared: T) -> Stores<T> {
        Stores { shared, local: Arc::clone(&self.local) }
    }

    /// The store that decides.
    pub fn shared(&self) -> &S {
        &self.shared
    }

    /// The one beside it.
    pub fn local(&self) -> &Arc<MemoryStore> {
        &self.local
    }
}
