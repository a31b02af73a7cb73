//! Bots that rotate addresses within a network share one limit: IPv4 by /24, IPv6 by /48.
//!
//! ```console
//! $ cargo run -p tallygate-tower --features axum --example bots_by_prefix
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;

use axum::body::Body;
use axum::http::{Request, Response};
use tallygate_tower::{Prefixes, RateLimit};
use tower::{Layer, ServiceExt, service_fn};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut prefixes = Prefixes::default();
    (prefixes.v4, prefixes.v6) = (24, 48);
    let layer = RateLimit::per_client("2/min")?.prefixes(prefixes);

    // Stands for your service.
    let service =
        layer.layer(service_fn(|_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) }));
    for client in ["192.0.2.1", "192.0.2.2", "192.0.2.3", "198.51.100.1"] {
        let peer = SocketAddr::new(client.parse()?, 1234);
        let request = Request::get("/").extension(peer).body(Body::empty())?;
        let status = service.clone().oneshot(request).await?.status();
        println!("{client}: {}", status.as_u16());
    }
    Ok(())
}
