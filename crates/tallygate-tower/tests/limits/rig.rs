//! A service to limit, and requests to send.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tallygate::Store;
use tallygate::policy::Verdict;
use tallygate_tower::{RateLimit, ResponseBody};
use tower::util::ServiceExt;
use tower::{Layer, service_fn};

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: http::HeaderMap,
    pub body: String,
    pub verdict: Option<Verdict>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// Sends `request` through `layer`, to a service that answers with the status that its path names, or 200.
pub async fn send<S: Store + 'static>(layer: &RateLimit<S>, request: Request<()>) -> Answer {
    let service = layer.layer(service_fn(|request: Request<()>| async move {
        let status = request.uri().path().trim_start_matches('/').parse().unwrap_or(StatusCode::OK);
        let mut response = Response::new(Full::new(Bytes::from_static(b"served")));
        *response.status_mut() = status;
        Ok::<_, Infallible>(response)
    }));
    let response: Response<ResponseBody<Full<Bytes>>> = service.oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let verdict = parts.extensions.get::<Verdict>().cloned();
    Answer { status: parts.status, headers: parts.headers, body, verdict }
}

/// The verdict on `request`, shared whether or not `layer` does.
pub async fn verdict<S: Store + 'static>(layer: &RateLimit<S>, request: Request<()>) -> Verdict {
    send(&layer.clone().share_verdict(), request).await.verdict.unwrap()
}

/// A request to `path` from `peer`.
pub fn from(peer: &str, path: &str) -> Request<()> {
    let peer: SocketAddr = format!("{peer}:1234").parse().unwrap();
    Request::builder().uri(path).extension(peer).body(()).unwrap()
}

/// The statuses of these requests, one after the other.
pub async fn statuses<S: Store + 'static>(layer: &RateLimit<S>, requests: Vec<Request<()>>) -> Vec<u16> {
    let mut statuses = Vec::new();
    for request in requests {
        statuses.push(send(layer, request).await.status.as_u16());
    }
    statuses
}
