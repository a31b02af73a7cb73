//! `grpc.health.v1`: readiness, asked once or watched.

use std::sync::Arc;

use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_server};

use crate::app::App;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;

#[derive(Debug)]
pub(super) struct Health {
    pub(super) app: Arc<App>,
}

/// The name that envoyproxy/ratelimit registers.
const REFERENCE_NAME: &str = "ratelimit";

/// The empty name is the whole server.
fn is_known(service: &str) -> bool {
    ["", SERVICE_NAME, REFERENCE_NAME].contains(&service)
}

fn serving(app: &App) -> ServingStatus {
    if app.ready().is_ok() { ServingStatus::Serving } else { ServingStatus::NotServing }
}

fn answer(status: ServingStatus) -> Result<HealthCheckResponse, Status> {
    Ok(HealthCheckResponse { status: status.into() })
}

/// The changes of the status.
type Changes = ReceiverStream<Result<HealthCheckResponse, Status>>;

#[async_trait]
impl health_server::Health for Health {
    type WatchStream = Changes;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        if !is_known(&service) {
            let service = service.escape_debug();
            return Err(Status::not_found(format!(
                "there is no service `{service}`: ask for `{SERVICE_NAME}`, `{REFERENCE_NAME}` or ``"
            )));
        }
        answer(serving(&self.app)).map(Response::new)
    }

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Changes>, Status> {
        let known = is_known(&request.into_inner().service);
        let (sender, changes) = mpsc::channel(1);
        tokio::spawn(watch(Arc::clone(&self.app), known, sender));
        Ok(Response::new(Changes::new(changes)))
    }
}

/// Sends every change until the watcher leaves. An unknown service stays unknown.
async fn watch(app: Arc<App>, known: bool, sender: mpsc::Sender<Result<HealthCheckResponse, Status>>) {
    let (mut store, mut charges) = (app.store().subscribe(), app.store().watched());
    let mut draining = app.draining.subscribe();
    let mut sent = None;
    loop {
        store.mark_unchanged();
        charges.mark_unchanged();
        draining.mark_unchanged();
        let status = if known { serving(&app) } else { ServingStatus::ServiceUnknown };
        if sent.replace(status) != Some(status) && sender.send(answer(status)).await.is_err() {
            return;
        }
        tokio::select! {
            () = sender.closed() => return,
            Ok(()) = store.changed() => {}
            Ok(()) = charges.changed() => {}
            Ok(()) = draining.changed() => {}
        }
    }
}
