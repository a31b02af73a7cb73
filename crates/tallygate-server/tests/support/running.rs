//! A server in this process, to be tested from outside.

use std::net::SocketAddr;
use std::thread::JoinHandle;

use tallygate_server::listen::Listener;
use tallygate_server::{Listeners, RunError, Settings};
use tallygate_testkit::http;
use tallygate_testkit::wait::{PATIENCE, until};
use tokio::sync::oneshot;

/// A running server on ports of its own. Dropping it lets it drain.
pub struct Running {
    pub http: SocketAddr,
    /// Envoy's service, or the operators' port.
    pub other: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), RunError>>>,
}

impl Running {
    /// With a port for HTTP, and one more that `listeners` says what to do with.
    pub fn start(settings: Settings, listeners: impl FnOnce(Listener) -> Listeners + Send + 'static) -> Self {
        let plain = settings.tls.is_none();
        let (stop, stopped) = oneshot::channel();
        let (send, addresses) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = || Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
                let (http, other) = (listener(), listener());
                send.send((http.local_addr(), other.local_addr())).unwrap();
                let listeners = Listeners { http: Some(http), ..listeners(other) };
                let shutdown = async {
                    let _ = stopped.await;
                };
                tallygate_server::run(settings, listeners, shutdown).await
            })
        });
        let (http, other) = addresses.recv().unwrap();
        // The client of the testkit has no TLS.
        if plain {
            until("the server to answer", PATIENCE, || http::try_request(http, "GET", "/livez", &[], b"").ok());
        }
        Self { http, other, stop: Some(stop), thread: Some(thread) }
    }

    /// Lets it drain, and says how it ended; `None` if it has before.
    pub fn end(&mut self) -> Option<Result<(), RunError>> {
        self.stop.take().map(|stop| stop.send(()));
        self.thread.take().map(|thread| thread.join().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
