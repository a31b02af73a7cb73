//! The examples that one process is enough for.

use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::process::Listening;

fn statuses(count: usize, mut call: impl FnMut() -> u16) -> Vec<u16> {
    (0..count).map(|_| call()).collect()
}

#[test]
fn routes_have_limits_of_their_own_and_one_together() {
    let service = Listening::start("axum_routes", &[]);
    let search = || service.status("GET", "/search", &[], "");
    assert_eq!(statuses(6, search), [200, 200, 200, 200, 200, 429]);
    // Another path of the same template is the same route, and writes are a rule of their own.
    let mut at = 0;
    let write = || {
        at += 1;
        service.status("POST", &format!("/notes/{at}"), &[], "")
    };
    assert_eq!(statuses(4, write), [200, 200, 200, 429]);
    let notes = service.call("GET", "/notes", &[], "");
    assert_eq!(notes.status, 200);
    // Six searches, for the inner limit is a decision of its own; three writes, for a refused one is counted by no rule; and
    // this call.
    assert!(notes.header("ratelimit").unwrap().contains("\"per-client\";r=90;"), "{notes:?}");
    let health = service.call("GET", "/health", &[], "");
    assert_eq!((health.status, health.header("ratelimit")), (200, None));
    assert!(!service.log().contains("ERROR"));
}

#[test]
fn only_wrong_passwords_count() {
    let service = Listening::start("login", &[]);
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let right = || service.status("POST", "/login", &form, "name=alice&password=correct+horse");
    let wrong = || service.status("POST", "/login", &form, "name=alice&password=guess");
    assert_eq!(statuses(10, right), [200; 10]);
    assert_eq!(statuses(4, wrong), [401; 4]);
    assert_eq!(statuses(3, right), [200; 3]);
    assert_eq!(wrong(), 401);
    assert_eq!(statuses(2, wrong), [429; 2]);
    assert_eq!(right(), 429, "who guessed too often waits, whatever comes next");
    assert_eq!(service.status("GET", "/", &[], ""), 200);
}

#[test]
fn guesses_at_once_find_no_gap() {
    let service = Listening::start("login", &[]);
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let looked_at: usize = std::thread::scope(|scope| {
        let guess = || service.status("POST", "/login", &form, "name=alice&password=guess");
        let guesses: Vec<_> = (0..40).map(|_| scope.spawn(guess)).collect();
        guesses.into_iter().map(|guess| usize::from(guess.join().unwrap() == 401)).sum()
    });
    assert_eq!(looked_at, 5);
}

#[tokio::test]
async fn grpc_calls_are_limited() {
    let service = Listening::start("tonic_service", &[]);
    let channel = Endpoint::new(format!("http://{}", service.address)).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    for _ in 0..5 {
        client.check(HealthCheckRequest::default()).await.unwrap();
    }
    let refused = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert!(refused.message().contains("per-client"), "{refused:?}");
}
