//! What stands before the router, each set up the way its own documentation sets it up.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{Route, get};
use tallygate_tower::{Dialect, Limit, RateLimit};
use tower::layer::{layer_fn, util::Identity};
use tower::service_fn;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// The router alone.
    Nothing,
    /// A layer that passes everything on, or refuses everything: what any layer costs.
    Idle,
    Governor {
        headers: bool,
    },
    Tallygate(Dialect),
    /// As it comes, and handlers see the verdict.
    Shared,
}

/// Whether requests pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    /// A hundred million at once: all do.
    Ample,
    /// Ten at once, one an hour: soon none does.
    Tiny,
}

const AMPLE_BURST: u32 = 100_000_000;
const TINY_BURST: u32 = 10;

impl Guard {
    pub const ALL: [Self; 8] = [
        Self::Nothing,
        Self::Idle,
        Self::Governor { headers: false },
        Self::Tallygate(Dialect::Off),
        Self::Governor { headers: true },
        Self::Tallygate(Dialect::XDelta),
        Self::Tallygate(Dialect::Draft10),
        Self::Shared,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "(the router alone)",
            Self::Idle => "(a layer that does nothing)",
            Self::Governor { headers: false } => "tower_governor",
            Self::Governor { headers: true } => "tower_governor, `use_headers`",
            Self::Tallygate(Dialect::Off) => "**tallygate-tower**, headers off",
            Self::Tallygate(Dialect::Draft10) => "**tallygate-tower**, as it comes (draft 10)",
            Self::Tallygate(_) => "**tallygate-tower**, `X-RateLimit-*`",
            Self::Shared => "**tallygate-tower**, `share_verdict`",
        }
    }

    /// Who of the other kind tells callers as much.
    pub fn rival(self) -> Self {
        match self {
            Self::Nothing | Self::Idle | Self::Tallygate(Dialect::Off) => Self::Governor { headers: false },
            Self::Tallygate(_) | Self::Shared => Self::Governor { headers: true },
            Self::Governor { .. } => self,
        }
    }

    /// The same router behind it.
    pub fn router(self, quota: Quota) -> Result<Router> {
        let router = Router::new().route("/items/{id}", get(async |Path(_): Path<u64>| "an item"));
        let (period, burst) = match quota {
            Quota::Ample => (Duration::from_secs(16), AMPLE_BURST),
            Quota::Tiny => (Duration::from_secs(3600), TINY_BURST),
        };
        let router = match self {
            Self::Nothing => router,
            Self::Idle if quota == Quota::Ample => router.layer(Identity::new()),
            Self::Idle => router.layer(layer_fn(|_: Route| service_fn(|_: Request| refuse()))),
            Self::Governor { headers } => {
                let mut config = GovernorConfigBuilder::default();
                config.period(period).burst_size(burst);
                match headers {
                    true => {
                        let config = config.use_headers().finish().context("neither number is zero")?;
                        router.layer(GovernorLayer::new(config))
                    }
                    false => {
                        let config = config.finish().context("neither number is zero")?;
                        router.layer(GovernorLayer::new(config))
                    }
                }
            }
            Self::Tallygate(_) | Self::Shared => {
                let limit = Limit::builder(1, period).burst(burst.into()).build()?;
                let layer = RateLimit::per_client(limit)?;
                router.layer(match self {
                    Self::Tallygate(dialect) => layer.headers(dialect),
                    _ => layer.share_verdict(),
                })
            }
        };
        // As servers do before the first request: otherwise routes and layers are made anew for each.
        Ok(router.with_state(()))
    }
}

fn refuse() -> Ready<Result<Response, Infallible>> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    ready(Ok(response))
}
