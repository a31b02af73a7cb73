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
use crate::metrics::ReloadCounters;
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
    pub(crate) counters: Arc<ReloadCounters>,
    files: Mutex<Files>,
    on_event: Arc<dyn Fn(Event<'_>) + Send + Sync>,
}

/// What was read, and what of it is in force.
struct Files {
    in_force: Texts,
    /// The last attempt, whether it took force or not.
    tried: Result<Texts, Findings>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reloaded {
    Applied,
    Unchanged,
    Refused(String),
}

impl Reloader {
    pub(crate) fn new(
        app: Arc<App>,
        path: Option<PathBuf>,
        in_force: Texts,
        tls: Option<Tls>,
        on_event: Arc<dyn Fn(Event<'_>) + Send + Sync>,
    ) -> Self {
        let files = Mutex::new(Files { tried: Ok(in_force.clone()), in_force });
        let reloader = Self { app, path, tls, counters: Arc::default(), files, on_event };
        reloader.counters.last_at.store(Clock::system().now().as_micros(), Relaxed);
        reloader
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
        self.count(&outcome);
        let failure = match &outcome {
            Reloaded::Applied => {
                tracing::info!(generation = self.app.policies.load().generation, "the policies were read again");
                Ok(())
            }
            Reloaded::Unchanged => {
                tracing::info!("the policies were read again and are the same");
                Ok(())
            }
            Reloaded::Refused(why) => {
                for line in why.lines() {
                    tracing::error!("the old policies stay in force: {line}");
                }
                Err(why.as_str())
            }
        };
        (self.on_event)(Event::Reloaded(failure));
        outcome
    }

    async fn attempt(&self, files: &mut Files, texts: Option<Result<Texts, Findings>>) -> Reloaded {
        if let Some(texts) = &texts {
            files.tried.clone_from(texts);
        }
        if let Some(Err(error)) = self.tls.as_ref().map(Tls::reload) {
            return Reloaded::Refused(error.to_string());
        }
        let Some(texts) = texts else { return Reloaded::Unchanged };
        if texts.as_ref().is_ok_and(|texts| *texts == files.in_force) {
            return Reloaded::Unchanged;
        }
        // Many policies take a while to read, and a reader that fails must not take the watch with it.
        let read = spawn_blocking(move || texts.and_then(|texts| Ok((Config::from_texts(&texts)?, texts)))).await;
        let (config, texts) = match read {
            Ok(Ok(read)) => read,
            Ok(Err(findings)) => return Reloaded::Refused(findings.to_string()),
            Err(_) => return Reloaded::Refused("reading the policies ended in a panic: please report it".to_owned()),
        };
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        let before = self.app.policies.load_full();
        self.app.policies.store(Arc::new(Loaded::new(config.policies, Some(&before))));
        files.in_force = texts;
        Reloaded::Applied
    }

    fn count(&self, outcome: &Reloaded) {
        let (counter, failed) = match outcome {
            Reloaded::Applied => (&self.counters.applied, 0),
            Reloaded::Unchanged => (&self.counters.unchanged, 0),
            Reloaded::Refused(_) => (&self.counters.refused, 1),
        };
        counter.fetch_add(1, Relaxed);
        self.counters.last_failed.store(failed, Relaxed);
        self.counters.last_at.store(Clock::system().now().as_micros(), Relaxed);
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
                    self.reload().await;
                }
                _ = ticks.tick() => {
                    let Some(path) = self.path.as_deref() else { continue };
                    let now = tallygate_config::read(path);
                    let changed = self.files.lock().await.tried != now;
                    if changed && moment_ago.as_ref() == Some(&now) {
                        self.take(Some(now.clone())).await;
                    }
                    moment_ago = Some(now);
                }
            }
        }
    }
}
