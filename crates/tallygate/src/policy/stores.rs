//! Where policies keep their states: the shared store, and a local one for when it cannot answer.

use std::sync::Arc;

use super::Instances;
use super::local::Local;
use crate::store::MemoryStore;

/// The store that decides, and the local store in this process that decides for policies with `on_error: local` while
/// the first cannot. The local store follows what the first answers after a wait: it charges the same units to its share of
/// the limit. Cheap to clone if the store is.
#[derive(Debug, Clone)]
pub struct Stores<S> {
    pub(super) shared: S,
    pub(super) local: Local,
}

impl<S> Stores<S> {
    /// Creates the pair of `shared` and an empty local store for 100,000 keys, for a process that is the only one.
    pub fn new(shared: S) -> Self {
        Self { shared, local: Local::default() }
    }

    /// Replaces the local store, for example with a shared one.
    #[must_use]
    pub fn with_local(mut self, local: Arc<MemoryStore>) -> Self {
        self.local.store = local;
        self
    }

    /// Sets how many processes share the store. Defaults to one.
    #[must_use]
    pub fn with_instances(mut self, instances: Instances) -> Self {
        self.local.instances = instances;
        self
    }

    /// The same local store with another shared store.
    pub fn with_shared<T>(&self, shared: T) -> Stores<T> {
        Stores { shared, local: self.local.clone() }
    }

    /// The store that decides.
    pub fn shared(&self) -> &S {
        &self.shared
    }

    /// The local store.
    pub fn local(&self) -> &Arc<MemoryStore> {
        &self.local.store
    }

    /// How many processes share the store, as far as this one knows.
    pub fn instances(&self) -> &Instances {
        &self.local.instances
    }
}
