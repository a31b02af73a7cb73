//! Policies are read again when their files change, and take force whole or not at all.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tallygate::Clock;
use tallygate_config::{Config, Findings};
use tokio::sync::{Mutex, Notify};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::accept::Tls;
use crate::app::App;
use crate::loaded::Loaded;
use crate::run::Event;

/// How often the files are looked at. Policies are small: reading them costs less than a decision, and unlike being told
/// of changes it works on every file system and sees through every link.
const PERIOD: Duration = Duration::from_millis(500);

/// The files of the policies: names and texts.
pub(crate) type Texts = Vec<(String, String)>;

/// Reads the files again, one attempt at a time.
pub(crate) struct Reloader {
    app: Arc<App>,
    /// `None`: the policies are built in.
    path: Option<PathBuf>,
    tls: Option<Tls>,
    files: Mutex<Files>,
    on_event: Arc<dyn Fn(Event<'_>) + Send + Sync>,
}

/// What was read, and what of it is in force.
struct Files {
    in_force: Texts,
    /// The last attempt, whether it took force or not.
    tried: Result<Texts, Findings>,
}

/// Whether an attempt changed the policies, or why the old ones stay in force.
pub(crate) type Reloaded = Result<bool, String>;

impl Reloader {
    pub(crate) fn new(
        app: Arc<App>,
        path: Option<PathBuf>,
        in_force: Texts,
        tls: Option<Tls>,
        on_event: Arc<dyn Fn(Event<'_>) + Send + Sync>,
    ) -> Self {
        let files = Mutex::new(Files { tried: Ok(in_force.clone()), in_force });
        app.reloads.last_at.store(Clock::system().now().as_micros(), Relaxed);
        Self { app, path, tls, files, on_event }
    }

    /// Reads everything again: policies and certificates.
    pub(crate) async fn reload(&self) -> Reloaded {
        let texts = self.path.as_deref().map(tallygate_config::read);
        self.take(texts).await
    }

    /// Lets `texts` take force, if they are right.
    async fn take(&self, texts: Option<Result<Texts, Findings>>) -> Reloaded {
        let mut files = self.files.lock().await;
        (self.on_event)(Event::Reloading);
        let outcome = self.attempt(&mut files, texts).await;
        let counters = &self.app.reloads;
        let counter = match &outcome {
            Ok(true) => {
                tracing::info!(generation = self.app.policies.load().generation, "the policies were read again");
                &counters.applied
            }
            Ok(false) => {
                tracing::info!("the policies were read again and are the same");
                &counters.unchanged
            }
            Err(why) => {
                for line in why.lines() {
                    tracing::error!("the old policies stay in force: {line}");
                }
                &counters.refused
            }
        };
        counter.fetch_add(1, Relaxed);
        counters.last_failed.store(outcome.is_err().into(), Relaxed);
        counters.last_at.store(Clock::system().now().as_micros(), Relaxed);
        (self.on_event)(Event::Reloaded(outcome.as_ref().map(|_| ()).map_err(String::as_str)));
        outcome
    }

    async fn attempt(&self, files: &mut Files, texts: Option<Result<Texts, Findings>>) -> Reloaded {
        if let Some(texts) = &texts {
            files.tried.clone_from(texts);
        }
        if let Some(tls) = &self.tls {
            tls.reload().map_err(|error| error.to_string())?;
        }
        let in_force = |texts: &Result<Texts, _>| texts.as_ref().is_ok_and(|texts| *texts == files.in_force);
        let Some(texts) = texts.filter(|texts| !in_force(texts)) else { return Ok(false) };
        // Many policies take a while to read, and a reader that fails must not take the watch with it.
        let read = spawn_blocking(move || texts.and_then(|texts| Ok((Config::from_texts(&texts)?, texts)))).await;
        let read = read.map_err(|_| "reading the policies ended in a panic: please report it")?;
        let (config, texts) = read.map_err(|findings| findings.to_string())?;
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        let before = self.app.policies.load_full();
        self.app.policies.store(Arc::new(Loaded::new(config.policies, Some(&before))));
        files.in_force = texts;
        Ok(true)
    }

    /// Reads the files again whenever they have changed and come to rest, and whenever `asked`.
    pub(crate) async fn watch(self: Arc<Self>, asked: Arc<Notify>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // What the files said a moment ago: while they still change, somebody is writing.
        let mut moment_ago = None;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = asked.notified() => {
                    // What came of it is in the log, here and below.
                    let _ = self.reload().await;
                }
                _ = ticks.tick() => {
                    let Some(path) = self.path.as_deref() else { continue };
                    let now = tallygate_config::read(path);
                    let changed = self.files.lock().await.tried != now;
                    if changed && moment_ago.as_ref() == Some(&now) {
                        let _ = self.take(Some(now.clone())).await;
                    }
                    moment_ago = Some(now);
                }
            }
        }
    }
}
