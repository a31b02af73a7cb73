//! A listener on a free port, with handlers that behave badly on request.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use http::Response;
use http::header::CONTENT_TYPE;
use http_body::Frame;
use tallygate_server::listen::{ListenSettings, ListenStats, Listener, Tls, serve};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A test that takes longer than this has hung.
pub const PATIENCE: Duration = Duration::from_secs(5);

pub struct Server {
    pub addr: SocketAddr,
    pub stats: Arc<ListenStats>,
    arrived: Arc<Semaphore>,
    let_go: Arc<Semaphore>,
    shutdown: CancellationToken,
    serving: JoinHandle<usize>,
}

impl Server {
    pub fn start(settings: ListenSettings) -> Self {
        Self::start_with(settings, None)
    }

    pub fn start_with(settings: ListenSettings, tls: Option<Tls>) -> Self {
        let (arrived, let_go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let router = router(&arrived, &let_go);
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = listener.local_addr();
        let (stats, shutdown) = (Arc::new(ListenStats::default()), CancellationToken::new());
        let serving = tokio::spawn({
            let (stats, shutdown) = (Arc::clone(&stats), shutdown.clone());
            async move { serve(listener, "test", router, &settings, tls, shutdown, stats).await }
        });
        Self { addr, stats, arrived, let_go, shutdown, serving }
    }

    /// Until one more request is in `/wait` or `/never`.
    pub async fn arrival(&self) {
        within(self.arrived.acquire()).await.unwrap().forget();
    }

    /// Lets one request out of `/wait`.
    pub fn let_one_go(&self) {
        self.let_go.add_permits(1);
    }

    pub fn drain(&self) {
        self.shutdown.cancel();
    }

    /// How many connections the drain cut.
    pub async fn drained(self) -> usize {
        self.drain();
        within(self.serving).await.unwrap()
    }

    pub async fn until_connections_are(&self, count: u64) {
        within(async {
            while self.stats.connections.load(Relaxed) != count {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
    }
}

pub async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("hung")
}

/// The default caps, with times of a fraction of a second.
pub fn brief() -> ListenSettings {
    ListenSettings {
        header_timeout: Duration::from_millis(300),
        request_timeout: Duration::from_millis(400),
        idle_timeout: Duration::from_secs(1),
        handshake_timeout: Duration::from_millis(500),
        age_grace: Duration::from_millis(300),
        drain_timeout: Duration::from_millis(300),
        ..ListenSettings::default()
    }
}

fn router(arrived: &Arc<Semaphore>, let_go: &Arc<Semaphore>) -> Router {
    let wait = {
        let (arrived, let_go) = (Arc::clone(arrived), Arc::clone(let_go));
        move || async move {
            arrived.add_permits(1);
            let_go.acquire().await.unwrap().forget();
            "done"
        }
    };
    let never = {
        let arrived = Arc::clone(arrived);
        move || async move {
            arrived.add_permits(1);
            pending::<()>().await
        }
    };
    let peer = |ConnectInfo(addr): ConnectInfo<SocketAddr>| async move { addr.to_string() };
    Router::new()
        .route("/livez", get(|| async { "alive" }))
        .route("/peer", get(peer))
        .route("/length", post(|body: Bytes| async move { body.len().to_string() }))
        .route("/wait", get(wait))
        .route("/never", get(never.clone()).post(never))
        .route("/large", get(large))
        .route("/panic", get(|| async { panic!("a secret") as &'static str }))
        .route("/grpc.health.v1.Health/Watch", post(watch))
}

/// One message, then nothing more for ever.
async fn watch() -> Response<Body> {
    let messages = Messages { left: 1, each: Bytes::from_static(b"\0\0\0\0\0"), ends: false };
    let mut response = Response::new(Body::new(messages));
    response.headers_mut().insert(CONTENT_TYPE, "application/grpc".parse().unwrap());
    response
}

/// More than the sockets of both ends hold, and not in one piece.
async fn large() -> Body {
    Body::new(Messages { left: 1024, each: vec![0; 64 << 10].into(), ends: true })
}

struct Messages {
    left: usize,
    each: Bytes,
    ends: bool,
}

impl http_body::Body for Messages {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return if self.ends { Poll::Ready(None) } else { Poll::Pending };
        }
        self.left -= 1;
        Poll::Ready(Some(Ok(Frame::data(self.each.clone()))))
    }
}
