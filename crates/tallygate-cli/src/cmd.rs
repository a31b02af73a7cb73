//! The commands: one file each, with its `Args` and its `run`.

pub(crate) mod audit;
pub(crate) mod call;
pub(crate) mod completions;
pub(crate) mod counter;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod health;
pub(crate) mod hold;
pub(crate) mod holds;
pub(crate) mod live;
pub(crate) mod man;
pub(crate) mod schema;
pub(crate) mod serve;
pub(crate) mod validate;
pub(crate) mod verify;
