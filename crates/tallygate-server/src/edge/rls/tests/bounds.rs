//! Questions at and beyond the bounds.

use proptest::prelude::*;
use prost::Message as _;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Status};

use super::*;
use crate::decision_event::Api;
use crate::edge::access::Credentials;
use crate::edge::bounds::{MAX_DESCRIPTORS, MAX_ENTRIES};
use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;

/// Sends bytes as they are.
#[derive(Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = RateLimitResponse;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        prost::bytes::BufMut::put_slice(to, &item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = RateLimitResponse;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<RateLimitResponse>, Status> {
        RateLimitResponse::decode(from).map(Some).map_err(|error| Status::unknown(error.to_string()))
    }
}

impl Served {
    async fn send(&self, bytes: Vec<u8>) -> Result<RateLimitResponse, Status> {
        let mut grpc = Grpc::new(self.channel().await);
        grpc.ready().await.unwrap();
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit".parse().unwrap();
        grpc.unary(Request::new(bytes), path, Raw).await.map(tonic::Response::into_inner)
    }

    async fn complaint(&self, request: RateLimitRequest) -> String {
        let status = self.client().await.should_rate_limit(request).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        status.message().to_owned()
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_said_clearly() {
    let served = Served::common();
    let one = descriptor(&[("user", "u")]);
    let no_domain = RateLimitRequest { domain: String::new(), ..request(vec![one.clone()]) };
    assert!(served.complaint(no_domain).await.contains("domain is empty"));
    assert!(served.complaint(request(Vec::new())).await.contains("no descriptors"));
    for unit in [0, 7, -1, i32::MAX] {
        let limit = Some(RateLimitOverride { requests_per_unit: 1, unit });
        let unit = served.complaint(request(vec![RateLimitDescriptor { limit, ..one.clone() }])).await;
        assert!(unit.contains("no unit"), "{unit}");
    }
}

/// Refused, whatever the proxy makes of errors.
#[track_caller]
fn assert_over_limit(response: &RateLimitResponse, descriptors: usize, says: &str) {
    assert_eq!(codes(response), vec![Code::OverLimit; descriptors + 1]);
    assert_eq!(header(response, "content-type"), Some("application/problem+json"));
    let detail = problem(response)["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains(says), "{detail}");
}

/// Each was an error of gRPC, on which Envoy lets requests pass.
#[tokio::test]
async fn what_a_client_can_cause_is_over_limit_and_not_an_error() {
    let served = Served::common();
    let one = descriptor(&[("user", "u")]);
    let many = served.ask(request(vec![one.clone(); MAX_DESCRIPTORS + 1])).await;
    assert_over_limit(&many, MAX_DESCRIPTORS, "33 descriptors");
    let wide = descriptor(&vec![("k", "v"); MAX_ENTRIES + 1]);
    let wide = served.ask(request(vec![one.clone(), wide])).await;
    assert_over_limit(&wide, 2, "Descriptor 1 has 17 entries");
    assert_over_limit(&served.send(vec![0xff; 20]).await.unwrap(), 0, "invalid RateLimitRequest");
    assert_eq!(calls(&served.app, "rls"), [0, 0, 0, 3]);
    assert_eq!(codes(&served.ask(request(vec![one])).await), [Code::Ok; 2], "nothing was charged");
}

/// It had a status for each: 524 KB for a message of 256 KiB, and more in JSON.
#[tokio::test]
async fn the_answer_to_too_many_descriptors_was_twice_as_large_as_the_request() {
    let served = Served::common();
    let answer = served.ask(request(vec![descriptor(&[]); 20_000])).await;
    assert_over_limit(&answer, MAX_DESCRIPTORS, "20000 descriptors");
}

/// 33 patterns in one header were INVALID_ARGUMENT, every time.
#[tokio::test]
async fn a_call_under_too_many_policies_is_over_limit() {
    let named = |at: usize| {
        (policy(&format!("p{at}"), "3/min"), Rule::new().when("ua", Want::one_of([&*format!("*tok{at:02}*")])))
    };
    let served = Served::new(app(still_store(), (0..40).map(named).collect()));
    let tokens = |count: usize| (0..count).map(|at| format!("tok{at:02} ")).collect::<String>();
    let ask = async |count| served.ask_about(&[descriptor(&[("ua", &tokens(count))])]).await.overall_code();
    assert_eq!([ask(32).await, ask(33).await, ask(33).await], [Code::Ok, Code::OverLimit, Code::OverLimit]);
}

async fn raw_answer(settings: &ListenSettings, method: http::Method, body: axum::body::Body) -> RateLimitResponse {
    let served = Served::with(app(still_store(), common_policies()), settings);
    let request = http::Request::builder().method(method);
    answer_without_a_client(&served, request.body(body).unwrap()).await
}

/// Without the timer of tonic's client, which races with that of the server.
async fn answer_without_a_client(served: &Served, mut request: http::Request<axum::body::Body>) -> RateLimitResponse {
    use http::HeaderValue;
    use http_body_util::BodyExt as _;
    use hyper_util::rt::{TokioExecutor, TokioIo};

    let stream = tokio::net::TcpStream::connect(served.addr).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let path = "http://proxy/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    *request.uri_mut() = http::Uri::from_static(path);
    request.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    request.headers_mut().insert("te", HeaderValue::from_static("trailers"));
    let response = sender.send_request(request).await.unwrap();
    assert_eq!((response.status().as_u16(), response.headers().get("grpc-status")), (200, None));
    let collected = response.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["grpc-status"], "0");
    RateLimitResponse::decode(collected.to_bytes().slice(5..)).unwrap()
}

/// A message as gRPC sends it.
fn framed(request: &RateLimitRequest) -> Vec<u8> {
    let message = request.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], &message].concat()
}

/// The beginning of a message.
pub(super) struct Unfinished(pub(super) bool);

impl http_body::Body for Unfinished {
    type Data = axum::body::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        match std::mem::replace(&mut self.0, true) {
            false => std::task::Poll::Ready(Some(Ok(http_body::Frame::data(vec![0, 0, 0, 1].into())))),
            true => std::task::Poll::Pending,
        }
    }
}

/// DEADLINE_EXCEEDED, and UNAVAILABLE, let requests pass as well.
#[tokio::test]
async fn a_message_that_never_comes_and_a_call_that_is_shed_are_over_limit() {
    let brief = ListenSettings { request_timeout: std::time::Duration::from_millis(200), ..ListenSettings::default() };
    let slow = raw_answer(&brief, http::Method::POST, axum::body::Body::new(Unfinished(false))).await;
    assert_over_limit(&slow, 0, "did not arrive in time");
    let full = ListenSettings { max_in_flight: 0, ..ListenSettings::default() };
    let shed = raw_answer(&full, http::Method::POST, axum::body::Body::from(vec![0; 5])).await;
    assert_over_limit(&shed, 0, "Too many requests are in flight");
    assert_eq!(header(&shed, "retry-after"), Some("1"));
}

/// The service read it itself, outside the budget of bodies, while the request held a place in flight.
#[tokio::test]
async fn the_body_of_a_call_with_get_was_read_without_a_limit() {
    let whole = framed(&request(vec![descriptor(&[("user", "u")])]));
    for method in [http::Method::GET, http::Method::DELETE] {
        for body in [axum::body::Body::from(whole.clone()), axum::body::Body::new(Unfinished(false))] {
            let answer = raw_answer(&ListenSettings::default(), method.clone(), body).await;
            assert_over_limit(&answer, 0, "not one message");
        }
    }
}

/// Envoy had given up, and the call was charged afterwards.
#[tokio::test]
async fn a_call_without_a_turn_before_its_deadline_is_over_limit() {
    let many = (0..1001).map(|at| (policy(&format!("p{at}"), "9/h"), when("user", &at.to_string())));
    let served = Served::new(app(still_store(), many.collect()));
    let mut turns = Vec::new();
    while let Ok(turn) = served.app.turns.take(1001, 1, Some(tokio::time::Instant::now())).await {
        turns.push(turn);
    }
    let message = framed(&request(vec![descriptor(&[("user", "5")])]));
    let late = http::Request::post("/").header("grpc-timeout", "20m").body(message.into()).unwrap();
    let answer = answer_without_a_client(&served, late).await;
    assert_over_limit(&answer, 1, "Too many calls are under way; nothing was charged.");
    assert_eq!(header(&answer, "retry-after"), Some("1"));
}

/// A refund can give back what was never charged, so it needs a permission; and what lacks it must not pass for an error.
#[tokio::test]
async fn a_refund_without_the_permission_refuses_and_gives_nothing_back() {
    let set = PolicySet::new(vec![Domain::new("edge", common_policies()).unwrap()]).unwrap();
    let token = crate::Token::new("shop:refund:0123456789abcdef").unwrap();
    let settings = Settings { token: Some(token), refunds: Some(Refunds::Token), ..Settings::default() };
    let served = Served::new(App::new(still_store().into(), set, &settings));
    let charge = descriptor(&[("user", "u")]);
    let refund = RateLimitDescriptor { is_negative_hits: true, ..charge.clone() };
    for _ in 0..3 {
        assert_eq!(codes(&served.ask_about(std::slice::from_ref(&charge)).await), [Code::Ok; 2]);
    }
    let other = descriptor(&[("path", "/login")]);
    assert_over_limit(&served.ask_about(&[refund.clone(), other.clone()]).await, 2, "token");
    assert_eq!(
        codes(&served.ask_about(std::slice::from_ref(&charge)).await),
        [Code::OverLimit; 2],
        "nothing was given back"
    );
    assert_eq!(codes(&served.ask_about(&[other]).await), [Code::Ok; 2], "and nothing charged");
    let mut permitted = Request::new(request(vec![refund]));
    permitted.metadata_mut().insert("authorization", "Bearer 0123456789abcdef".parse().unwrap());
    assert!(served.client().await.should_rate_limit(permitted).await.is_ok());
    assert_eq!(codes(&served.ask_about(&[charge]).await), [Code::Ok; 2]);
}

#[tokio::test]
async fn checks_need_a_token_over_grpc_too_if_one_is_for_checks() {
    let set = PolicySet::new(vec![Domain::new("edge", common_policies()).unwrap()]).unwrap();
    let token = crate::Token::new("edge:check:0123456789abcdef\nother:read:fedcba9876543210").unwrap();
    let served =
        Served::new(App::new(still_store().into(), set, &Settings { token: Some(token), ..Settings::default() }));
    let ask = async |token: &str| {
        let mut request = Request::new(request(vec![descriptor(&[("user", "u")])]));
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        served.client().await.should_rate_limit(request).await.map(|answer| answer.into_inner().overall_code())
    };
    assert_eq!(ask("0123456789abcdef").await.unwrap(), Code::Ok);
    assert_eq!(ask("fedcba9876543210").await.unwrap_err().code(), tonic::Code::PermissionDenied);
    assert_eq!(ask("a wrong one, and long").await.unwrap_err().code(), tonic::Code::Unauthenticated);
}

#[tokio::test]
async fn all_that_is_allowed_at_once_is_answered() {
    let served = Served::common();
    let users: Vec<String> = (0..MAX_DESCRIPTORS).map(|at| at.to_string()).collect();
    let all = users.iter().map(|user| descriptor(&vec![("user", user.as_str()); MAX_ENTRIES])).collect();
    assert_eq!(codes(&served.ask(request(all)).await), [Code::Ok; MAX_DESCRIPTORS + 1]);
}

#[tokio::test]
async fn long_values_and_keys_count_like_any_other() {
    let served = Served::common();
    let [one, other] = ["a", "b"].map(|end| "x".repeat(20_000) + end);
    for _ in 0..3 {
        assert_eq!(codes(&served.ask_about(&[descriptor(&[("user", &one)])]).await), [Code::Ok; 2]);
    }
    assert_eq!(codes(&served.ask_about(&[descriptor(&[("user", &one)])]).await), [Code::OverLimit; 2]);
    assert_eq!(codes(&served.ask_about(&[descriptor(&[("user", &other)])]).await), [Code::Ok; 2]);
    let beside = [("user", one.as_str()), (other.as_str(), ""), ("", "")];
    assert_eq!(codes(&served.ask_about(&[descriptor(&beside)]).await), [Code::OverLimit; 2]);
}

#[tokio::test]
async fn bytes_that_are_no_text_count_like_any_other() {
    let served = Served::common();
    let bytes = |user: [u8; 2]| {
        let mut bytes = request(vec![descriptor(&[("user", "\u{1}\u{2}")])]).encode_to_vec();
        let at = bytes.windows(2).position(|two| two == [1, 2]).unwrap();
        bytes[at..at + 2].copy_from_slice(&user);
        bytes
    };
    for _ in 0..3 {
        assert_eq!(served.send(bytes([0xff, 0x80])).await.unwrap().overall_code(), Code::Ok);
    }
    assert_eq!(served.send(bytes([0xff, 0x80])).await.unwrap().overall_code(), Code::OverLimit);
    assert_eq!(served.send(bytes([0xff, 0x81])).await.unwrap().overall_code(), Code::Ok, "somebody else");
}

#[tokio::test]
async fn a_message_that_is_too_large_is_over_limit() {
    let settings = ListenSettings { max_body: 4096, ..ListenSettings::default() };
    let served = Served::with(app(still_store(), common_policies()), &settings);
    let large = request(vec![descriptor(&[("user", &"x".repeat(5000))])]);
    assert_over_limit(&served.ask(large).await, 0, "larger than 4096 bytes");
    assert_eq!(codes(&served.ask_about(&[descriptor(&[("user", &"x".repeat(3000))])]).await), [Code::Ok; 2]);
}

#[tokio::test]
async fn other_methods_and_services_are_not_there() {
    let served = Served::common();
    for path in ["/envoy.service.ratelimit.v3.RateLimitService/Other", "/some.Service/Method"] {
        let mut grpc = Grpc::new(served.channel().await);
        grpc.ready().await.unwrap();
        let answer = grpc.unary(Request::new(Vec::new()), path.parse().unwrap(), Raw).await;
        assert_eq!(answer.unwrap_err().code(), tonic::Code::Unimplemented, "{path}");
    }
}

fn text() -> impl Strategy<Value = String> {
    const KNOWN: &[&str] =
        &["user", "path", "/login", "watched", "free", "paid", "role", "staff", "nobody", "both", ""];
    prop_oneof![4 => prop::sample::select(KNOWN).prop_map(str::to_owned), 1 => ".{0,8}", 1 => "x{900,1100}"]
}

fn any_descriptor() -> impl Strategy<Value = RateLimitDescriptor> {
    let entries = prop::collection::vec((text(), text()).prop_map(|(key, value)| Entry { key, value }), 0..5);
    let limit = (prop_oneof![0..5_u32, any::<u32>()], -1..9_i32);
    let limit = limit.prop_map(|(requests_per_unit, unit)| RateLimitOverride { requests_per_unit, unit });
    let units = prop_oneof![Just(None), (0..4_u64).prop_map(Some), any::<u64>().prop_map(Some)];
    (entries, prop::option::weighted(0.2, limit), units, any::<bool>()).prop_map(
        |(entries, limit, hits_addend, is_negative_hits)| RateLimitDescriptor {
            entries,
            limit,
            hits_addend,
            is_negative_hits,
        },
    )
}

fn any_request() -> impl Strategy<Value = RateLimitRequest> {
    let domain = prop_oneof![8 => Just("edge".to_owned()), 1 => ".{0,3}"];
    let units = prop_oneof![0..3_u32, any::<u32>()];
    (domain, prop::collection::vec(any_descriptor(), 0..7), units)
        .prop_map(|(domain, descriptors, hits_addend)| RateLimitRequest { domain, descriptors, hits_addend })
}

proptest! {
    /// One store for all requests of a case, so that limits are used up on the way.
    #[test]
    fn each_descriptor_has_its_status(requests in prop::collection::vec(any_request(), 1..12)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let app = app(still_store(), common_policies());
        for request in requests {
            let descriptors = request.descriptors.len();
            let sensible = !request.domain.is_empty() && descriptors > 0;
            let units_known = request.descriptors.iter().all(|one| {
                one.limit.is_none_or(|limit| limit.requests_per_unit == 0 || (1..=6).contains(&limit.unit))
            });
            let from = Credentials::of(&http::Request::new(()).into_parts().0);
            match runtime.block_on(crate::edge::rls::should_rate_limit(&app, Api::Rls, request, &from, None)) {
                Ok((response, _)) => {
                    prop_assert!(sensible && units_known);
                    prop_assert_eq!(response.statuses.len(), descriptors);
                    let codes = codes(&response);
                    prop_assert!(!codes.contains(&Code::Unknown));
                    let over = response.overall_code() == Code::OverLimit;
                    prop_assert_eq!(over, !response.raw_body.is_empty());
                    prop_assert_eq!(over, header(&response, "content-type").is_some());
                    prop_assert!(over || header(&response, "retry-after").is_none());
                    prop_assert!(!over || codes[1..].contains(&Code::OverLimit));
                }
                Err(_) => prop_assert!(!sensible || !units_known),
            }
        }
    }
}

/// INVALID_ARGUMENT, which Envoy lets pass: a caller who matched 33 policies was not limited at all.
#[tokio::test]
async fn a_request_under_more_policies_than_a_decision_has_is_over_the_limit() {
    let many = (0..40).map(|number| (policy(&format!("p{number}"), "9/h"), when("ua", &format!("*tok{number:02}*"))));
    let served = Served::new(app(still_store(), many.collect()));
    let ask = async |count: usize| {
        let agent: Vec<String> = (0..count).map(|number| format!("tok{number:02}")).collect();
        served.ask(request(vec![descriptor(&[("ua", &agent.join(" "))])])).await
    };
    assert_eq!(codes(&ask(32).await), [Code::Ok; 2]);
    let denied = ask(33).await;
    assert_eq!(codes(&denied), [Code::OverLimit; 2]);
    let body = String::from_utf8(denied.raw_body).unwrap();
    assert!(body.contains("More than 32 limits apply"), "{body}");
    assert_eq!(codes(&ask(1).await), [Code::Ok; 2], "nothing was charged");
}
