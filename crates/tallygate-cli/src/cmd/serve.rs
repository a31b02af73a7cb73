//! `tallygate serve`: policies over HTTP, Envoy's rate limit service and forward-auth.

mod address;
mod banner;
#[cfg(unix)]
mod systemd;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tallygate_config::{Config, Example};
use tallygate_http::{Dialect, Trust, TrustedProxies};
use tallygate_redis::AnyStore;
use tallygate_server::listen::{ListenSettings, TlsSettings};
use tallygate_server::store::StoreSpec;
use tallygate_server::telemetry::{self, Format};
#[cfg(feature = "otlp")]
use tallygate_server::telemetry::{SampleRatio, Traces};
use tallygate_server::{Event, Listeners, Refunds, Settings, Token};
use tokio::sync::Notify;

use crate::cmd::call;
use crate::environment::{self, Unknown};
use crate::output::Outcome;
use crate::{duration, policies};
use address::Address;

/// Serve policies over HTTP, Envoy's rate limit service and forward-auth
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A policy file, or a folder of them: ours, envoyproxy/ratelimit's or limitador's; reloaded when it changes
    /// [default: a built-in policy to try]
    #[arg(short, long, value_name = "FILE|DIR", env = "TALLYGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Where states live: `memory`, or the URL of a Redis or Valkey server [default: the `store` of the policy file, or
    /// memory]
    // A URL may contain a password, so the help does not show it.
    #[arg(long, value_name = "URL", env = "TALLYGATE_STORE", hide_env_values = true)]
    store: Option<String>,
    /// A directory in which the embedded store is kept, so that neither a restart nor a crash resets limits; it is created if needed
    #[arg(long, value_name = "DIR", env = "TALLYGATE_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// The prefix of all keys on a server
    #[arg(long, value_name = "PREFIX", env = "TALLYGATE_PREFIX", default_value = "tallygate")]
    prefix: String,
    /// The HTTP listener: ADDRESS:PORT, for example 0.0.0.0:8080 for all interfaces, or `off`
    #[arg(long, value_name = "ADDRESS", env = "TALLYGATE_HTTP", default_value = "127.0.0.1:8080")]
    http: Address,
    /// The listener of Envoy's rate limit service
    #[arg(long, value_name = "ADDRESS", env = "TALLYGATE_GRPC", default_value = "127.0.0.1:8081")]
    grpc: Address,
    /// The admin listener: metrics, the policies in force, reload
    #[arg(long, value_name = "ADDRESS", env = "TALLYGATE_ADMIN", default_value = "127.0.0.1:6070")]
    admin: Address,
    /// The file with the token that reset and the admin listener require; or set TALLYGATE_TOKEN
    #[arg(long, value_name = "FILE", env = "TALLYGATE_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Who may refund: `token`, those with a token that has the scope `refund`, or `open`, everybody who may check [default: `open` if
    /// HTTP and gRPC are on loopback, otherwise `token`]
    #[arg(long, value_name = "WHO", env = "TALLYGATE_REFUNDS")]
    refunds: Option<Refunds>,
    /// Names that `Host` may have on a loopback listener, besides addresses and `localhost`, separated by commas
    #[arg(long, value_name = "NAMES", env = "TALLYGATE_ALLOWED_HOSTS", value_delimiter = ',')]
    allowed_hosts: Vec<String>,
    /// The certificate of all listeners, in PEM, with its intermediate certificates
    #[arg(long, value_name = "FILE", env = "TALLYGATE_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", env = "TALLYGATE_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Require client certificates of these authorities
    #[arg(long, value_name = "FILE", env = "TALLYGATE_TLS_CLIENT_CA", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// The rate limit headers of responses: draft10, draft7, draft6, x-epoch, x-delta or off
    #[arg(long, value_name = "DIALECT", env = "TALLYGATE_HEADERS", default_value = "draft10")]
    headers: Dialect,
    /// The proxies whose forwarded headers forward-auth trusts: their networks, or how many are in front
    #[arg(long, value_name = "NETWORKS", env = "TALLYGATE_TRUSTED_PROXIES", default_value = "127.0.0.0/8,::1")]
    trusted_proxies: TrustedProxies,
    /// The format of log lines: text or json; with json, nothing else is printed
    #[arg(long, alias = "log", value_name = "FORMAT", env = "TALLYGATE_LOG_FORMAT", default_value = "text")]
    log_format: Format,
    /// What to log: off, error, warn, info, debug or trace, or by target: info,tallygate_server=debug [default: info]
    // The older name of the variable, TALLYGATE_LOG, is read as well.
    #[arg(long, value_name = "LEVEL", env = "TALLYGATE_LOG_LEVEL")]
    log_level: Option<String>,
    /// Send traces to this collector, by OTLP over HTTP, for example http://127.0.0.1:4318; the variables OTEL_* apply,
    /// such as OTEL_EXPORTER_OTLP_HEADERS
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "URL", env = "TALLYGATE_OTLP")]
    otlp: Option<String>,
    /// The share of calls to trace, for example 0.01 or 1%; calls that belong to a trace follow that
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "SHARE", env = "TALLYGATE_OTLP_RATIO", default_value = "1%")]
    otlp_ratio: SampleRatio,
    /// How long the store may take for a decision before `on_error` answers
    #[arg(long, value_name = "TIME", env = "TALLYGATE_STORE_DEADLINE", default_value = "15ms", value_parser = duration::parse)]
    store_deadline: Duration,
    /// Whether concurrent calls about one key share runs of a script on Redis or Valkey
    #[arg(long, value_name = "BOOL", env = "TALLYGATE_COALESCE", default_value_t = true, action = clap::ArgAction::Set)]
    coalesce: bool,
    /// How many instances share the store, until they have counted each other: `on_error: local` divides limits by it
    #[arg(long, value_name = "N", env = "TALLYGATE_INSTANCES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    instances: u32,
    /// Say in the header X-Tallygate-Source where each answer came from
    #[arg(long, value_name = "BOOL", env = "TALLYGATE_SOURCE_HEADER", default_value_t = false, action = clap::ArgAction::Set)]
    source_header: bool,
    /// For how long the answer to a call with a request id is remembered, from 1ms to 24h
    #[arg(long, value_name = "TIME", env = "TALLYGATE_REQUEST_ID_TTL", default_value = "5min", value_parser = call::request_id_ttl)]
    request_id_ttl: Duration,
    /// How often to audit the store for keys without a TTL; 0s is never
    #[arg(long, value_name = "TIME", env = "TALLYGATE_AUDIT_EVERY", default_value = "5min", value_parser = duration::parse)]
    audit_every: Duration,
    /// How long open requests may take to finish when the server stops
    #[arg(long, value_name = "TIME", env = "TALLYGATE_DRAIN", default_value = "10s", value_parser = duration::parse)]
    drain: Duration,
    /// The most connections of each listener
    #[arg(long, value_name = "N", env = "TALLYGATE_MAX_CONNECTIONS", default_value_t = 10_000)]
    max_connections: usize,
    /// When to ask a connection to end, so that clients find new servers
    #[arg(long, value_name = "TIME", env = "TALLYGATE_MAX_CONNECTION_AGE", default_value = "1h", value_parser = duration::parse)]
    max_connection_age: Duration,
}

const EXAMPLES: &str = "\
Examples:
  tallygate serve
  tallygate serve --config policies.yaml --store redis://127.0.0.1:6379
  tallygate serve --config policies.yaml --data-dir /var/lib/tallygate
  tallygate serve --config /etc/tallygate --http 0.0.0.0:8080 --grpc 0.0.0.0:8081
  TALLYGATE_TOKEN=$(openssl rand -hex 32) tallygate serve --admin 0.0.0.0:6070

Every option but --color has a variable; an empty one counts as unset.
SIGTERM and Ctrl-C let open requests finish; SIGHUP reloads the policies.";

pub(crate) async fn run(args: Args, unknown: &[Unknown]) -> anyhow::Result<Outcome> {
    let (mut settings, example) = settings(&args)?;
    let [http, grpc, admin] = address::bind([("--http", args.http), ("--grpc", args.grpc), ("--admin", args.admin)])?;
    let listeners = Listeners { http, grpc, admin };
    let (filter, from) = log_filter(&args);
    telemetry::init(args.log_format, &filter).context(from)?;
    for unknown in unknown {
        tracing::warn!("{unknown}");
    }
    for skipped in args.config.iter().flat_map(|path| tallygate_config::skipped(path)) {
        tracing::warn!("{skipped}");
    }
    #[cfg(feature = "otlp")]
    let traces = args.otlp.as_deref().map(|url| traces(url, args.otlp_ratio)).transpose()?;
    #[cfg(feature = "otlp")]
    settings.traces.clone_from(&traces);
    let shutdown = shutdown(Arc::clone(&settings.reload))?;
    let banner = match args.log_format {
        Format::Json => String::new(),
        Format::Text => banner::text(&args, &settings, &listeners, example.as_ref()),
    };
    settings.on_event = Arc::new(move |event: Event<'_>| {
        if let Event::Ready = event {
            // If standard output is closed, the server runs without the banner.
            let _ = io::stdout().write_all(banner.as_bytes()).and_then(|()| io::stdout().flush());
        }
        #[cfg(unix)]
        systemd::notify(&event);
    });
    tallygate_server::run(settings, listeners, shutdown).await?;
    #[cfg(feature = "otlp")]
    if let Some(traces) = traces {
        traces.finish().await;
    }
    Ok(Outcome::Allowed)
}

#[cfg(feature = "otlp")]
fn traces(url: &str, ratio: SampleRatio) -> anyhow::Result<Traces> {
    // Without the URL: its query may be a credential.
    anyhow::ensure!(
        !url.contains('?'),
        "--otlp: the URL has a query, which cannot be sent: leave it out, and put credentials into OTEL_EXPORTER_OTLP_HEADERS"
    );
    Ok(Traces::start(url, ratio)?)
}

/// The settings, and a call to try.
fn settings(args: &Args) -> anyhow::Result<(Settings, Option<Example>)> {
    let config = args.config.as_deref().map(policies::load).transpose()?.unwrap_or_else(Config::built_in);
    if let Some(invalid) = policies::invalid_store(&config).filter(|_| args.store.is_none()) {
        return Err(policies::unusable(invalid));
    }
    // The option overrides the files.
    let store = args.store.as_deref().or(config.store.as_deref()).unwrap_or(AnyStore::MEMORY);
    let tls = args.tls_cert.clone().zip(args.tls_key.clone());
    let tls = tls.map(|(certificate, key)| TlsSettings { certificate, key, client_ca: args.tls_client_ca.clone() });
    let settings = Settings {
        policies: args.config.clone(),
        store: StoreSpec {
            data_dir: args.data_dir.clone(),
            prefix: args.prefix.clone(),
            deadline: args.store_deadline,
            coalesce: args.coalesce,
            audit_every: args.audit_every,
            ..StoreSpec::new(store)
        },
        instances: args.instances,
        dialect: args.headers,
        source_header: args.source_header,
        request_id_ttl: args.request_id_ttl,
        trust: Trust { proxies: args.trusted_proxies.clone(), ..Trust::default() },
        token: token(args)?,
        refunds: args.refunds,
        allowed_hosts: args.allowed_hosts.iter().map(|host| host.trim().to_owned()).collect(),
        tls,
        listen: ListenSettings {
            drain_timeout: args.drain,
            max_connections: args.max_connections,
            max_age: args.max_connection_age,
            ..ListenSettings::default()
        },
        ..Settings::default()
    };
    Ok((settings, config.example().cloned()))
}

/// The filter of the log, and the option or variable that sets it.
fn log_filter(args: &Args) -> (String, &'static str) {
    let set = |name| environment::value(name).map(|value| (value, name));
    let option = args.log_level.clone().map(|level| (level, "--log-level"));
    // The parser does not say whether the value is from the command line or from the variable.
    let variable = set("TALLYGATE_LOG_LEVEL").filter(|(value, _)| Some(value) == args.log_level.as_ref());
    let found = variable.or(option).or_else(|| set("TALLYGATE_LOG"));
    found.unwrap_or_else(|| ("info".to_owned(), "--log-level"))
}

/// From a file or the environment, never from the command line, which everybody on the machine can read.
fn token(args: &Args) -> anyhow::Result<Option<Token>> {
    let (text, from) = match (&args.token_file, environment::value("TALLYGATE_TOKEN")) {
        (Some(file), _) => {
            let from = file.display().to_string();
            (std::fs::read_to_string(file).with_context(|| format!("--token-file {from}"))?, from)
        }
        (None, Some(text)) => (text, "TALLYGATE_TOKEN".to_owned()),
        (None, None) => return Ok(None),
    };
    Ok(Some(Token::new(&text).context(from)?))
}

/// Ready on SIGTERM or SIGINT. SIGHUP reloads the policies.
#[cfg(unix)]
fn shutdown(reload: Arc<Notify>) -> anyhow::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};

    let handle = |kind| signal(kind).context("cannot handle signals");
    let (mut terminate, mut interrupt) = (handle(SignalKind::terminate())?, handle(SignalKind::interrupt())?);
    let mut hangup = handle(SignalKind::hangup())?;
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

/// Ready on Ctrl-C. Policies are reloaded when their files change, or through the admin listener.
#[cfg(not(unix))]
fn shutdown(_: Arc<Notify>) -> anyhow::Result<impl Future<Output = ()>> {
    Ok(async {
        // Without a handler, Ctrl-C ends the process.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}
