//! Starts a server from its settings, runs it, and drains it.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tallygate_config::{Config, Findings};
use tallygate_disk::SaveError;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::accept::{ListenSettings, ListenStats, Listener, Tls, TlsError};
use crate::admin::{self, Admin};
use crate::app::App;
use crate::edge::origin::Origins;
use crate::metrics::Sources;
use crate::reload::{Reloader, log_warnings};
use crate::settings::Settings;
use crate::store::{ServedStore, StartError};
use crate::token::Refunds;
use crate::{edge, http, instances, live};

/// The bound ports of a server. `None` is not served.
#[derive(Debug, Default)]
pub struct Listeners {
    /// JSON over HTTP, and forward-auth.
    pub http: Option<Listener>,
    /// Envoy's rate limit service.
    pub grpc: Option<Listener>,
    /// Metrics and the admin API.
    pub admin: Option<Listener>,
}

/// A change in the life of a server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event<'e> {
    /// It accepts connections.
    Ready,
    /// A reload begins.
    Reloading,
    /// A reload has ended: well, or with the reason why old policies or old certificates stay in force.
    Reloaded(Result<(), &'e str>),
    /// It accepts no more connections, and ends when the open ones have finished.
    Draining,
}

/// Why a server did not start, or has ended badly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The policies are invalid.
    #[error("{0}")]
    Policies(Findings),
    /// The store's URL or prefix is invalid, or its data directory cannot be used.
    #[error(transparent)]
    Store(#[from] StartError),
    /// The server has run, and what the last moments have charged could not be saved.
    #[error("what was charged since the last save is lost: {0}")]
    Save(#[from] SaveError),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The admin listener would be open to other machines.
    #[error(
        "the admin listener on {address} can be reached from other machines: give it a token \
         (--token-file or TALLYGATE_TOKEN), or let it listen on 127.0.0.1"
    )]
    OpenAdmin {
        /// Where it would listen.
        address: SocketAddr,
    },
}

/// In bytes: four descriptors with the longest header that Envoy accepts, 60 KiB. What is larger is OVER_LIMIT.
const LARGEST_MESSAGE: usize = 256 * 1024;

/// Half as long as units may be held.
const GIVE_BACK_EVERY: Duration = Duration::from_millis(500);
/// For reading the overrides before the first decision.
const OVERRIDES_WITHIN: Duration = Duration::from_secs(1);
/// For giving back all of them at the end.
const GOODBYE: Duration = Duration::from_secs(1);

/// Serves until `shutdown` is ready. Then `/readyz` fails, open requests finish, and it ends.
pub async fn run(
    mut settings: Settings,
    listeners: Listeners,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), RunError> {
    if let Some(admin) = listeners.admin.as_ref().filter(|admin| !admin.is_loopback() && settings.token.is_none()) {
        return Err(RunError::OpenAdmin { address: admin.local_addr() });
    }
    let local = [&listeners.http, &listeners.grpc].into_iter().flatten().all(Listener::is_loopback);
    settings.refunds.get_or_insert(if local { Refunds::Open } else { Refunds::Token });
    let texts = settings.policies.as_deref().map(tallygate_config::read).transpose().map_err(RunError::Policies)?;
    let config = match &texts {
        Some(texts) => Config::from_texts(texts).map_err(RunError::Policies)?,
        None => Config::built_in(),
    };
    log_warnings(&config);
    let tls = settings.tls.clone().map(Tls::load).transpose()?;
    let app = App::new(ServedStore::start(settings.store.clone())?, config.policies, &settings);
    // Before the first decision: limits that were changed before this start are not those of the files.
    let _ = timeout(OVERRIDES_WITHIN, app.read_overrides()).await;
    let obeying = tokio::spawn(live::watch(Arc::clone(&app)));
    let giving_back = tokio::spawn(give_back(Arc::clone(&app)));
    let counting = instances::start(&settings.store, app.stores.instances().clone());
    let on_event = Arc::clone(&settings.on_event);
    let (path, texts) = (settings.policies.clone(), texts.unwrap_or_default());
    let reloader = Reloader::new(Arc::clone(&app), path, texts, tls.clone(), Arc::clone(&on_event));
    let reloader = Arc::new(reloader);

    let stop = CancellationToken::new();
    let watch = tokio::spawn(Arc::clone(&reloader).watch(Arc::clone(&settings.reload), stop.clone()));
    let stats: Arc<[(&'static str, Arc<ListenStats>)]> =
        ["http", "grpc", "admin"].map(|name| (name, Arc::new(ListenStats::default()))).into();
    let sources = Sources {
        app: Arc::clone(&app),
        listeners: Arc::clone(&stats),
        #[cfg(feature = "otlp")]
        traces: settings.traces.clone(),
    };
    let grpc = ListenSettings { max_body: LARGEST_MESSAGE, ..settings.listen.clone() };
    let routers = [
        (listeners.http, settings.listen.clone(), edge::router(Arc::clone(&app))),
        (listeners.grpc, grpc, edge::rls::router(Arc::clone(&app))),
        (listeners.admin, settings.listen.clone(), admin::router(Admin { sources, reloader })),
    ];
    #[cfg(feature = "otlp")]
    let routers = routers.map(|(listener, listen, router)| match &settings.traces {
        Some(traces) => (listener, listen, traces.wrap(router)),
        None => (listener, listen, router),
    });
    let hosts: Arc<[String]> = settings.allowed_hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
    let mut servers = JoinSet::new();
    for ((listener, listen, router), (name, stats)) in routers.into_iter().zip(stats.to_vec()) {
        let Some(listener) = listener else { continue };
        // Beyond loopback, the admin listener has a token, which protects better than a name; so does a certificate.
        let origins = Origins { check_host: listener.is_loopback() && tls.is_none(), hosts: Arc::clone(&hosts) };
        let guarded = listener.is_loopback() || name == "admin";
        let router = if guarded { origins.guard(router) } else { router };
        tracing::info!(listener = name, address = %listener.local_addr(), tls = tls.is_some(), "listening");
        let (tls, stop) = (tls.clone(), stop.clone());
        servers.spawn(async move { http::serve(listener, name, router, &listen, tls, stop, stats).await });
    }
    on_event(Event::Ready);

    shutdown.await;
    // Load balancers see it before the ports close.
    app.draining.send_replace(true);
    on_event(Event::Draining);
    tracing::info!("draining: no new connections, open requests may finish");
    tokio::time::sleep(settings.notice).await;
    stop.cancel();
    let mut cut = 0;
    while let Some(ended) = servers.join_next().await {
        cut += ended.unwrap_or(0);
    }
    if cut > 0 {
        tracing::warn!(connections = cut, "stopped; connections that did not finish in time were closed");
    } else {
        tracing::info!("stopped; all requests were finished");
    }
    watch.abort();
    giving_back.abort();
    obeying.abort();
    // What cannot be given back stays charged until it stops counting.
    let _ = timeout(GOODBYE, app.stores.shared().give_back_all()).await;
    counting.end().await;
    Ok(app.store().end_saving().await?)
}

/// Gives units back that were taken in advance, and that nobody has asked for.
async fn give_back(app: Arc<App>) {
    loop {
        tokio::time::sleep(GIVE_BACK_EVERY).await;
        app.stores.shared().give_back().await;
    }
}
