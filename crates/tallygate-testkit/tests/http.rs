//! The HTTP client and server understand each other, and real ones.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;

use tallygate_testkit::Upstream;
use tallygate_testkit::http::{Client, Response, request, try_request};

/// Answers one connection with these bytes, then closes it.
fn saying(bytes: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]).unwrap();
        stream.write_all(bytes).unwrap();
    });
    addr
}

#[test]
fn a_request_is_remembered_as_it_was_sent() {
    let upstream = Upstream::start("hello");
    let response = request(upstream.addr(), "POST", "/a?b=c", &[("X-One", "1"), ("x-one", "2")], b"body");
    assert_eq!((response.status, response.text()), (200, "hello"));
    assert_eq!(response.header("CONTENT-LENGTH"), Some("5"));

    let requests = upstream.take();
    assert_eq!(requests.len(), 1);
    let got = &requests[0];
    assert_eq!((got.method.as_str(), got.path.as_str(), got.body.as_slice()), ("POST", "/a?b=c", &b"body"[..]));
    assert_eq!(got.header("x-ONE"), Some("1"));
    assert_eq!(got.header("host"), Some(upstream.addr().to_string().as_str()));
    assert_eq!(upstream.requests(), []);
}

#[test]
fn a_kept_connection_carries_bodies_of_every_kind() {
    let upstream = Upstream::answering(|request| match request.path.as_str() {
        "/nothing" => Response::new(204, ""),
        "/chunked" => Response::new(200, request.body.clone()).with("Transfer-Encoding", "chunked"),
        _ => Response::new(429, request.body.clone()).with("Retry-After", "7"),
    });
    let mut client = Client::open(upstream.addr()).unwrap();
    let chunked = [("Transfer-Encoding", "chunked")];
    for _ in 0..3 {
        let response = client.request("POST", "/chunked", &chunked, b"in chunks").unwrap();
        assert_eq!((response.status, response.text()), (200, "in chunks"));
        let response = client.request("GET", "/nothing", &[], b"").unwrap();
        assert_eq!((response.status, response.text()), (204, ""));
        let response = client.request("HEAD", "/", &[], b"").unwrap();
        assert_eq!((response.status, response.text(), response.header("content-length")), (429, "", Some("0")));
        let response = client.request("PUT", "/", &[], b"counted").unwrap();
        assert_eq!((response.text(), response.header("retry-after")), ("counted", Some("7")));
    }
    assert_eq!(upstream.requests().len(), 12);
}

#[test]
fn a_body_of_many_chunks_is_assembled() {
    let addr = saying(
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n\
        3;extension=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n",
    );
    let response = request(addr, "GET", "/", &[], b"");
    assert_eq!((response.status, response.text()), (200, "abc0123456789"));
}

#[test]
fn a_body_without_length_ends_with_the_connection() {
    let response = request(saying(b"HTTP/1.1 502 Bad Gateway\r\n\r\nto the end"), "GET", "/", &[], b"");
    assert_eq!((response.status, response.text()), (502, "to the end"));
}

#[test]
fn a_response_cut_short_is_an_error() {
    for (bytes, kind) in [
        (&b""[..], ErrorKind::UnexpectedEof),
        (b"HTTP/1.1 200 OK\r\nX: y\r\n", ErrorKind::UnexpectedEof),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", ErrorKind::UnexpectedEof),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", ErrorKind::UnexpectedEof),
        (b"SSH-2.0-OpenSSH\r\n\r\n", ErrorKind::InvalidData),
    ] {
        let error = try_request(saying(bytes), "GET", "/", &[], b"").unwrap_err();
        assert_eq!(error.kind(), kind, "{:?}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn a_dropped_upstream_closes_its_connections() {
    let upstream = Upstream::start("hello");
    let mut client = Client::open(upstream.addr()).unwrap();
    client.request("GET", "/", &[], b"").unwrap();
    drop(upstream);
    client.request("GET", "/", &[], b"").unwrap_err();
}
