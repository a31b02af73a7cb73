//! The thread that saves, beside calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use std::time::Duration;
use tallygate::{Limiter, MemoryStore};
use tallygate_testkit::wait;

#[test]
fn what_was_charged_under_load_is_there_after_a_normal_end() {
    let directory = tempfile::tempdir().unwrap();
    let (store, saver) = tallygate_disk::open(directory.path(), MemoryStore::builder()).unwrap();
    let store = Arc::new(store);
    let saving = saver.start(Arc::clone(&store), |saved| panic!("{saved:?}")).unwrap();
    let limit = Limiter::over(store).limit("p", "1000000000/365d fixed_window").unwrap();
    let (stop, charged) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let number = charged.fetch_add(1, Ordering::Relaxed);
                    assert!(limit.check_now(&(number % 100).to_string()).unwrap().allowed());
                }
            });
        }
        // The file has entries before the end.
        wait::until("the store is saved", Duration::from_secs(30), || {
            (saving.figures().entries == 100 && saving.figures().bytes > 0).then_some(())
        });
        stop.store(true, Ordering::Relaxed);
    });
    saving.end().unwrap();
    let (store, _saver) = tallygate_disk::open(directory.path(), MemoryStore::builder()).unwrap();
    let again = Limiter::new(store).limit("p", "1000000000/365d fixed_window").unwrap();
    let used = |subject: u64| 999_999_999 - again.check_now(&subject.to_string()).unwrap().binding().remaining();
    assert_eq!((0..100).map(used).sum::<u64>(), charged.load(Ordering::Relaxed));
}

#[test]
fn a_dropped_store_is_saved() {
    let directory = tempfile::tempdir().unwrap();
    let (store, saver) = tallygate_disk::open(directory.path(), MemoryStore::builder()).unwrap();
    let store = Arc::new(store);
    let saving = saver.start(Arc::clone(&store), |_| {}).unwrap();
    Limiter::over(store).limit("p", "5/day").unwrap().check_now("s").unwrap();
    drop(saving);
    let (store, _saver) = tallygate_disk::open(directory.path(), MemoryStore::builder()).unwrap();
    assert_eq!(store.len(), 1);
}
