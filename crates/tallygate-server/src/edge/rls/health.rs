//! `grpc.health.v1`: whether calls should be sent here, asked once or watched.

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

/// The whole server has no name.
fn is_known(service: &str) -> bool {
    service.is_empty() || service == SERVICE_NAME
}

fn serving(app: &App) -> ServingStatus {
    if app.ready().is_ok() { ServingStatus::Serving } else { ServingStatus::NotServing }
}

fn answer(status: ServingStatus) -> Result<HealthCheckResponse, Status> {
    Ok(HealthCheckResponse { status: status.into() })
}

/// What a watcher is told.
type Changes = ReceiverStream<Result<HealthCheckResponse, Status>>;

#[async_trait]
impl health_server::Health for Health {
    type WatchStream = Changes;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        if !is_known(&service) {
            let service = service.escape_debug();
            return Err(Status::not_found(format!("there is no service `{service}`: ask for `{SERVICE_NAME}` or ``")));
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

/// Tells every change until nobody listens. A service that is not known here will not be while this runs.
async fn watch(app: Arc<App>, known: bool, sender: mpsc::Sender<Result<HealthCheckResponse, Status>>) {
    let (mut store, mut draining) = (app.store().subscribe(), app.draining.subscribe());
    let mut told = None;
    loop {
        store.mark_unchanged();
        draining.mark_unchanged();
        let status = if known { serving(&app) } else { ServingStatus::ServiceUnknown };
        if told.replace(status) != Some(status) && sender.send(answer(status)).await.is_err() {
            return;
        }
        tokio::select! {
            () = sender.closed() => return,
            Ok(()) = store.changed() => {}
            Ok(()) = draining.changed() => {}
        }
    }
}
