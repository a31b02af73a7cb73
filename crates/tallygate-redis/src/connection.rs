//! The connection layer: which server to send a script to, over which connection, and when it may be sent again.

mod backoff;
mod client;
mod cluster;
mod conn;
mod deadline;
mod failure;
mod node;
mod outage;
mod pipe;
mod read_signal;
mod refresh;
mod resp;
mod sentinel;
#[cfg(test)]
mod simulation;
mod socket;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "connection/without_tls.rs"]
mod tls;
mod topology;

pub(crate) use client::{Calls, Client, Settings};
pub(crate) use cluster::SLOTS;
#[cfg(any(test, fuzzing))]
pub(crate) use cluster::slot_ranges;
pub(crate) use conn::Request;
pub(crate) use deadline::Deadline;
pub(crate) use failure::{Failure, Refusal};
pub(crate) use node::Node;
pub(crate) use pipe::LOOK;
#[cfg(any(test, fuzzing))]
pub(crate) use resp::Replies;
