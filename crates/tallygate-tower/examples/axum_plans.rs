//! Limits by plan, shared by all replicas of a service that use one store.
//!
//! ```console
//! $ TALLYGATE_STORE=redis://127.0.0.1:6379 cargo run -p tallygate-tower --features axum --example axum_plans -- 127.0.0.1:3000
//! $ curl -i http://127.0.0.1:3000/ -H 'x-api-key: key-of-acme'
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use tallygate_redis::AnyStore;
use tallygate_tower::{Caller, Limit, RateLimit, Rule};
use tokio::net::TcpListener;

/// The caller, as found by authentication.
#[derive(Clone)]
struct Account {
    id: &'static str,
    plan: Plan,
}

#[derive(Clone, Copy)]
enum Plan {
    Free,
    Pro,
}

/// Stands for your authentication: the limit runs after it, and relies on it.
async fn authenticate(headers: HeaderMap, mut request: Request, next: Next) -> Response {
    let account = match headers.get("x-api-key").map(|key| key.as_bytes()) {
        Some(b"key-of-acme") => Some(Account { id: "acme", plan: Plan::Pro }),
        Some(b"key-of-bob") => Some(Account { id: "bob", plan: Plan::Free }),
        _ => None,
    };
    if let Some(account) = account {
        request.extensions_mut().insert(account);
    }
    next.run(request).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let place = std::env::var("TALLYGATE_STORE").unwrap_or_else(|_| AnyStore::MEMORY.to_owned());
    let store = AnyStore::builder(&place).deadline(Duration::from_secs(1)).open().await?;

    let free: Limit = "100/h sliding_window".parse()?;
    let pro: Limit = "1000/h sliding_window".parse()?;
    let plan = Rule::new("plan", &free)?
        .by(Caller::extension(|account: &Account| account.id.to_owned()))
        .limit_for(move |request| {
            let account: &Account = request.extensions.get()?;
            Some(match account.plan {
                Plan::Free => free.clone(),
                Plan::Pro => pro.clone(),
            })
        })
        // All callers without an account, together.
        .anonymous("10/h sliding_window")?;

    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(RateLimit::new().rule(plan).store(store))
        // The layer added last runs first.
        .layer(middleware::from_fn(authenticate));

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
