//! Units taken in advance from real servers, on their own clocks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tallygate::decision::Source;
use tallygate::store::Allotments;
use tallygate::{Check, Key, Limit};
use tallygate_redis::RedisStore;
use tallygate_testkit::Server;
use tallygate_testkit::wait::PATIENCE;
use tokio::task::JoinSet;

use crate::support::{flavours, limit};

const SECOND: u128 = 1_000_000;
/// Long enough for the ends of two windows.
const SPAN: Duration = Duration::from_millis(2200);

/// A unit that is spent after the end of its window would be one too many in the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_of_a_real_server_admits_more_than_the_limit() {
    let mut servers = JoinSet::new();
    for flavour in flavours() {
        servers.spawn(ends_of_windows(Server::of(flavour).start()));
    }
    while let Some(ended) = servers.join_next().await {
        ended.unwrap();
    }
}

async fn ends_of_windows(server: Server) {
    let limit: Limit = limit("1500/s fixed_window");
    let mut callers = JoinSet::new();
    for _ in 0..2 {
        let store = RedisStore::builder(&server.url()).deadline(PATIENCE).connect_timeout(PATIENCE).connect().await;
        let process = Arc::new(tallygate::Limiter::new(Allotments::new(store.unwrap())));
        for _ in 0..8 {
            callers.spawn(call(Arc::clone(&process), limit.clone()));
        }
    }
    let (mut admitted, mut local) = (BTreeMap::new(), 0);
    for (windows, his_local) in callers.join_all().await {
        windows.into_iter().for_each(|(window, units)| *admitted.entry(window).or_insert(0) += units);
        local += his_local;
    }
    assert!(local > 0 && admitted.len() > 1, "{local} {admitted:?}");
    assert!(admitted.values().all(|&units| units <= 1500), "{admitted:?}");
}

/// What one caller was admitted in each window, and how much of it without asking the server.
async fn call(process: Arc<tallygate::Limiter<Allotments<RedisStore>>>, limit: Limit) -> (BTreeMap<u128, u64>, u64) {
    let check = Check::new(Key::new("hot", "everybody").unwrap(), &limit).with_allotment(true);
    let (mut admitted, mut local, start) = (BTreeMap::new(), 0, Instant::now());
    while start.elapsed() < SPAN {
        let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
        let decision = process.check(check).await.unwrap();
        if !decision.allowed() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        let window = u128::from(decision.decided_at().unwrap().as_micros()) / SECOND;
        *admitted.entry(window).or_insert(0) += 1;
        if decision.source() == Source::Allotment {
            local += 1;
            // The server is on this machine. A call that began after the end of a window spends nothing of it.
            assert!(before < (window + 1) * SECOND, "{before} in {window}");
        }
    }
    (admitted, local)
}
