//! The lock of the memory store. Under `--cfg tallygate_shuttle`, shuttle's lock, to test interleavings.

#[cfg(not(tallygate_shuttle))]
pub(crate) use parking_lot::{Mutex, MutexGuard};

#[cfg(tallygate_shuttle)]
pub(crate) use shuttle::sync::MutexGuard;

/// Shuttle's lock with the interface of the real one, which has no poisoning.
#[cfg(tallygate_shuttle)]
#[derive(Debug)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

#[cfg(tallygate_shuttle)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
