//! What a data directory costs, for a million keys or as many as are given:
//!
//! ```console
//! $ cargo run --release -p tallygate-disk --example million_keys -- 1000000
//! ```
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "it measures, in real time")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use tallygate::{BoundLimit, Limiter, MemoryStore};

/// Keys that change between two saves.
const CHANGED: u64 = 100_000;

fn timed<T>(what: &str, act: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = act();
    println!("{what:<64} {:>9.1} ms", start.elapsed().as_secs_f64() * 1e3);
    result
}

fn limited(store: &Arc<MemoryStore>) -> BoundLimit<MemoryStore> {
    Limiter::over(Arc::clone(store)).limit("api", "1000000/365d fixed_window").unwrap()
}

fn charge(limit: &BoundLimit<MemoryStore>, keys: impl Iterator<Item = u64>) {
    keys.for_each(|key| assert!(limit.check_now(&format!("user:{key}")).unwrap().allowed()));
}

/// Keys that are spread over all.
fn spread(keys: u64, round: u64) -> impl Iterator<Item = u64> {
    (0..CHANGED).map(move |key| (key * 7_919_999 + round * 31) % keys)
}

fn main() {
    let keys: u64 = std::env::args().nth(1).map_or(1_000_000, |keys| keys.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    // Room for all, so that no shard is full.
    let builder = || MemoryStore::builder().capacity(usize::try_from(keys).unwrap() * 2);
    let (store, mut saver) = tallygate_disk::open(directory.path(), builder()).unwrap();
    let store = Arc::new(store);
    let limit = limited(&store);
    charge(&limit, 0..keys);
    timed(&format!("save {keys} new keys"), || saver.save(&store).unwrap());
    let bytes = std::fs::metadata(directory.path().join("tallygate.redb")).unwrap().len();
    println!("{:<64} {:>9.1} MB", "size of the file", bytes as f64 / 1e6);
    for round in 0..5 {
        charge(&limit, spread(keys, round));
        timed(&format!("save {CHANGED} keys that have changed"), || saver.save(&store).unwrap());
    }
    charge(&limit, spread(keys, 5));
    let changes = timed(&format!("of which no call is decided, with {CHANGED} changes"), || store.changes());
    assert!(changes.unwrap().len() as u64 > CHANGED / 2);
    charge(&limit, spread(keys, 6));
    store.forget_changes();
    timed("after a failure: compare all, and save what differs", || saver.save(&store).unwrap());
    let all = timed("of which no call is decided", || store.everything());
    drop((all, saver));
    let loaded = timed(&format!("load {keys} keys"), || tallygate_disk::open(directory.path(), builder()).unwrap());
    assert_eq!(loaded.0.len() as u64, keys);
    let crashed = tempfile::tempdir().unwrap();
    std::fs::copy(directory.path().join("tallygate.redb"), crashed.path().join("tallygate.redb")).unwrap();
    let after = timed("load them after a crash", || tallygate_disk::open(crashed.path(), builder()).unwrap());
    assert_eq!(after.0.len() as u64, keys);
    drop((loaded, after));
    hot_path(keys);
}

/// The cost of a decision while it is being saved, and without a directory.
fn hot_path(keys: u64) {
    let rate = |limit: &BoundLimit<MemoryStore>| {
        let names: Vec<String> = (0..keys.min(100_000)).map(|key| format!("user:{key}")).collect();
        let (start, mut calls) = (Instant::now(), 0_u64);
        let mut longest = Duration::ZERO;
        while start.elapsed() < Duration::from_secs(3) {
            let before = Instant::now();
            for name in names.iter().cycle().skip(usize::try_from(calls).unwrap() % names.len()).take(1000) {
                limit.check_now(name).unwrap();
            }
            longest = longest.max(before.elapsed());
            calls += 1000;
        }
        let each = start.elapsed().as_secs_f64() * 1e9 / calls as f64;
        println!("{:<64} {each:>9.1} ns, a thousand at most {:.1} ms", "", longest.as_secs_f64() * 1e3);
    };
    println!("a decision on one of 100,000 keys, without a data directory");
    rate(&limited(&Arc::new(MemoryStore::new())));
    println!("and with one, while a thread saves");
    let directory = tempfile::tempdir().unwrap();
    let (store, saver) = tallygate_disk::open(directory.path(), MemoryStore::builder()).unwrap();
    let store = Arc::new(store);
    let saving = saver.start(Arc::clone(&store), |saved| panic!("{saved:?}")).unwrap();
    rate(&limited(&store));
    saving.end().unwrap();
}
