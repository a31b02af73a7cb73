//! Five wrong passwords in 15 minutes, and an address has to wait. Right ones cost nothing.
//!
//! ```console
//! $ cargo run -p tallygate-tower --features axum --example login -- 127.0.0.1:3000
//! $ curl -i http://127.0.0.1:3000/login -d 'name=alice&password=guess'
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;

use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Form, Router};
use tallygate_tower::{OnError, RateLimit, Rule};
use tokio::net::TcpListener;

/// Stands for your check of a password.
async fn login(Form(fields): Form<HashMap<String, String>>) -> (StatusCode, &'static str) {
    let field = |name: &str| fields.get(name).map(String::as_str);
    match (field("name"), field("password")) {
        (Some("alice"), Some("correct horse")) => (StatusCode::OK, "welcome\n"),
        _ => (StatusCode::UNAUTHORIZED, "wrong\n"),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Every attempt is charged before the password is checked, and refunded if it was right. So concurrent attempts cannot
    // exceed the limit, and an attempt stays counted if the caller disconnects before the response.
    let failures = RateLimit::new()
        .rule(Rule::new("login-failures", "5/15min sliding_log")?.on_error(OnError::Deny))
        .count_failures();

    let app = Router::new().route("/login", post(login).layer(failures)).route("/", get(|| async { "hello\n" }));

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
