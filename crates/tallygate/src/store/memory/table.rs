//! A table keyed by fingerprints, swept a few buckets at a time.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::print::Print;

/// A value that equals a fresh one from some instant on.
pub(super) trait Expires {
    fn expired(&self, now: u64) -> bool;
}

#[derive(Debug, Clone)]
pub(super) struct Table<T> {
    entries: HashTable<(Print, T)>,
    /// The number of shared entries.
    shared: usize,
    cursor: usize,
    steps: u8,
    /// Entries that were saved and have changed since, and new ones, in any order. `None` if nobody saves them, or too many have changed.
    changed: Option<Vec<Print>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { entries: HashTable::new(), shared: 0, cursor: 0, steps: 0, changed: None }
    }
}

fn bucket_hash<T>((print, _): &(Print, T)) -> u64 {
    print.bucket_hash()
}

/// Notes that an entry has changed, if somebody saves it.
#[cold]
#[inline(never)]
fn note(changed: &mut Option<Vec<Print>>, print: Print) {
    if let Some(changed) = changed {
        changed.push(print);
    }
}

impl<T: Expires> Table<T> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The number of entries that belong to one key.
    pub(super) fn own(&self) -> usize {
        self.entries.len() - self.shared
    }

    pub(super) fn get(&self, print: Print) -> Option<&T> {
        self.entries.find(print.bucket_hash(), |(other, _)| print.is_of(*other)).map(|(_, value)| value)
    }

    /// A value that may be changed.
    #[inline]
    pub(super) fn get_mut(&mut self, print: Print) -> Option<&mut T> {
        let (found, value) = self.entries.find_mut(print.bucket_hash(), |(other, _)| print.is_of(*other))?;
        if found.is_saved() {
            *found = print;
            note(&mut self.changed, print);
        }
        Some(value)
    }

    pub(super) fn insert(&mut self, print: Print, value: T) {
        match self.entries.entry(print.bucket_hash(), |(other, _)| print.is_of(*other), bucket_hash) {
            Entry::Occupied(mut occupied) => {
                let before = std::mem::replace(occupied.get_mut(), (print, value)).0;
                if before.is_saved() {
                    note(&mut self.changed, print);
                }
            }
            Entry::Vacant(vacant) => {
                vacant.insert((print, value));
                self.shared += usize::from(print.is_shared());
                note(&mut self.changed, print);
            }
        }
        self.bound_changes();
    }

    pub(super) fn remove(&mut self, print: Print) -> Option<T> {
        let found = self.entries.find_entry(print.bucket_hash(), |(other, _)| print.is_of(*other)).ok()?;
        self.shared -= usize::from(print.is_shared());
        let (found, value) = found.remove().0;
        if found.is_saved() {
            note(&mut self.changed, print);
        }
        Some(value)
    }

    /// Keys that come and go are noted each time. If nobody takes the notes, they are given up.
    fn bound_changes(&mut self) {
        if self.changed.as_ref().is_some_and(|changed| changed.len() > 1024 + 4 * self.entries.len()) {
            self.changed = None;
        }
    }

    /// Begins to note what changes from now on, or ends it.
    pub(super) fn record(&mut self, records: bool) {
        self.changed = records.then(Vec::new);
    }

    /// Adds an entry as it was saved.
    pub(super) fn load(&mut self, print: Print, value: T) {
        self.insert(print, value);
        if let Some((found, _)) = self.entries.find_mut(print.bucket_hash(), |(other, _)| print.is_of(*other)) {
            *found = print.saved();
        }
    }

    /// Says what has changed since the last time: the new values, and which are gone. Returns false if that is not known.
    pub(super) fn take_changes(&mut self, mut each: impl FnMut(Print, Option<&T>)) -> bool {
        let Some(changed) = &mut self.changed else { return false };
        for print in changed.drain(..) {
            match self.entries.find_mut(print.bucket_hash(), |(other, _)| print.is_of(*other)) {
                // It was noted twice.
                Some((found, _)) if found.is_saved() => {}
                Some((found, value)) => {
                    *found = print.saved();
                    each(print, Some(value));
                }
                None => each(print, None),
            }
        }
        // A peak should not be paid for ever.
        changed.shrink_to(1024);
        true
    }

    /// Says everything, and begins to note what changes from now on.
    pub(super) fn take_all(&mut self, mut each: impl FnMut(Print, Option<&T>)) {
        for (print, value) in &mut self.entries {
            each(print.unsaved(), Some(value));
            *print = print.saved();
        }
        self.changed = Some(Vec::new());
    }

    /// Removes expired entries that are not marked from the next `buckets` buckets, and shrinks the table when most of it is unused.
    pub(super) fn sweep(&mut self, now: u64, buckets: usize) {
        let count = self.entries.num_buckets();
        for _ in 0..buckets.min(count) {
            self.cursor = if self.cursor + 1 < count { self.cursor + 1 } else { 0 };
            if let Ok(found) = self.entries.get_bucket_entry(self.cursor)
                && !found.get().0.is_marked()
                && found.get().1.expired(now)
            {
                let ((print, _), _) = found.remove();
                self.shared -= usize::from(print.is_shared());
                if print.is_saved() {
                    note(&mut self.changed, print.unsaved());
                }
            }
        }
        if count > 64 && self.entries.len() < count / 8 {
            self.entries.shrink_to(self.entries.len() * 2, bucket_hash);
        }
    }

    /// Sweeps a few buckets every few calls.
    #[inline]
    pub(super) fn sweep_sometimes(&mut self, now: u64) {
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(16) {
            self.sweep(now, 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::print::Factors;

    struct Until(u64);

    impl Expires for Until {
        fn expired(&self, now: u64) -> bool {
            self.0 <= now
        }
    }

    fn prints(count: u64) -> Vec<Print> {
        let factors = Factors::random();
        (0..count).map(|number| factors.print(b"p", &number.to_le_bytes())).collect()
    }

    fn filled(prints: &[Print], until: u64) -> Table<Until> {
        let mut table = Table::default();
        prints.iter().for_each(|&print| table.insert(print, Until(until)));
        table
    }

    #[test]
    fn shared_entries_are_counted_apart() {
        let prints = prints(3);
        let shared = ["p", "q"].map(|policy| prints[0].shared(policy, 7));
        let mut table = filled(&prints, 5);
        shared.into_iter().chain(shared).for_each(|print| table.insert(print, Until(5)));
        table.insert(prints[0], Until(9));
        assert_eq!((table.len(), table.own(), table.get(prints[0]).unwrap().0), (5, 3, 9));
        assert!(table.remove(shared[0]).is_some() && table.remove(shared[0]).is_none());
        assert_eq!((table.len(), table.own()), (4, 3));
        assert!(table.remove(prints[1]).is_some());
        assert_eq!((table.len(), table.own()), (3, 2));
        table.sweep(5, 1000);
        assert_eq!((table.len(), table.own()), (1, 1), "the one that has not expired");
    }

    /// As many steps as there are buckets reach each of them once.
    #[test]
    fn a_sweep_goes_on_where_the_last_one_ended() {
        for _ in 0..20 {
            let prints = prints(100);
            let mut table = filled(&prints, 5);
            // Enough to keep the table from shrinking.
            prints[..40].iter().for_each(|&print| table.insert(print, Until(6)));
            assert_eq!(table.entries.num_buckets(), 128);
            for step in 1..=128 {
                table.sweep(4, 1);
                assert_eq!((table.cursor, table.len()), (step % 128, 100));
            }
            for _ in 0..128 {
                table.sweep(5, 1);
            }
            assert_eq!(table.len(), 40);
        }
    }

    #[test]
    fn a_few_buckets_are_swept_every_sixteen_calls() {
        let mut table = filled(&prints(112), 5);
        let cursors = (1..=48).map(|_| {
            table.sweep_sometimes(0);
            table.cursor
        });
        let cursors: Vec<usize> = cursors.collect();
        assert_eq!([14, 15, 30, 31, 46, 47].map(|call| cursors[call]), [0, 2, 2, 4, 4, 6]);
    }

    #[test]
    fn a_table_shrinks_when_less_than_an_eighth_is_used() {
        for (full, left, buckets) in [(800, 128, 1024), (800, 127, 512), (800, 100, 256), (50, 1, 64), (100, 15, 64)] {
            let prints = prints(full);
            let mut table = filled(&prints, 5);
            prints[left..].iter().for_each(|&print| _ = table.remove(print));
            table.sweep(0, 1);
            assert_eq!((table.entries.num_buckets(), table.len()), (buckets, left), "{left} of {full}");
            assert!(prints[..left].iter().all(|&print| table.get(print).is_some()));
        }
    }
}
