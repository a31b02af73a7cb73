//! Health and reflection.

use std::time::Duration;

use prost::Message as _;
use prost_types::FileDescriptorProto;
use tallygate_testkit::Server;
use tallygate_testkit::wait::PATIENCE;
use tonic::codegen::tokio_stream::{StreamExt as _, once};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus::{self, NotServing, ServiceUnknown, Serving};
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::{v1, v1alpha};

use super::bounds::Unfinished;
use super::*;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use crate::store::StoreSpec;

fn about(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

async fn health(client: &mut HealthClient<Channel>, service: &str) -> ServingStatus {
    client.check(about(service)).await.unwrap().into_inner().status()
}

#[tokio::test]
async fn health_is_that_of_the_whole_server_and_of_the_service() {
    let served = Served::common();
    let mut client = HealthClient::new(served.channel().await);
    // The last is what envoyproxy/ratelimit registers, and what its users have in their health checks.
    for service in ["", SERVICE_NAME, "ratelimit"] {
        assert_eq!(health(&mut client, service).await, Serving);
    }
    assert_eq!(client.check(about("other")).await.unwrap_err().code(), tonic::Code::NotFound);
    served.app.draining.send_replace(true);
    for service in ["", SERVICE_NAME, "ratelimit"] {
        assert_eq!(health(&mut client, service).await, NotServing);
    }
}

#[tokio::test]
async fn a_watcher_sees_the_store_come_and_go_and_the_server_stop() {
    let redis = Server::redis().start();
    let spec = StoreSpec { audit_every: Duration::ZERO, ..StoreSpec::new(&redis.url()) };
    let served = Served::new(app(ServedStore::start(spec).unwrap(), common_policies()));
    let mut condition = served.app.store().subscribe();
    tokio::time::timeout(PATIENCE, condition.wait_for(Result::is_ok)).await.unwrap().unwrap();
    let mut client = HealthClient::new(served.channel().await);
    let mut watched = client.watch(about(SERVICE_NAME)).await.unwrap().into_inner();
    let mut next = async || {
        let change = tokio::time::timeout(PATIENCE, watched.next()).await.expect("a change");
        change.unwrap().unwrap().status()
    };
    assert_eq!(next().await, Serving);
    redis.kill();
    assert_eq!(next().await, NotServing);
    redis.restart();
    assert_eq!(next().await, Serving);
    served.app.draining.send_replace(true);
    assert_eq!(next().await, NotServing);

    let mut unknown = client.watch(about("unknown")).await.unwrap().into_inner();
    assert_eq!(unknown.next().await.unwrap().unwrap().status(), ServiceUnknown);
}

/// A watcher heard of outages only, where `/readyz` also fails if no call can be charged.
#[tokio::test]
async fn a_watcher_sees_that_no_call_can_be_charged() {
    let redis = Server::redis().acl("user app on >pw ~* &* +@all").start();
    let spec = StoreSpec { audit_every: Duration::ZERO, ..StoreSpec::new(&redis.url_as("app", "pw")) };
    let served = Served::new(app(ServedStore::start(spec).unwrap(), common_policies()));
    let mut charged = served.app.store().watched();
    tokio::time::timeout(PATIENCE, charged.wait_for(|seen| seen.chargeable == 1)).await.unwrap().unwrap();
    let mut client = HealthClient::new(served.channel().await);
    let mut watched = client.watch(about("")).await.unwrap().into_inner();
    for (rule, status) in [("+set", Serving), ("-set", NotServing), ("+set", Serving)] {
        redis.command(&["ACL", "SETUSER", "app", rule]).ok();
        let change = tokio::time::timeout(PATIENCE, watched.next()).await.expect("a change");
        assert_eq!(change.unwrap().unwrap().status(), status);
    }
}

#[tokio::test]
async fn reflection_names_the_services_and_hands_out_their_files() {
    let served = Served::common();
    let mut client = ServerReflectionClient::new(served.channel().await);
    let mut ask = async |message: MessageRequest| {
        let asked = v1::ServerReflectionRequest { host: String::new(), message_request: Some(message) };
        let mut answers = client.server_reflection_info(once(asked)).await.unwrap().into_inner();
        answers.next().await.unwrap().unwrap().message_response.unwrap()
    };
    let MessageResponse::ListServicesResponse(listed) = ask(MessageRequest::ListServices(String::new())).await else {
        panic!("no list of services")
    };
    let names: Vec<&str> = listed.service.iter().map(|service| service.name.as_str()).collect();
    for service in [SERVICE_NAME, "grpc.health.v1.Health"] {
        assert!(names.contains(&service), "{names:?}");
        let MessageResponse::FileDescriptorResponse(files) =
            ask(MessageRequest::FileContainingSymbol(service.to_owned())).await
        else {
            panic!("no file of {service}")
        };
        let file = FileDescriptorProto::decode(&files.file_descriptor_proto[0][..]).unwrap();
        assert!(service.starts_with(file.package()), "{}", file.name());
    }
}

#[tokio::test]
async fn older_clients_may_ask_for_reflection_too() {
    use v1alpha::server_reflection_client::ServerReflectionClient;
    use v1alpha::server_reflection_request::MessageRequest;
    let served = Served::common();
    let message_request = Some(MessageRequest::ListServices(String::new()));
    let asked = v1alpha::ServerReflectionRequest { host: String::new(), message_request };
    let mut client = ServerReflectionClient::new(served.channel().await);
    let mut answers = client.server_reflection_info(once(asked)).await.unwrap().into_inner();
    let answer = format!("{:?}", answers.next().await.unwrap().unwrap());
    assert!(answer.contains(SERVICE_NAME), "{answer}");
}

/// The beginning of its message stayed in memory, although the budget had given its room to others.
#[tokio::test]
async fn a_stream_that_was_refused_to_make_room_stayed_open() {
    use http_body_util::BodyExt as _;
    use hyper_util::rt::{TokioExecutor, TokioIo};

    let settings = ListenSettings { max_bodies: 8 * 1024, ..ListenSettings::default() };
    let served = Served::with(app(still_store(), common_policies()), &settings);
    let stream = tokio::net::TcpStream::connect(served.addr).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut open = async || {
        let path = "http://proxy/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
        let request = http::Request::post(path).header("content-type", "application/grpc").header("te", "trailers");
        let body = axum::body::Body::new(Unfinished(false));
        sender.send_request(request.body(body).unwrap()).await.unwrap().into_body()
    };
    // There is room for two.
    let (first, _second, _third) = (open().await, open().await, open().await);
    let ended = tokio::time::timeout(PATIENCE, first.collect()).await;
    assert!(ended.is_ok(), "it is still open");
}
