//! A web server behind a proxy, which records its requests.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufReader};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crate::http::{Request, Response, wire};

type Answer = dyn Fn(&Request) -> Response + Send + Sync;

/// Listens on a free port of 127.0.0.1 until dropped.
pub struct Upstream {
    addr: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    answer: Box<Answer>,
    requests: Mutex<Vec<Request>>,
    /// Open connections, by number.
    connections: Mutex<HashMap<usize, TcpStream>>,
    closing: AtomicBool,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("addr", &self.addr).finish_non_exhaustive()
    }
}

impl Upstream {
    /// Answers everything with 200 and this body.
    ///
    /// # Panics
    /// When no port can be bound.
    #[must_use]
    pub fn start(body: &str) -> Self {
        let response = Response::new(200, body);
        Self::answering(move |_| response.clone())
    }

    /// Answers with this function, which several connections may call at once.
    ///
    /// # Panics
    /// When no port can be bound.
    #[must_use]
    pub fn answering(answer: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            answer: Box::new(answer),
            requests: Mutex::new(Vec::new()),
            connections: Mutex::new(HashMap::new()),
            closing: AtomicBool::new(false),
        });
        let for_acceptor = Arc::clone(&shared);
        let acceptor = thread::spawn(move || accept(&listener, &for_acceptor));
        Self { addr, shared, acceptor: Some(acceptor) }
    }

    /// The address it listens on.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The port it listens on, on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// The requests so far, oldest first. A request is recorded before its response is sent.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// The requests since the last call.
    pub fn take(&self) -> Vec<Request> {
        std::mem::take(&mut self.shared.requests.lock().unwrap())
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        // Wakes the acceptor.
        let _ = TcpStream::connect(self.addr);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        for stream in self.shared.connections.lock().iter().flat_map(|connections| connections.values()) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for (number, stream) in listener.incoming().enumerate() {
        if shared.closing.load(Ordering::SeqCst) {
            return;
        }
        let Ok((stream, kept)) = stream.and_then(|stream| Ok((stream.try_clone()?, stream))) else {
            continue;
        };
        shared.connections.lock().unwrap().insert(number, kept);
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            // If a client disconnects, or does not send HTTP, its connection is closed.
            let _ = serve(stream, &shared);
            shared.connections.lock().unwrap().remove(&number);
        });
    }
}

fn serve(stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    while let Some(wire::Head { first, headers }) = wire::read_head(&mut stream)? {
        let mut words = first.split(' ').map(str::to_owned);
        let (Some(method), Some(path)) = (words.next(), words.next()) else {
            return Err(wire::invalid(&first));
        };
        let body = wire::read_body(&mut stream, &headers, wire::Unmarked::Empty)?;
        let request = Request { method, path, headers, body };
        shared.requests.lock().unwrap().push(request.clone());

        let closes = |value: &str| value.eq_ignore_ascii_case("close");
        let last = first.ends_with("HTTP/1.0") || request.header("connection").is_some_and(closes);
        let mut response = (shared.answer)(&request);
        if last {
            response.headers.push(("Connection".to_owned(), "close".to_owned()));
        }
        if request.method == "HEAD" {
            response.headers.push(("Content-Length".to_owned(), response.body.len().to_string()));
        }
        let bodiless = request.method == "HEAD" || matches!(response.status, 204 | 304);
        let body = (!bodiless).then_some(response.body.as_slice());
        wire::write(stream.get_mut(), &format!("HTTP/1.1 {} ", response.status), &response.headers, body)?;
        if last {
            return Ok(());
        }
    }
    Ok(())
}
