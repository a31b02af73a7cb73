//! Routes have different costs: an export takes 20 units of the same limit, a read takes one.
//!
//! ```console
//! $ cargo run -p tallygate-tower --features axum --example per_route_cost
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;

use axum::body::Body;
use axum::http::{Request, Response, request::Parts};
use tallygate_tower::{Cost, RateLimit};
use tower::{Layer, ServiceExt, service_fn};

fn cost(request: &Parts) -> Cost {
    match request.uri.path() {
        "/export" => Cost::new(20).unwrap_or(Cost::ONE),
        _ => Cost::ONE,
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let layer = RateLimit::per_client("30/min")?.cost(cost);

    // Stands for your service.
    let service =
        layer.layer(service_fn(|_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) }));
    let client: SocketAddr = "192.0.2.1:1234".parse()?;
    for path in ["/export", "/items", "/export", "/items"] {
        let request = Request::get(path).extension(client).body(Body::empty())?;
        let status = service.clone().oneshot(request).await?.status();
        println!("{path}: {}", status.as_u16());
    }
    Ok(())
}
