//! A map that notes which of its entries change.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// Like a `HashMap`. Whatever is handed out for a change is noted as changed, if somebody saves it.
#[derive(Debug, Clone)]
pub(super) struct Recorded<K, V> {
    entries: HashMap<K, V>,
    /// `None` if nobody saves them, or too many have changed.
    changed: Option<HashSet<K>>,
}

impl<K, V> Default for Recorded<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), changed: None }
    }
}

impl<K: Eq + Hash + Clone, V> Recorded<K, V> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let value = self.entries.get_mut(key)?;
        note(&mut self.changed, key);
        Some(value)
    }

    pub(super) fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        self.bound_changes();
        note(&mut self.changed, &key);
        self.entries.entry(key)
    }

    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.bound_changes();
        note(&mut self.changed, &key);
        self.entries.insert(key, value)
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        note(&mut self.changed, key);
        self.entries.remove(key)
    }

    /// Entries that come and go are noted each time. If nobody takes the notes, they are given up.
    fn bound_changes(&mut self) {
        if self.changed.as_ref().is_some_and(|changed| changed.len() > 1024 + 4 * self.entries.len()) {
            self.changed = None;
        }
    }

    /// Begins to note what changes from now on, or ends it.
    pub(super) fn record(&mut self, records: bool) {
        self.changed = records.then(HashSet::new);
    }

    /// Says what has changed since the last time: the new values, and which are gone. Returns false if that is not known.
    pub(super) fn take_changes(&mut self, mut each: impl FnMut(&K, Option<&V>)) -> bool {
        let Some(changed) = &mut self.changed else { return false };
        changed.iter().for_each(|key| each(key, self.entries.get(key)));
        changed.clear();
        changed.shrink_to(1024);
        true
    }

    /// Says everything, and begins to note what changes from now on.
    pub(super) fn take_all(&mut self, mut each: impl FnMut(&K, Option<&V>)) {
        self.entries.iter().for_each(|(key, value)| each(key, Some(value)));
        self.record(true);
    }
}

fn note<K: Eq + Hash + Clone>(changed: &mut Option<HashSet<K>>, key: &K) {
    if let Some(changed) = changed {
        changed.insert(key.clone());
    }
}
