//! A gRPC service with a limit for each client address. Here it is the health service; any other works the same way.
//!
//! ```console
//! $ cargo run -p tallygate-tower --features axum --example tonic_service -- 127.0.0.1:50051
//! ```

use std::error::Error;

use tallygate_tower::RateLimit;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Refused calls get RESOURCE_EXHAUSTED with the wait. `peer` says where tonic puts the peer's address.
    let limit = RateLimit::per_client("5/min")?
        .peer(|connection: &TcpConnectInfo| connection.remote_addr().map(|address| address.ip()));

    let (_reporter, health) = tonic_health::server::health_reporter();

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:50051".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let incoming = TcpIncoming::from(listener);
    Server::builder().layer(limit).add_service(health).serve_with_incoming(incoming).await?;
    Ok(())
}
