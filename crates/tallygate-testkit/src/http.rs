//! A minimal HTTP/1.1 client and server. Tests use it so that the code under test does not verify itself.

pub(crate) mod wire;

use std::io::{self, BufReader, ErrorKind};
use std::net::{SocketAddr, TcpStream};

use crate::wait::PATIENCE;

/// A request as received by a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// In upper case.
    pub method: String,
    /// Including the query.
    pub path: String,
    /// In order, with names as sent.
    pub headers: Vec<(String, String)>,
    /// Without its transfer coding.
    pub body: Vec<u8>,
}

impl Request {
    /// The first header with this name, ignoring case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        wire::header(&self.headers, name)
    }
}

/// A response as received by a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// For example 200.
    pub status: u16,
    /// In order, with names as sent.
    pub headers: Vec<(String, String)>,
    /// Without its transfer coding.
    pub body: Vec<u8>,
}

impl Response {
    /// Creates a response without headers.
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }

    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The first header with this name, ignoring case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        wire::header(&self.headers, name)
    }

    /// The body.
    ///
    /// # Panics
    /// When it is not UTF-8.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is UTF-8")
    }
}

/// Sends a request over a new connection.
///
/// # Panics
/// When no response comes.
#[track_caller]
pub fn request(addr: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
    match try_request(addr, method, path, headers, body) {
        Ok(response) => response,
        Err(error) => panic!("no response from {addr} to {method} {path}: {error}"),
    }
}

/// Sends a request over a new connection.
///
/// # Errors
/// When no response comes.
pub fn try_request(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Response> {
    Client::open(addr)?.request(method, path, headers, body)
}

/// A kept connection.
#[derive(Debug)]
pub struct Client {
    addr: SocketAddr,
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// When nothing accepts.
    pub fn open(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { addr, stream: BufReader::new(stream) })
    }

    /// Sends a request, and reads the whole response. `Host` and `Content-Length` are added unless given; with
    /// `Transfer-Encoding: chunked` the body is one chunk.
    ///
    /// # Errors
    /// When no response comes: also when the other side has closed the connection since.
    pub fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> io::Result<Response> {
        let mut all: Vec<(String, String)> = Vec::new();
        if wire::header(headers, "host").is_none() {
            all.push(("Host".to_owned(), self.addr.to_string()));
        }
        all.extend(headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let bodiless = body.is_empty() && matches!(method, "GET" | "HEAD" | "DELETE" | "OPTIONS");
        wire::write(self.stream.get_mut(), &format!("{method} {path} HTTP/1.1"), &all, (!bodiless).then_some(body))?;
        loop {
            let head = wire::read_head(&mut self.stream)?;
            let wire::Head { first, headers } = head.ok_or(ErrorKind::UnexpectedEof)?;
            let status = first.split(' ').nth(1).and_then(|word| word.parse::<u16>().ok());
            let status = status.ok_or_else(|| wire::invalid(&first))?;
            match status {
                // Interim: the final response follows.
                100..=199 => {}
                204 | 304 => return Ok(Response { status, headers, body: Vec::new() }),
                _ if method == "HEAD" => return Ok(Response { status, headers, body: Vec::new() }),
                _ => {
                    let body = wire::read_body(&mut self.stream, &headers, wire::Unmarked::UntilClosed)?;
                    return Ok(Response { status, headers, body });
                }
            }
        }
    }
}
