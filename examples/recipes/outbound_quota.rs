//! Calls to a third party wait until its quota has room for them. With `.store(...)` on Redis, all workers share the quota.
//!
//! ```console
//! $ cargo run -p tallygate-tower --features axum --example outbound_quota
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use tallygate_tower::outbound::Throttle;
use tower::{Layer, Service, ServiceExt, service_fn};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let quota = Throttle::new("payments", "20/s burst 2", tokio::time::sleep)?.patience(Duration::from_secs(5));

    // Stands for your client of the third party.
    let mut client = quota.layer(service_fn(|call: u32| async move { Ok::<_, Infallible>(call) }));
    for call in 1..=6 {
        let done = client.ready().await?.call(call).await?;
        println!("call {done} made");
    }
    Ok(())
}
