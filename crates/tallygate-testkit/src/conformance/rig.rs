//! A store under test, and its clock.

use std::future::Future;

use tallygate::clock::{ManualClock, Timestamp};
use tallygate::hold::Holds;
use tallygate::{Limiter, MemoryStore};

/// A store on a manual clock, which the properties move: properties that run at once must not share it.
pub trait Rig: Sync {
    /// The store.
    type Store: Holds;

    /// A limiter over the store.
    fn limiter(&self) -> &Limiter<Self::Store>;

    /// The clock of the store.
    fn clock(&self) -> &ManualClock;

    /// Whether the store drops states by this clock. If not (it keeps them, or drops them much later by its own clock),
    /// time may also return to before an expiry. A store whose TTLs run in real time must keep states for the length of
    /// a test, because time only advances when a property says so.
    fn forgets(&self) -> bool;

    /// Returns the name of a key without a TTL as an error, if there is one.
    fn every_key_expires(&self) -> impl Future<Output = Result<(), String>> + Send;
}

/// The embedded store on a manual clock.
#[derive(Debug)]
pub struct MemoryRig {
    limiter: Limiter<MemoryStore>,
    clock: ManualClock,
    sweeps: bool,
}

impl MemoryRig {
    /// A store that drops expired states, as in production.
    pub fn swept() -> Self {
        Self::new(true)
    }

    /// A store that never drops a state.
    pub fn unswept() -> Self {
        Self::new(false)
    }

    fn new(sweeps: bool) -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
        let builder = MemoryStore::builder().clock(clock.clone());
        let builder = if sweeps { builder } else { builder.without_sweep() };
        Self { limiter: Limiter::new(builder.build()), clock, sweeps }
    }
}

impl Rig for MemoryRig {
    type Store = MemoryStore;

    fn limiter(&self) -> &Limiter<MemoryStore> {
        &self.limiter
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    fn forgets(&self) -> bool {
        self.sweeps
    }

    async fn every_key_expires(&self) -> Result<(), String> {
        Ok(())
    }
}
