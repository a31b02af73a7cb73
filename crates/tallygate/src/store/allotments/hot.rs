//! Which keys are asked about often enough for a pool. Its memory does not depend on what is asked.

use crate::store::memory::print::Print;

/// Calls within [`SPAN`] that make a key hot.
const HOT: u64 = 16;
/// In microseconds.
const SPAN: u64 = 100_000;
const PLACES: usize = 256;

/// Counts the keys of one shard. Keys that share a place compete for it: the one that is asked about most keeps it.
#[derive(Debug, Default)]
pub(super) struct Hot {
    places: Box<[Option<Candidate>]>,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    print: Print,
    calls: u64,
    used: u64,
    since: u64,
}

impl Hot {
    /// Counts a call that was charged `units`. If that makes its key hot: how many it has used, and since when.
    pub(super) fn count(&mut self, print: Print, units: u64, now: u64) -> Option<(u64, u64)> {
        if self.places.is_empty() {
            self.places = vec![None; PLACES].into();
        }
        let place = usize::try_from(print.bucket_hash() % PLACES as u64).unwrap_or(0);
        let place = &mut self.places[place];
        match place {
            Some(known) if now.saturating_sub(known.since) < SPAN && known.print == print => {
                known.calls += 1;
                known.used = known.used.saturating_add(units);
                return (known.calls >= HOT).then_some((known.used, known.since));
            }
            Some(known) if now.saturating_sub(known.since) < SPAN && known.calls > 1 => known.calls -= 1,
            _ => *place = Some(Candidate { print, calls: 1, used: units, since: now }),
        }
        None
    }

    /// Forgets a key that has a pool now.
    pub(super) fn forget(&mut self, print: Print) {
        self.places
            .iter_mut()
            .filter(|place| place.is_some_and(|known| known.print == print))
            .for_each(|place| *place = None);
    }
}
