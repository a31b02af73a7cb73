//! The lock of the memory store, replaced under `--cfg tollgate_shuttle` by one whose every interleaving is tried.

#[cfg(not(tollgate_shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(tollgate_shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
