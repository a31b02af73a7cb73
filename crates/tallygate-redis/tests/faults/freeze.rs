//! A server that hangs: SIGSTOP, then SIGCONT.

use std::time::{Duration, Instant};

use tallygate::store::StoreErrorKind;
use tallygate::{Algorithm, Check, Key};
use tallygate_redis::{ConnectError, RedisStore};
use tallygate_testkit::Server;
use tallygate_testkit::wait::PATIENCE;
use tokio::task::JoinSet;

use crate::support::{Answers, RedisLimiter, every_key_expires, flavours, patient, used, within, within_bound, yearly};

const DEADLINE: Duration = Duration::from_millis(150);
/// For a busy machine. A call that hangs would never end.
const SLACK: Duration = Duration::from_secs(5);
const AMOUNT: u64 = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_server_hangs_no_caller_and_admits_no_more() {
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        let (limiter, patient) = (within(&server.url(), DEADLINE).await, patient(&server.url()).await);
        let limit = yearly(Algorithm::SlidingLog, AMOUNT);
        let ask = async |limiter: &RedisLimiter, calls: u64| -> Answers {
            let mut callers = JoinSet::new();
            for _ in 0..8 {
                let (limiter, limit) = (limiter.clone(), limit.clone());
                callers.spawn(async move {
                    let check = Check::new(Key::new("frozen", "hot").unwrap(), &limit);
                    let mut answers = Answers::default();
                    for _ in 0..calls {
                        answers.ask(&limiter, check).await;
                    }
                    answers
                });
            }
            callers
                .join_all()
                .await
                .into_iter()
                .reduce(|mut all, one| {
                    all.merge(one);
                    all
                })
                .unwrap()
        };
        let mut all = ask(&patient, 3).await;
        all.no_errors();
        assert_eq!(all.allowed(), 24);

        server.stop();
        let hung = ask(&limiter, 8).await;
        hung.only_outages();
        assert_eq!(hung.errors.len(), 64, "no call was answered");
        assert!(hung.ambiguous() >= 1, "the first calls were sent");
        assert!(hung.slowest < DEADLINE + SLACK, "a call took {:?}", hung.slowest);
        let start = Instant::now();
        let hasty = RedisStore::builder(&server.url()).connect_timeout(DEADLINE).connect().await;
        let Err(ConnectError::Store(error)) = hasty else { panic!("connected") };
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        let reason = error.reason();
        assert!(reason.contains(&server.addr().to_string()), "{reason}");
        assert!(start.elapsed() < DEADLINE + SLACK);
        all.merge(hung);

        server.cont();
        let start = Instant::now();
        loop {
            let again = ask(&limiter, 1).await;
            again.only_outages();
            let recovered = again.errors.is_empty();
            all.merge(again);
            if recovered {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "it does not recover");
        }
        // What was sent while it hung was run: charged once, or not at all if it was never sent.
        let used = used(&patient, "frozen", b"hot", &limit).await;
        assert!(used >= all.allowed() && used <= all.allowed() + all.ambiguous(), "{used} in use after {all:?}");

        let last = ask(&patient, 20).await;
        last.no_errors();
        all.merge(last);
        within_bound(&limit, &all.records);
        assert!(all.allowed() <= AMOUNT && all.allowed() + all.ambiguous() >= AMOUNT);
        every_key_expires(&server);
    }
}
