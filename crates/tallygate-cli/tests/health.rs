//! `health`, as a container's health check runs it.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::run;

/// Answers one request.
fn answer_once(response: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]);
        stream.write_all(response.as_bytes()).unwrap();
    });
    address
}

#[test]
fn only_the_status_200_is_healthy() {
    for (response, code, said) in [
        ("HTTP/1.1 200 OK\r\n\r\n", 0, "alive"),
        ("HTTP/1.1 503 Service Unavailable\r\n\r\nthe store is down", 1, "status 503: the store is down"),
        ("\x15\x03\x01", 1, "does this listener use TLS?"),
        ("", 1, "not HTTP"),
    ] {
        let health = run(["health", "--server", &answer_once(response)]);
        assert_eq!(health.code, code, "{}{}", health.stdout, health.stderr);
        assert!(health.stdout.contains(said), "{}", health.stdout);
    }
}

#[test]
fn nobody_there_is_unhealthy_and_a_wrong_address_is_an_error() {
    let health = run(["health", "--server", "127.0.0.1:1", "--ready"]);
    assert_eq!(health.code, 1);
    assert!(health.stdout.contains("is the server running?"), "{}", health.stdout);
    for server in ["off", "https://127.0.0.1:1"] {
        assert_eq!(run(["health", "--server", server]).code, 2, "{server}");
    }
}

/// The suggestion was `--help`.
#[test]
fn the_option_of_serve_is_answered_with_the_one_of_health() {
    let health = run(["health", "--http", "127.0.0.1:1"]);
    assert_eq!(health.code, 2);
    assert!(health.stderr.contains("tip: to name the listener to ask, use '--server'"), "{}", health.stderr);
}
