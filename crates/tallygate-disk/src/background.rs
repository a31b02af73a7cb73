//! The thread that saves a store while it is used.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tallygate::MemoryStore;
use tallygate::clock::Clock;

use crate::error::SaveError;
use crate::saver::Saver;

/// What has changed is collected this often, so that calls never wait for long.
const COLLECT_EVERY: Duration = Duration::from_millis(50);
/// What was collected is written this often. With the time that it takes to write, a crash loses no more than a second.
const SAVE_EVERY: Duration = Duration::from_millis(450);
/// After a failure, the pause doubles from the first to the second.
const RETRY_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// A store that is being saved. Dropping it ends that, as [`end`](Self::end) does.
#[derive(Debug)]
pub struct Saving {
    shared: Arc<Shared>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<Result<(), SaveError>>>,
}

/// How well it is saved.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// How long ago everything was on the disk: this is what a crash would lose now.
    pub age: Duration,
    /// Whether the last attempt succeeded.
    pub works: bool,
    /// Attempts that failed.
    pub failures: u64,
    /// Entries of the file: states, counters, holds, remembered answers.
    pub entries: u64,
    /// The size of the file.
    pub bytes: u64,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    /// In microseconds of the clock.
    saved_at: AtomicU64,
    failing: AtomicBool,
    failures: AtomicU64,
    entries: AtomicU64,
    bytes: AtomicU64,
    last_error: Mutex<Option<String>>,
}

impl Saving {
    pub(crate) fn start(
        mut saver: Saver,
        store: impl AsRef<MemoryStore> + Send + 'static,
        on_change: impl Fn(Result<(), &SaveError>) + Send + 'static,
    ) -> Result<Self, SaveError> {
        let clock = Clock::monotonic();
        let shared = Arc::new(Shared {
            saved_at: AtomicU64::new(clock.now().as_micros()),
            clock,
            failing: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            entries: AtomicU64::new(store.as_ref().len() as u64),
            bytes: AtomicU64::new(saver.bytes()),
            last_error: Mutex::new(None),
        });
        let (stop, stopped) = channel::<()>();
        let told = Arc::clone(&shared);
        let run = move || {
            let (mut next_at, mut retry_after) = (told.now() + SAVE_EVERY, RETRY_AFTER[0]);
            // Until the other side of the channel is dropped.
            while stopped.recv_timeout(COLLECT_EVERY) == Err(RecvTimeoutError::Timeout) {
                saver.collect(store.as_ref());
                if told.now() < next_at {
                    continue;
                }
                let before = told.now();
                let saved = saver.save(store.as_ref());
                if told.failing.load(Ordering::Relaxed) == saved.is_ok() {
                    on_change(saved.as_ref().copied());
                }
                (next_at, retry_after) = match &saved {
                    Ok(()) => (before + SAVE_EVERY, RETRY_AFTER[0]),
                    Err(_) => (told.now() + retry_after, (retry_after * 2).min(RETRY_AFTER[1])),
                };
                told.tell(&saver, before, saved.as_ref().err());
            }
            saver.save(store.as_ref())
        };
        let thread = std::thread::Builder::new().name("tallygate-disk".to_owned()).spawn(run);
        let thread = thread.map_err(SaveError::new)?;
        Ok(Self { shared, stop: Some(stop), thread: Some(thread) })
    }

    /// How well the store is saved.
    pub fn figures(&self) -> Figures {
        let shared = &self.shared;
        let saved_at = Duration::from_micros(shared.saved_at.load(Ordering::Relaxed));
        Figures {
            age: shared.now().saturating_sub(saved_at),
            works: !shared.failing.load(Ordering::Relaxed),
            failures: shared.failures.load(Ordering::Relaxed),
            entries: shared.entries.load(Ordering::Relaxed),
            bytes: shared.bytes.load(Ordering::Relaxed),
        }
    }

    /// Why the last attempt failed, if it did.
    pub fn last_error(&self) -> Option<String> {
        self.shared.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Saves everything once more, and ends. Call it when no more calls are decided.
    pub fn end(mut self) -> Result<(), SaveError> {
        self.stop()
    }

    fn stop(&mut self) -> Result<(), SaveError> {
        self.stop = None;
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(SaveError::new("the thread that saves has panicked")))
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

impl Shared {
    fn now(&self) -> Duration {
        Duration::from_micros(self.clock.now().as_micros())
    }

    fn tell(&self, saver: &Saver, before: Duration, error: Option<&SaveError>) {
        self.failing.store(error.is_some(), Ordering::Relaxed);
        if error.is_some() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        } else {
            self.saved_at.store(u64::try_from(before.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
            self.entries.store(saver.entries(), Ordering::Relaxed);
            self.bytes.store(saver.bytes(), Ordering::Relaxed);
        }
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = error.map(ToString::to_string);
    }
}
