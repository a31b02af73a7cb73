//! A store that does not answer, and a caller that does not wait.

use std::time::Duration;

use tallygate::policy::OnError;
use tallygate_testkit::Server;
use tallygate_testkit::wait::PATIENCE;
use tokio::time::Instant;
use tonic::Request;

use super::*;
use crate::store::StoreSpec;

/// Far beyond what any caller here waits: only the caller's own deadline can end a question, and nobody can know yet whether
/// the store is down.
const STORE_DEADLINE: Duration = Duration::from_secs(20);

fn policies() -> Vec<(Policy, Rule)> {
    let one = |on_error: OnError| (policy(on_error.name(), "2/day").with_on_error(on_error), by(on_error.name()));
    OnError::ALL.iter().copied().map(one).collect()
}

/// A server whose store was there and then froze.
async fn frozen() -> (Served, Server) {
    let redis = Server::redis().start();
    let spec = StoreSpec { deadline: STORE_DEADLINE, audit_every: Duration::ZERO, ..StoreSpec::new(&redis.url()) };
    let served = Served::new(app(ServedStore::start(spec).unwrap(), policies()));
    let mut condition = served.app.store().subscribe();
    tokio::time::timeout(PATIENCE, condition.wait_for(Result::is_ok)).await.unwrap().unwrap();
    // The connection, the scripts and this process are warm: what is measured is the waiting.
    let warm = served.ask_about(&[descriptor(&[("allow", "warm")])]).await;
    assert_eq!(warm.statuses[0].limit_remaining, 1);
    redis.stop();
    (served, redis)
}

async fn ask_within(
    served: &Served,
    timeout: &str,
    on_error: OnError,
    subject: &str,
) -> (Result<RateLimitResponse, tonic::Status>, Duration) {
    let mut client = served.client().await;
    let mut asked = Request::new(request(vec![descriptor(&[(on_error.name(), subject)])]));
    // Set here, because the timer of the client must not end the call.
    asked.metadata_mut().insert("grpc-timeout", timeout.parse().unwrap());
    let began = Instant::now();
    let answer = client.should_rate_limit(asked).await;
    (answer.map(tonic::Response::into_inner), began.elapsed())
}

/// Late is not down: what is only late is not allowed.
fn expected(on_error: OnError) -> Code {
    if on_error == OnError::Local { Code::Ok } else { Code::OverLimit }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_policy_answers_in_its_own_way_before_the_caller_gives_up() {
    let (served, redis) = frozen().await;
    for &on_error in OnError::ALL {
        let (answer, took) = ask_within(&served, "500m", on_error, "a").await;
        let answer = answer.unwrap();
        assert_eq!(codes(&answer), [expected(on_error); 2], "{on_error}");
        let patience = Duration::from_millis(400)..Duration::from_millis(500);
        assert!(patience.contains(&took), "{on_error} took {took:?}: the store has its time, and the way back");
        match on_error {
            OnError::Allow | OnError::Deny => {
                assert_eq!(header(&answer, "ratelimit"), None, "nobody knows the numbers");
                assert_eq!(header(&answer, "retry-after"), Some("1"));
                assert_eq!(answer.statuses[0].duration_until_reset.unwrap().seconds, 1);
                let body = problem(&answer);
                assert!(body["type"].as_str().unwrap().ends_with("temporary-reduced-capacity"), "{body}");
                assert_eq!(body.get("status"), None, "the proxy chooses another");
            }
            _ => assert_eq!(answer.statuses[0].limit_remaining, 1),
        }
    }
    redis.cont();
}

#[tokio::test(flavor = "multi_thread")]
async fn envoys_20_ms_are_enough() {
    let (served, redis) = frozen().await;
    for &on_error in OnError::ALL {
        let mut fastest = Duration::MAX;
        for attempt in 0..20 {
            // A machine busy with other tests may be late now and then; one that is never in time has not tried.
            let (answer, took) = ask_within(&served, "20m", on_error, &attempt.to_string()).await;
            // So late that the client itself gave up.
            let Ok(answer) = answer else { continue };
            assert_eq!(codes(&answer), [expected(on_error); 2], "{on_error}");
            fastest = fastest.min(took);
            if fastest < Duration::from_millis(20) {
                break;
            }
        }
        assert!(fastest < Duration::from_millis(20), "{on_error}: the fastest took {fastest:?}");
    }
    redis.cont();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_deadline_the_store_is_waited_for() {
    let (served, redis) = frozen().await;
    let mut waiting = tokio::spawn(async move {
        let answer = served.ask_about(&[descriptor(&[("deny", "x")])]).await;
        (served, answer)
    });
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut waiting).await.is_err(), "nothing answered yet");
    redis.cont();
    let (_served, answer) = waiting.await.unwrap();
    assert_eq!((codes(&answer), answer.statuses[0].limit_remaining), (vec![Code::Ok; 2], 1));
}
