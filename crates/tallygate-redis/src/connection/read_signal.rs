//! Whether everything that a server has sent was read.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// The waker of a task that reads a socket. It remembers whether there was anything to read.
///
/// A timer that fires tells nothing about the server if this process was busy or stopped: the reply may be waiting in the
/// socket. The reactor reports what can be read before it fires timers, so after a timer a dry socket proves that there was
/// no reply.
pub(super) struct ReadSignal {
    state: AtomicU8,
    task: Mutex<Waker>,
}

/// The reactor has reported something that was not read yet.
const READABLE: u8 = 0;
const READING: u8 = 1;
const DRY: u8 = 2;

impl ReadSignal {
    pub(super) fn new() -> Self {
        Self { state: AtomicU8::new(READING), task: Mutex::new(Waker::noop().clone()) }
    }

    /// Sets the task that reads.
    pub(super) fn set_task(&self, waker: &Waker) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if !task.will_wake(waker) {
            task.clone_from(waker);
        }
    }

    /// The task begins to read.
    pub(super) fn reading(&self) {
        self.state.store(READING, Ordering::Release);
    }

    /// There was nothing to read, unless the reactor has reported something since.
    pub(super) fn found_nothing(&self) {
        let _ = self.state.compare_exchange(READING, DRY, Ordering::AcqRel, Ordering::Acquire);
    }

    pub(super) fn is_dry(&self) -> bool {
        self.state.load(Ordering::Acquire) == DRY
    }
}

impl Wake for ReadSignal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.state.store(READABLE, Ordering::Release);
        self.task.lock().unwrap_or_else(PoisonError::into_inner).wake_by_ref();
    }
}
