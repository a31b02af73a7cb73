//! `SCRIPT FLUSH` again and again: the scripts are sent again, and callers do not notice.

use std::sync::Arc;
use std::time::Duration;

use tallygate::{Algorithm, Check, Counter, Key, Limit};
use tallygate_testkit::Server;

use crate::support::{Load, calls_of, every_key_expires, flavours, patient, receipt, replays, used, yearly};

const FLUSHES: u64 = 150;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_scripts_change_no_answer() {
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        let limiter = patient(&server.url()).await;
        let limit = |&algorithm| Limit::builder(40, Duration::from_millis(50)).algorithm(algorithm).build().unwrap();
        let limits: Vec<Limit> = Algorithm::OVER_TIME.iter().map(limit).collect();
        let load = |limit: &Limit| Load::start(&limiter, limit, limit.algorithm().name(), "hot", 5);
        let loads: Vec<Load> = limits.iter().map(load).collect();
        let flushed = tokio::task::spawn_blocking({
            let mut connection = server.connect().unwrap();
            move || {
                for _ in 0..FLUSHES {
                    connection.call(&["SCRIPT", "FLUSH"]).unwrap().ok();
                    std::thread::sleep(Duration::from_millis(3));
                }
            }
        });

        // The other scripts at the same time: each call counts once.
        let counter = Counter::new(Arc::clone(limiter.store()), "calls").unwrap();
        let counter = counter.expires_after(Duration::from_secs(600)).unwrap();
        let (first, second) = (yearly(Algorithm::TokenBucket, 1_000_000), yearly(Algorithm::SlidingLog, 1_000_000));
        let both = [("first", &first), ("second", &second)]
            .map(|(policy, limit)| Check::new(Key::new(policy, "both").unwrap(), limit));
        let (mut rounds, mut given_back) = (0, 0);
        while !flushed.is_finished() {
            rounds += 1;
            assert_eq!(counter.incr().await.unwrap(), rounds);
            let decision = limiter.check_all(&both).await.unwrap();
            assert!(decision.allowed());
            if rounds % 3 == 0 {
                given_back += limiter.refund(&[receipt(both[0], decision.decided_at())]).await.unwrap()[0];
            }
        }
        flushed.await.unwrap();
        let rounds = u64::try_from(rounds).unwrap();
        assert_eq!(given_back, rounds / 3);
        assert_eq!(used(&limiter, "first", b"both", &first).await, rounds - given_back);
        assert_eq!(used(&limiter, "second", b"both", &second).await, rounds);

        for (load, limit) in loads.into_iter().zip(&limits) {
            let answers = load.finish().await;
            answers.no_errors();
            replays(limit, &answers.records);
        }
        // Sent in full at least once after most flushes.
        let sent = calls_of(&server, "eval");
        assert!(sent > FLUSHES, "only {sent} scripts were sent in full");
        every_key_expires(&server);
    }
}
