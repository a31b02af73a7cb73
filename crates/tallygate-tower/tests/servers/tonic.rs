//! In tonic, as its own client sees it.

use std::time::Duration;

use prost::Message;
use tallygate_testkit::Server as Servers;
use tallygate_tower::{OnError, RateLimit, Rule};
use tokio::net::TcpListener;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<prost_types::Duration>,
}

async fn client<S: tallygate::Store + 'static>(layer: RateLimit<S>) -> HealthClient<Channel> {
    let layer = layer.peer(|connection: &TcpConnectInfo| connection.remote_addr().map(|address| address.ip()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    HealthClient::new(Endpoint::new(format!("http://{address}")).unwrap().connect().await.unwrap())
}

async fn check(client: &mut HealthClient<Channel>, service: &str) -> Result<(), Status> {
    client.check(HealthCheckRequest { service: service.to_owned() }).await.map(drop)
}

#[tokio::test]
async fn a_refusal_is_resource_exhausted_with_the_wait_in_it() {
    let mut client = client(RateLimit::per_client("1/min").unwrap()).await;
    check(&mut client, "").await.unwrap();
    let refused = check(&mut client, "").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);

    let details = RpcStatus::decode(refused.details()).unwrap();
    assert_eq!((details.code, details.message.as_str()), (8, refused.message()));
    let [detail] = &details.details[..] else { panic!("{details:?}") };
    assert_eq!(detail.type_url, "type.googleapis.com/google.rpc.RetryInfo");
    let delay: Duration = RetryInfo::decode(&detail.value[..]).unwrap().retry_delay.unwrap().try_into().unwrap();
    assert!((Duration::from_secs(55)..=Duration::from_secs(60)).contains(&delay), "{delay:?}");
    // Clients that retry by themselves wait for whole milliseconds, and never less than the delay.
    let pushback: u64 = refused.metadata().get("grpc-retry-pushback-ms").unwrap().to_str().unwrap().parse().unwrap();
    assert_eq!(u128::from(pushback), delay.as_micros().div_ceil(1000));
}

#[tokio::test]
async fn what_no_wait_will_cure_is_not_to_be_tried_again() {
    let mut client = client(RateLimit::per_client("0/min").unwrap()).await;
    let refused = check(&mut client, "").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.metadata().get("grpc-retry-pushback-ms").unwrap(), "-1");
    assert!(RpcStatus::decode(refused.details()).unwrap().details.is_empty());
}

#[tokio::test]
async fn failures_are_those_of_grpc() {
    let mut client = client(RateLimit::per_client("2/min").unwrap().count_failures()).await;
    let mut codes = Vec::new();
    for service in ["", "", "", "unknown", "", "unknown", "unknown", ""] {
        codes.push(check(&mut client, service).await.map_or_else(|status| status.code(), |()| Code::Ok));
    }
    let (ok, not_found, refused) = (Code::Ok, Code::NotFound, Code::ResourceExhausted);
    assert_eq!(codes, [ok, ok, ok, not_found, ok, not_found, refused, refused]);
}

#[tokio::test]
async fn a_dead_store_is_unavailable_where_a_rule_denies() {
    let redis = Servers::redis().start();
    let store = tallygate_redis::RedisStore::builder(&redis.url()).deadline(Duration::from_millis(300));
    let store = store.connect().await.unwrap();
    let rule = Rule::new("strict", "9/min").unwrap().on_error(OnError::Deny);
    let mut client = client(RateLimit::new().rule(rule).store(store)).await;
    check(&mut client, "").await.unwrap();
    redis.kill();
    assert_eq!(check(&mut client, "").await.unwrap_err().code(), Code::Unavailable);
}
