//! The harness finds what it should, and a few hundred faults find nothing in the product.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod recipes; // every wrong recipe is caught by the checker
mod rounds; // a fixed round of each world
mod traps; // histories that are wrong in one way each
