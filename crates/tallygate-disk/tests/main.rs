//! A data directory, as a program uses it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod background; // the thread, beside calls
mod refusals; // directories that cannot be used
mod restarts; // what was stored is loaded
