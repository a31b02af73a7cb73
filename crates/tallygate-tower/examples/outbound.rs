//! A worker that calls a third party within its quota. Any number of workers on one store stay within the quota together.
//!
//! ```console
//! $ export TALLYGATE_STORE=redis://127.0.0.1:6379
//! $ cargo run -p tallygate-tower --features axum --example outbound -- http://127.0.0.1:3000/ 100
//! ```

use std::error::Error;
use std::time::Duration;

use axum::http::Request;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tallygate_redis::AnyStore;
use tallygate_tower::outbound::Throttle;
use tower::{Layer, Service, ServiceExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:3000/".to_owned());
    let calls: usize = std::env::args().nth(2).map_or(Ok(10), |count| count.parse())?;

    let place = std::env::var("TALLYGATE_STORE").unwrap_or_else(|_| AnyStore::MEMORY.to_owned());
    let store = AnyStore::builder(&place).deadline(Duration::from_secs(1)).open().await?;
    let throttle = Throttle::new("third-party", "20/s burst 5", tokio::time::sleep)?
        .store(store)
        .patience(Duration::from_secs(30));

    let mut client = throttle.layer(Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>());
    for call in 1..=calls {
        let request = Request::get(&url).body(Empty::new())?;
        let response = client.ready().await?.call(request).await?;
        println!("call {call}: {}", response.status());
        // Read to its end, so that the connection can be reused.
        response.into_body().collect().await?;
    }
    Ok(())
}
