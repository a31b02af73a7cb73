//! Limits per route, per method and for the whole service, in this process.
//!
//! ```console
//! $ cargo run -p tallygate-tower --features axum --example axum_routes -- 127.0.0.1:3000
//! $ for i in 1 2 3 4 5 6; do curl -i http://127.0.0.1:3000/search; done
//! ```

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::http::Method;
use axum::routing::{get, post};
use tallygate_tower::{Caller, RateLimit, Rule};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // One route, inside the limits below. Its name keeps it separate in a shared store.
    let search = RateLimit::new().rule(Rule::new("search", "5/min")?);

    // The whole service. These rules make one decision: a call that one of them refuses is counted by none.
    let service = RateLimit::new()
        .rule(Rule::new("per-client", "100/min")?)
        .rule(Rule::new("writes", "3/min")?.when(|request| request.method == Method::POST))
        .rule(Rule::new("per-route", "1000/min")?.by(Caller::route()))
        .skip(|request| request.uri.path() == "/health");

    let app = Router::new()
        .route("/search", get(|| async { "found\n" }).layer(search))
        .route("/notes", get(|| async { "notes\n" }))
        .route("/notes/{id}", post(|| async { "written\n" }))
        .route("/health", get(|| async { "ok\n" }))
        .route_layer(service);

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
