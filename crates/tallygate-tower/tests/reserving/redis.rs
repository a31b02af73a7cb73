//! Many streams on a real server, whose callers leave anywhere.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt;
use tallygate::clock::ManualClock;
use tallygate_redis::RedisStore;
use tallygate_testkit::Server;
use tallygate_testkit::random::Random;
use tallygate_testkit::wait::PATIENCE;
use tallygate_tower::{HoldTerms, OnAbandon};
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt, service_fn};

use super::rig::{Frames, Rig, TOKENS, by_words, tokens};

/// Of each stream exactly the words that passed are used, and of a call that its caller left before the response, nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_leave_anywhere_leave_nothing_held_and_nothing_lost() {
    let server = Server::redis().start();
    let store =
        RedisStore::builder(&server.url()).deadline(PATIENCE).connect_timeout(PATIENCE).connect().await.unwrap();
    let clock = ManualClock::new(tallygate::clock::Timestamp::from_micros(0));
    let terms = HoldTerms::DEFAULT.with_on_abandon(OnAbandon::Refund);
    let rig: Rig<RedisStore> = Rig::of([60, TOKENS], store, clock, terms, |layer| layer, by_words(tokens(40)));
    let mut calls = JoinSet::new();
    for call in 0..60 {
        let mut random = Random::new(call);
        let [leaves, words, read] = [(0, 3), (1, 40), (0, 40)].map(|(least, most)| random.between(least, most));
        let service = rig.layer.layer(service_fn(move |_: Request<()>| async move {
            tokio::task::yield_now().await;
            let frames = vec!["word"; usize::try_from(words).unwrap()];
            Ok::<_, Infallible>(Response::new(Frames { frames, fails: words % 5 == 0 }))
        }));
        calls.spawn(async move {
            let answer = service.oneshot(Request::new(()));
            // One caller in four leaves after a moment, whatever is under way then.
            let moment = Duration::from_micros(random.between(0, 2000));
            let answer = match leaves {
                0 => tokio::time::timeout(moment, answer).await.ok()?,
                _ => answer.await,
            };
            let mut body = answer.unwrap().into_body();
            let mut passed = 0;
            while passed < read
                && let Some(Ok(frame)) = body.frame().await
                && frame.data_ref().is_some_and(|data| data.starts_with(b"word"))
            {
                passed += 1;
                tokio::task::yield_now().await;
            }
            Some(passed)
        });
    }
    let passed: u64 = calls.join_all().await.into_iter().flatten().sum();
    // What is left to do is done in tasks of the store.
    let settled = async {
        loop {
            let [requests, tokens] = rig.left().await;
            if requests[1] + tokens[1] == 0 {
                return tokens;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let left = tokio::time::timeout(PATIENCE, settled).await.expect("nothing is held any more");
    assert_eq!(left, [TOKENS - passed, 0, 0]);
    assert!(passed > 50, "only {passed} words passed");
}
