//! `tallygate serve`: policies over HTTP, Envoy's rate limit service and forward-auth.

mod address;
mod banner;
mod systemd;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tallygate_http::{Dialect, Trust, TrustedProxies};
use tallygate_redis::AnyStore;
use tallygate_server::listen::{ListenSettings, TlsSettings};
use tallygate_server::store::StoreSpec;
use tallygate_server::telemetry::{self, Format};
#[cfg(feature = "otlp")]
use tallygate_server::telemetry::{SampleRatio, Traces};
use tallygate_server::{Event, Listeners, Settings, Token};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::output::Outcome;
use crate::{duration, policies};
use address::Address;

/// Serve policies over HTTP, Envoy's rate limit service and forward-auth
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A policy file, or a folder of them: ours, envoyproxy/ratelimit's or limitador's; read again when it changes
    /// [default: a built-in policy to try]
    #[arg(long, value_name = "FILE|DIR", env = "TALLYGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Where states live: `memory`, or the URL of a Redis or Valkey server [default: what the policy file says, or memory]
    // A URL may hold a password, so its value stays out of the help.
    #[arg(long, value_name = "URL", env = "TALLYGATE_STORE", hide_env_values = true)]
    store: Option<String>,
    /// What the keys on a server begin with
    #[arg(long, value_name = "PREFIX", env = "TALLYGATE_PREFIX", default_value = "tallygate")]
    prefix: String,
    /// Where to answer HTTP: ADDRESS:PORT, a port of 127.0.0.1, or `off`
    #[arg(long, value_name = "ADDRESS", env = "TALLYGATE_HTTP", default_value = "127.0.0.1:8080")]
    http: Address,
    /// Where to answer Envoy's rate limit service
    #[arg(long, value_name = "ADDRESS", env = "TALLYGATE_GRPC", default_value = "127.0.0.1:8081")]
    grpc: Address,
    /// Where to answer operators: metrics, the policies in force, reload
    #[arg(long, value_name = "ADDRESS", env = "TALLYGATE_ADMIN", default_value = "127.0.0.1:6070")]
    admin: Address,
    /// The file with the token that opens reset and the admin listener; or set TALLYGATE_TOKEN
    #[arg(long, value_name = "FILE", env = "TALLYGATE_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// The certificate of all listeners, in PEM, with its intermediates
    #[arg(long, value_name = "FILE", env = "TALLYGATE_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", env = "TALLYGATE_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Serve only callers with a certificate of these authorities
    #[arg(long, value_name = "FILE", env = "TALLYGATE_TLS_CLIENT_CA", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// How limits are told in headers: draft10, draft7, draft6, x-epoch, x-delta or off
    #[arg(long, value_name = "DIALECT", env = "TALLYGATE_HEADERS", default_value = "draft10")]
    headers: Dialect,
    /// Whom forward-auth believes: networks of proxies, or how many stand in front
    #[arg(long, value_name = "NETWORKS", env = "TALLYGATE_TRUSTED_PROXIES", default_value = "127.0.0.0/8,::1")]
    trusted_proxies: TrustedProxies,
    /// How to write logs: text or json; TALLYGATE_LOG chooses how much (error, warn, info, debug)
    #[arg(long, value_name = "FORMAT", env = "TALLYGATE_LOG_FORMAT", default_value = "text")]
    log: Format,
    /// Send traces to this collector, by OTLP over HTTP, for example http://127.0.0.1:4318; OTEL_EXPORTER_OTLP_HEADERS
    /// and other OTEL_* variables apply
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "URL", env = "TALLYGATE_OTLP")]
    otlp: Option<String>,
    /// The share of calls to trace, unless their own trace says so: 0.01, 1%
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "SHARE", env = "TALLYGATE_OTLP_RATIO", default_value = "1%")]
    otlp_ratio: SampleRatio,
    /// How long the store may take for a decision before `on_error` answers
    #[arg(long, value_name = "TIME", env = "TALLYGATE_STORE_DEADLINE", default_value = "15ms", value_parser = duration::parse)]
    store_deadline: Duration,
    /// How often to look through the store for keys without a TTL; 0s is never
    #[arg(long, value_name = "TIME", env = "TALLYGATE_AUDIT_EVERY", default_value = "5min", value_parser = duration::parse)]
    audit_every: Duration,
    /// How long calls under way may take to finish when the server is told to stop
    #[arg(long, value_name = "TIME", env = "TALLYGATE_DRAIN", default_value = "10s", value_parser = duration::parse)]
    drain: Duration,
    /// How many connections each listener bears
    #[arg(long, value_name = "N", env = "TALLYGATE_MAX_CONNECTIONS", default_value_t = 10_000)]
    max_connections: usize,
    /// After how long a connection is asked to end, so that callers find new servers
    #[arg(long, value_name = "TIME", env = "TALLYGATE_MAX_CONNECTION_AGE", default_value = "1h", value_parser = duration::parse)]
    max_connection_age: Duration,
}

const EXAMPLES: &str = "\
Examples:
  tallygate serve
  tallygate serve --config policies.yaml --store redis://127.0.0.1:6379
  tallygate serve --config /etc/tallygate --http 0.0.0.0:8080 --grpc 0.0.0.0:8081
  TALLYGATE_TOKEN=$(openssl rand -hex 32) tallygate serve --admin 0.0.0.0:6070

SIGTERM and Ctrl-C let calls under way finish; SIGHUP reads the policies again.";

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let mut settings = settings(&args)?;
    let listeners = Listeners { http: args.http.bind()?, grpc: args.grpc.bind()?, admin: args.admin.bind()? };
    let filter = std::env::var("TALLYGATE_LOG").unwrap_or_else(|_| "info".to_owned());
    telemetry::init(args.log, &filter)?;
    #[cfg(feature = "otlp")]
    let traces = args.otlp.as_deref().map(|url| Traces::start(url, args.otlp_ratio)).transpose()?;
    #[cfg(feature = "otlp")]
    settings.traces.clone_from(&traces);
    let shutdown = until_told(Arc::clone(&settings.reload))?;
    let banner = banner::text(&args, &settings, &listeners);
    settings.on_event = Arc::new(move |event: Event<'_>| {
        if let Event::Ready = event {
            // If standard output is closed, the server runs without the banner.
            let _ = io::stdout().write_all(banner.as_bytes()).and_then(|()| io::stdout().flush());
        }
        systemd::tell(&event);
    });
    tallygate_server::run(settings, listeners, shutdown).await?;
    #[cfg(feature = "otlp")]
    if let Some(traces) = traces {
        traces.finish().await;
    }
    Ok(Outcome::Allowed)
}

fn settings(args: &Args) -> anyhow::Result<Settings> {
    let written = args.config.as_deref().map(policies::load).transpose()?.and_then(|config| config.store);
    // What is given here goes before what the files say.
    let store = args.store.as_deref().or(written.as_deref()).unwrap_or(AnyStore::MEMORY);
    let tls = args.tls_cert.clone().zip(args.tls_key.clone());
    let tls = tls.map(|(certificate, key)| TlsSettings { certificate, key, client_ca: args.tls_client_ca.clone() });
    Ok(Settings {
        policies: args.config.clone(),
        store: StoreSpec {
            prefix: args.prefix.clone(),
            deadline: args.store_deadline,
            audit_every: args.audit_every,
            ..StoreSpec::new(store)
        },
        dialect: args.headers,
        trust: Trust { proxies: args.trusted_proxies.clone(), ..Trust::default() },
        token: token(args)?,
        tls,
        listen: ListenSettings {
            drain_timeout: args.drain,
            max_connections: args.max_connections,
            max_age: args.max_connection_age,
            ..ListenSettings::default()
        },
        ..Settings::default()
    })
}

/// From a file or the environment, never from the command line, which everybody on the machine can read.
fn token(args: &Args) -> anyhow::Result<Option<Token>> {
    let (text, from) = match (&args.token_file, std::env::var("TALLYGATE_TOKEN")) {
        (Some(file), _) => {
            let from = file.display().to_string();
            (std::fs::read_to_string(file).with_context(|| format!("--token-file {from}"))?, from)
        }
        (None, Ok(text)) => (text, "TALLYGATE_TOKEN".to_owned()),
        (None, Err(_)) => return Ok(None),
    };
    Ok(Some(Token::new(&text).context(from)?))
}

/// Ready when a signal says to stop; meanwhile SIGHUP reads the policies again.
fn until_told(reload: Arc<Notify>) -> anyhow::Result<impl Future<Output = ()>> {
    let hear = |kind| signal(kind).context("cannot listen to signals");
    let (mut terminate, mut interrupt) = (hear(SignalKind::terminate())?, hear(SignalKind::interrupt())?);
    let mut hangup = hear(SignalKind::hangup())?;
    Ok(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => return,
                _ = interrupt.recv() => return,
                _ = hangup.recv() => reload.notify_one(),
            }
        }
    })
}
