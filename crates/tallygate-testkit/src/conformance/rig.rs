//! A store under test, and the time it decides by.

use std::future::Future;

use tallygate::{Limiter, ManualClock, MemoryStore, Store, Timestamp};

/// A store on a clock that the properties move. Not shared between properties that run at once: they move its clock.
pub trait Rig: Sync {
    /// The store.
    type Store: Store;

    /// A limiter over the store.
    fn limiter(&self) -> &Limiter<Self::Store>;

    /// What the store takes the time from.
    fn clock(&self) -> &ManualClock;

    /// Whether the store drops states by this clock. If not (it keeps them, or drops them by a clock of its own much
    /// later), time may also return to before an expiry. A store whose expiries run on real time must keep states for
    /// the length of a test, since here a microsecond passes whenever a property says so.
    fn forgets(&self) -> bool;

    /// Names a key that would live for ever, if there is one.
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
    /// A store that drops what has expired, as in use.
    pub fn swept() -> Self {
        Self::new(true)
    }

    /// A store that never forgets.
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
