//! Reloads policies when their files change, all or nothing, and certificates, independently of them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tallygate::clock::Clock;
use tallygate_config::{Config, Finding, Findings};
use tokio::sync::{Mutex, Notify};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::accept::Tls;
use crate::app::App;
use crate::loaded::Changes;
use crate::run::Event;

/// How often the files are read. Policy files are small, and unlike file events polling works on every file system and
/// through every link.
const PERIOD: Duration = Duration::from_millis(500);

/// The policy files: names and contents.
pub(crate) type Texts = Vec<(String, String)>;

/// Logs what the loader warns of. Place and help are fields, because a message is one line.
pub(crate) fn log_warnings(config: &Config) {
    for Finding { file, line, column, message, help, .. } in &config.warnings {
        tracing::warn!(file, line, column, help = help.as_deref(), "{message}");
    }
}

/// Reloads, one attempt at a time.
pub(crate) struct Reloader {
    app: Arc<App>,
    /// `None` for the built-in policies.
    path: Option<PathBuf>,
    tls: Option<Tls>,
    files: Mutex<Files>,
    on_event: Arc<dyn Fn(Event<'_>) + Send + Sync>,
}

/// What was read, and what is in force.
struct Files {
    in_force: Texts,
    /// The last attempt, successful or not.
    tried: Result<Texts, Findings>,
    /// Why the certificates were refused in the last attempt, if they were.
    certificates: Result<(), String>,
}

/// What an attempt changed, if anything; or why the old policies or the old certificates stay in force.
pub(crate) type Reloaded = Result<Option<Changes>, String>;

impl Reloader {
    pub(crate) fn new(
        app: Arc<App>,
        path: Option<PathBuf>,
        in_force: Texts,
        tls: Option<Tls>,
        on_event: Arc<dyn Fn(Event<'_>) + Send + Sync>,
    ) -> Self {
        let files = Mutex::new(Files { tried: Ok(in_force.clone()), in_force, certificates: Ok(()) });
        app.reloads.last_at.store(Clock::system().now().as_micros(), Relaxed);
        Self { app, path, tls, files, on_event }
    }

    /// The files whose policies are in force; none if they are built in.
    pub(crate) async fn files(&self) -> Vec<String> {
        self.files.lock().await.in_force.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Reloads policies and certificates. Once begun it ends, also if nobody waits for it any more.
    pub(crate) async fn reload(self: &Arc<Self>) -> Reloaded {
        let reloader = Arc::clone(self);
        let reload = tokio::spawn(async move {
            let mut files = reloader.files.lock().await;
            let texts = reloader.read().await;
            reloader.take(&mut files, texts).await
        });
        reload.await.unwrap_or_else(|_| Err("the reload ended because of a bug: please report it".to_owned()))
    }

    /// The files as they are now; `None` for the built-in policies. A file system may take its time.
    async fn read(&self) -> Option<Result<Texts, Findings>> {
        let path = self.path.clone()?;
        spawn_blocking(move || tallygate_config::read(&path)).await.ok()
    }

    /// Puts `texts` into force, if they are valid, and the certificates into use, if they are.
    async fn take(&self, files: &mut Files, texts: Option<Result<Texts, Findings>>) -> Reloaded {
        (self.on_event)(Event::Reloading);
        if let Some(texts) = &texts {
            files.tried.clone_from(texts);
        }
        files.certificates = self.reload_certificates();
        let policies = self.reload_policies(files, texts).await;
        let counters = &self.app.reloads;
        let counter = match (&policies, &files.certificates) {
            (Ok(Some(_)), _) => &counters.applied,
            (Ok(None), Ok(())) => &counters.unchanged,
            (Err(_), _) | (_, Err(_)) => &counters.refused,
        };
        self.log(&policies, &files.certificates);
        let outcome = match (policies, files.certificates.clone()) {
            (policies, Ok(())) => policies,
            (Ok(None), Err(why)) => Err(why),
            (Ok(Some(_)), Err(why)) => {
                Err(format!("the new policies are in force, but not the new certificates: {why}"))
            }
            (Err(policies), Err(certificates)) => Err(format!("{policies}\n{certificates}")),
        };
        counter.fetch_add(1, Relaxed);
        counters.last_failed.store(outcome.is_err().into(), Relaxed);
        counters.last_at.store(Clock::system().now().as_micros(), Relaxed);
        (self.on_event)(Event::Reloaded(outcome.as_ref().map(|_| ()).map_err(String::as_str)));
        outcome
    }

    fn log(&self, policies: &Reloaded, certificates: &Result<(), String>) {
        match policies {
            Ok(Some(Changes { added, removed, changed, rematched })) => {
                let generation = self.app.policies.load().generation;
                tracing::info!(
                    generation,
                    added = added.as_deref(),
                    removed = removed.as_deref(),
                    changed = changed.as_deref(),
                    rematched = rematched.as_deref(),
                    "policies reloaded"
                );
            }
            Ok(None) => tracing::info!("policies reloaded; nothing changed"),
            Err(why) => {
                for line in why.lines() {
                    tracing::error!("reload refused, the old policies stay in force: {line}");
                }
            }
        }
        match certificates {
            Ok(()) if self.tls.is_some() => tracing::info!("certificates reloaded"),
            Ok(()) => {}
            Err(why) => tracing::error!("reload refused, the old certificates stay in use: {why}"),
        }
    }

    fn reload_certificates(&self) -> Result<(), String> {
        self.tls.as_ref().map_or(Ok(()), Tls::reload).map_err(|error| error.to_string())
    }

    async fn reload_policies(&self, files: &mut Files, texts: Option<Result<Texts, Findings>>) -> Reloaded {
        let in_force = |texts: &Result<Texts, _>| texts.as_ref().is_ok_and(|texts| *texts == files.in_force);
        let Some(texts) = texts.filter(|texts| !in_force(texts)) else { return Ok(None) };
        // Many policies take a while to parse, and a panic in the parser must not end the watch.
        let read = spawn_blocking(move || texts.and_then(|texts| Ok((Config::from_texts(&texts)?, texts)))).await;
        let read = read.map_err(|_| "the policies could not be parsed because of a bug: please report it")?;
        let (config, texts) = read.map_err(|findings| findings.to_string())?;
        log_warnings(&config);
        let changes = self.app.put_policies(config.policies);
        files.in_force = texts;
        Ok(Some(changes))
    }

    /// Whether another attempt may end otherwise than the last. Valid certificates are read again on request only; refused
    /// ones are tried until they are valid.
    fn is_due(&self, files: &Files, now: Option<&Result<Texts, Findings>>) -> bool {
        now.is_some_and(|now| files.tried != *now)
            || (files.certificates.is_err() && self.reload_certificates() != files.certificates)
    }

    /// Reloads whenever the files have changed and come to rest, and whenever `asked`.
    pub(crate) async fn watch(self: Arc<Self>, asked: Arc<Notify>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // What was read on the last tick: while the files still change, somebody is writing them.
        let mut moment_ago = None;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = asked.notified() => {
                    // The outcome is in the log, here and below.
                    let _ = self.reload().await;
                }
                _ = ticks.tick() => {
                    // What is read is put into force before anybody else reads again.
                    let mut files = self.files.lock().await;
                    let now = self.read().await;
                    if self.is_due(&files, now.as_ref()) && moment_ago.as_ref() == Some(&now) {
                        let _ = self.take(&mut files, now.clone()).await;
                    }
                    moment_ago = Some(now);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    /// A caller that left while the policies were parsed left the old ones in force, and the watch took the files for tried.
    #[tokio::test]
    async fn a_reload_ends_without_the_caller_that_asked_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policies.yaml");
        let write = |amount: u32| {
            let text = format!("policies:\n  - {{name: p, domain: d, partition: [user], limit: {amount}/min}}\n");
            std::fs::write(&path, text).unwrap();
            tallygate_config::read(&path).unwrap()
        };
        let texts = write(1);
        let policies = Config::from_texts(&texts).unwrap().policies;
        let app = App::new(tallygate::MemoryStore::new().into(), policies, &crate::Settings::default());
        let (ended, mut ends) = tokio::sync::mpsc::unbounded_channel();
        let on_event = Arc::new(move |event: Event<'_>| {
            if let Event::Reloaded(outcome) = event {
                ended.send(outcome.is_ok()).unwrap();
            }
        });
        let reloader = Arc::new(Reloader::new(Arc::clone(&app), Some(path.clone()), texts, None, on_event));
        write(2);
        {
            let mut reload = pin!(reloader.reload());
            assert!(reload.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert_eq!(tokio::time::timeout(Duration::from_secs(60), ends.recv()).await.unwrap(), Some(true));
        let loaded = app.policies.load();
        let limit = loaded.set.domains()[0].policies()[0].limit().unwrap().to_string();
        assert_eq!(limit, "2/min");
    }
}
