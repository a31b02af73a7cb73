//! States that were replaced by others.

mod states;
