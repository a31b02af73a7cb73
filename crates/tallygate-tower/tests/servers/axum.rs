//! In axum, however it is put there.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Extension;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router, serve};
use tallygate::policy::{Descriptor, Verdict};
use tallygate::{Check, Key, Limiter};
use tallygate_redis::RedisStore;
use tallygate_testkit::http::{Client, Response, request};
use tallygate_testkit::{FaultProxy, Mode, Server};
use tallygate_tower::{Caller, RateLimit, Rule};
use tokio::net::TcpListener;

/// Serves `app` on a free port until the runtime ends.
async fn start(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await.unwrap();
    });
    address
}

async fn asked(address: SocketAddr, method: &'static str, path: &'static str) -> Response {
    tokio::task::spawn_blocking(move || request(address, method, path, &[], b"")).await.unwrap()
}

async fn statuses(address: SocketAddr, calls: &[(&'static str, &'static str)]) -> Vec<u16> {
    let mut statuses = Vec::new();
    for (method, path) in calls {
        statuses.push(asked(address, method, path).await.status);
    }
    statuses
}

#[tokio::test]
async fn a_layer_covers_the_router_and_a_route_layer_only_what_it_has() {
    let app = |with: fn(Router, RateLimit) -> Router| {
        with(Router::new().route("/a", get(|| async { "a" })), RateLimit::per_client("1/min").unwrap())
    };
    let covered = start(app(|router, layer| router.layer(layer))).await;
    assert_eq!(statuses(covered, &[("GET", "/nowhere"), ("GET", "/a")]).await, [404, 429]);
    let routed = start(app(|router, layer| router.route_layer(layer))).await;
    let calls = [("GET", "/nowhere"), ("GET", "/nowhere"), ("GET", "/a"), ("GET", "/a")];
    assert_eq!(statuses(routed, &calls).await, [404, 404, 200, 429]);
}

/// A responder could only return `Response<Bytes>`, so neither `Json` nor `IntoResponse` fitted.
#[tokio::test]
async fn a_responder_returns_what_axum_handlers_return() {
    let layer = RateLimit::per_client("1/min").unwrap().respond(|refusal| {
        let body = Json([("retry_after", refusal.retry_after().map_or(0, |wait| wait.as_secs_f64().ceil() as u64))]);
        (StatusCode::TOO_MANY_REQUESTS, [("x-refused-by", "us")], body).into_response()
    });
    let address = start(Router::new().route("/", get(|| async { "hello" })).layer(layer)).await;
    assert_eq!(asked(address, "GET", "/").await.status, 200);
    let denied = asked(address, "GET", "/").await;
    assert_eq!((denied.status, denied.header("content-type")), (429, Some("application/json")));
    assert_eq!((denied.header("x-refused-by"), denied.header("retry-after")), (Some("us"), Some("60")));
    assert_eq!(denied.text(), r#"[["retry_after",60]]"#);
}

#[tokio::test]
async fn routes_are_counted_by_their_template() {
    let layer = RateLimit::new().rule(Rule::new("route", "2/min").unwrap().by(Caller::route()));
    let app =
        Router::new().route("/a/{id}", get(|| async { "a" })).route("/b", get(|| async { "b" })).route_layer(layer);
    let address = start(app).await;
    let calls = [("GET", "/a/1"), ("GET", "/a/2"), ("GET", "/a/3"), ("GET", "/b")];
    assert_eq!(statuses(address, &calls).await, [200, 200, 429, 200]);
}

#[tokio::test]
async fn a_header_may_be_named_as_it_is_usually_written() {
    let layer = RateLimit::new().rule(Rule::new("key", "1/min").unwrap().by(Caller::header("X-Api-Key")));
    let address = start(Router::new().route("/", get(|| async { "" })).layer(layer)).await;
    let statuses = tokio::task::spawn_blocking(move || {
        [("x-api-key", "a"), ("X-API-KEY", "a"), ("X-Api-Key", "b")]
            .map(|header| request(address, "GET", "/", &[header], b"").status)
    });
    assert_eq!(statuses.await.unwrap(), [200, 429, 200]);
}

#[tokio::test]
async fn handlers_see_the_verdict_and_clients_the_headers() {
    let handler = |Extension(verdict): Extension<Verdict>| async move {
        verdict.binding().unwrap().status().remaining().to_string()
    };
    let app = Router::new().route("/", get(handler)).layer(RateLimit::per_client("3/min").unwrap().share_verdict());
    let address = start(app).await;
    let first = asked(address, "GET", "/").await;
    assert_eq!((first.text(), first.header("ratelimit-policy")), ("2", Some("\"per-client\";q=3;w=60")));
    // A refusal of HEAD has a length and no body, and the connection stays usable.
    let last = tokio::task::spawn_blocking(move || {
        let mut client = Client::open(address).unwrap();
        for _ in 0..2 {
            client.request("GET", "/", &[], b"").unwrap();
        }
        assert_eq!(client.request("HEAD", "/", &[], b"").unwrap().status, 429);
        client.request("GET", "/", &[], b"").unwrap()
    });
    let last = last.await.unwrap();
    assert_eq!((last.status, last.header("content-type")), (429, Some("application/problem+json")));
    assert_eq!(last.header("content-length").unwrap(), last.body.len().to_string());
}

#[tokio::test]
async fn inner_and_outer_limits_hold_together() {
    let layer = |name: &str, text| RateLimit::new().rule(Rule::new(name, text).unwrap());
    let app = Router::new()
        .route("/dear", get(|| async { "" }).layer(layer("dear", "1/min")))
        .route("/cheap", get(|| async { "" }))
        .layer(layer("all", "4/min"));
    let address = start(app).await;
    let calls = [("GET", "/dear"), ("GET", "/dear"), ("GET", "/cheap"), ("GET", "/cheap"), ("GET", "/cheap")];
    assert_eq!(statuses(address, &calls).await, [200, 429, 200, 200, 429]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_apps_on_one_redis_are_one_limit() {
    let redis = Server::redis().start();
    let mut addresses = Vec::new();
    for _ in 0..2 {
        let store = RedisStore::builder(&redis.url()).deadline(Duration::from_secs(5)).connect().await.unwrap();
        let layer = RateLimit::per_client("3/min").unwrap().store(store);
        addresses.push(start(Router::new().route("/", get(|| async { "" })).layer(layer)).await);
    }
    let mut seen = Vec::new();
    for _ in 0..2 {
        for address in &addresses {
            seen.push(asked(*address, "GET", "/").await.status);
        }
    }
    assert_eq!(seen, [200, 200, 200, 429]);
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_tell_what_is_left_once_units_are_given_back() {
    let redis = Server::redis().start();
    let store = RedisStore::builder(&redis.url()).deadline(Duration::from_secs(5)).connect().await.unwrap();
    let routes = || {
        Router::new().route("/right", get(|| async { "" })).route("/wrong", get(|| async { StatusCode::UNAUTHORIZED }))
    };
    let failures = RateLimit::per_client("3/h sliding_log").unwrap().count_failures();
    for app in [routes().layer(failures.clone()), routes().layer(failures.store(store))] {
        let address = start(app).await;
        let mut left = Vec::new();
        for path in ["/right", "/wrong", "/right", "/wrong"] {
            let answer = asked(address, "GET", path).await;
            let told = answer.header("ratelimit").unwrap();
            left.push(told.split(';').nth(1).unwrap().to_owned());
        }
        assert_eq!(left, ["r=3", "r=2", "r=2", "r=1"]);
    }
}

/// Waits until the store answers, or until it does not.
async fn until(store: &Arc<RedisStore>, answers: bool) {
    let (limiter, any) = (Limiter::over(Arc::clone(store)), "1/h".parse::<tallygate_tower::Limit>().unwrap());
    while limiter.peek(Check::new(Key::new("any", "any").unwrap(), &any)).await.is_ok() != answers {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_store_did_not_charge_it_does_not_give_back() {
    let redis = Server::redis().start();
    let proxy = Arc::new(FaultProxy::start(redis.addr()));
    let store = RedisStore::builder(&proxy.url()).deadline(Duration::from_secs(1)).connect().await.unwrap();
    let store = Arc::new(store);
    let (back, asked_store) = (Arc::clone(&proxy), Arc::clone(&store));
    let failures = RateLimit::per_client("3/h").unwrap().count_failures().store(Arc::clone(&store));
    let right = move || async move {
        // The store is there again by the time of the response.
        back.set(Mode::Pass);
        until(&asked_store, true).await;
    };
    let app = Router::new()
        .route("/right", get(right))
        .route("/wrong", get(|| async { StatusCode::UNAUTHORIZED }))
        .layer(failures);
    let address = start(app).await;
    assert_eq!(statuses(address, &[("GET", "/wrong"), ("GET", "/wrong")]).await, [401, 401]);
    proxy.set(Mode::Reset);
    until(&store, false).await;
    // Decided by this process alone, and right: nothing of the two that were wrong comes back.
    assert_eq!(statuses(address, &[("GET", "/right")]).await, [200]);
    assert_eq!(statuses(address, &[("GET", "/wrong"), ("GET", "/wrong")]).await, [401, 429]);
}

/// Whether the second rule had room: for a call that counts not, one that does, and the same again.
async fn second_rule_had_room(layer: RateLimit) -> Vec<String> {
    let room =
        |Extension(verdict): Extension<Verdict>| async move { verdict.rulings()[1].status().allowed().to_string() };
    let wrong = move |verdict| async move { (StatusCode::UNAUTHORIZED, room(verdict).await) };
    let app = Router::new().route("/right", get(room)).route("/wrong", get(wrong)).layer(layer.share_verdict());
    let address = start(app).await;
    let mut had_room = Vec::new();
    for path in ["/right", "/wrong", "/right", "/wrong"] {
        had_room.push(asked(address, "GET", path).await.text().to_owned());
    }
    had_room
}

#[tokio::test]
async fn what_a_shadow_had_no_room_for_is_not_given_back() {
    let shadow = Rule::new("trial", "1/h").unwrap().mode(tallygate_tower::Mode::Shadow);
    let layer = RateLimit::new().rule(Rule::new("real", "9/h").unwrap()).rule(shadow).count_failures();
    assert_eq!(second_rule_had_room(layer).await, ["true", "true", "false", "false"]);
}

#[tokio::test]
async fn what_a_quota_had_no_room_for_is_not_given_back() {
    let quota = |name: &str, text| Rule::new(name, text).unwrap().mode(tallygate_tower::Mode::Quota);
    let layer = RateLimit::new().rule(quota("large", "9/h")).rule(quota("small", "1/h")).count_failures();
    assert_eq!(second_rule_had_room(layer).await, ["true", "true", "false", "false"]);
}

#[tokio::test]
async fn a_policy_file_of_the_server_holds_in_a_service() {
    let file = "policies:\n  - {name: per-user, domain: api, partition: [user], limit: 1/h, overrides: [{match: {plan: pro}, limit: 2/h}]}";
    let config = tallygate_config::Config::from_texts(&[("policies.yaml", file)]).unwrap();
    let layer = RateLimit::new().policies(config.policies.into(), "api", |parts| {
        let header = |name| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        Descriptor::new().with("user", header("x-user")).with("plan", header("x-plan"))
    });
    let address = start(Router::new().route("/", get(|| async { "" })).layer(layer)).await;
    let statuses = tokio::task::spawn_blocking(move || {
        let calls = [("ann", "free"), ("ann", "free"), ("bob", "pro"), ("bob", "pro"), ("bob", "pro")];
        calls.map(|(user, plan)| request(address, "GET", "/", &[("x-user", user), ("x-plan", plan)], b"").status)
    });
    assert_eq!(statuses.await.unwrap(), [200, 429, 200, 200, 429]);
}
