//! (draft)
use tollgate::{Algorithm, Limiter, ManualClock, MemoryStore, Timestamp};
use tollgate_testkit::traces::Trace;

#[tokio::test]
async fn swept_and_unswept() {
    for algorithm in Algorithm::ALL {
        for seed in 0..20 {
        let clock = ManualClock::new(Timestamp::from_micros(0));
        let one = Limiter::new(MemoryStore::builder().clock(clock.clone()).build());
        let two = Limiter::new(MemoryStore::builder().clock(clock.clone()).without_sweep().build());
        let denied = Trace::new(algorithm, seed, 100_000).run((&one, &clock), (&two, &clock)).await;
        match denied { Ok(n) => println!("{algorithm} {seed} ok, {n} denied"), Err(e) => println!("{algorithm} {e}") }
        }
    }
}
