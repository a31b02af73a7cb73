//! Leases: holds that are renewed while the work goes on, all of a process together.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{CheckError, HoldGuard, Limiter};
use crate::check::Check;
use crate::clock::Clock;
use crate::decision::Decision;
use crate::hold::{Hold, HoldState, Holds, Refused, Resolution, Resolve, Resolved, Turn, Units};
use crate::store::StoreError;
use crate::sync::Mutex;

/// The leases of a process: holds, mostly on a [`Limit::concurrent`](crate::Limit::concurrent), that are renewed until the work is done. Cheap to
/// clone.
///
/// One task renews all of them, in one trip to each server. Spawn it once, as below. A lease that is not renewed in time ends by itself,
/// and its holder learns that by [`Lease::lost`], before the store frees its units.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tallygate::limiter::Leases;
/// use tallygate::{Check, Key, Limit, Limiter};
///
/// let leases = Leases::new(Limiter::default(), Duration::from_secs(10));
/// let keeper = leases.clone();
/// let keeper = tokio::spawn(async move { keeper.keep(tokio::time::sleep).await });
///
/// let (jobs, requests): (Limit, Limit) = ("2 concurrent".parse()?, "100/min".parse()?);
/// let check = |policy, limit| Check::new(Key::new(policy, "alice").unwrap(), limit);
/// let leased = leases.acquire(&[check("jobs", &jobs), check("requests", &requests)]).await?;
/// let lease = leased.lease.expect("allowed");
///
/// tokio::select! {
///     () = lease.lost() => println!("stop: the place belongs to somebody else soon"),
///     () = async { /* the work */ } => {}
/// }
/// // The place is free again; the request stays charged.
/// assert_eq!(lease.release().await?.parts[0].refunded, 1);
/// # keeper.abort();
/// # Ok(()) }
/// ```
pub struct Leases<S: Holds> {
    limiter: Limiter<S>,
    ttl: Duration,
    held: Arc<Held>,
}

/// The answer to [`Leases::acquire`]: the decision and, if it is allowed, the lease.
#[derive(Debug)]
pub struct Leased<S: Holds + 'static> {
    /// The decision.
    pub decision: Decision,
    /// The lease, if the call is allowed. If this is dropped, it is released.
    pub lease: Option<Lease<S>>,
}

/// A hold that is renewed by [`Leases::keep`]. Dropping it hands its release to the store, which finishes it. If the process dies, it ends
/// at its deadline.
#[must_use = "a dropped lease is released"]
pub struct Lease<S: Holds + 'static> {
    leases: Leases<S>,
    number: u64,
    /// Whether it was released.
    ended: bool,
}

/// What the keeper and the holders share.
struct Held {
    /// Of this process, as its deadlines are.
    clock: Clock,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    next: u64,
    by_number: HashMap<u64, Entry>,
}

struct Entry {
    hold: Hold,
    /// That of a renewal whose answer is not here: the store has this token or the one before.
    next: Option<Turn>,
    renewing: bool,
    /// When it ends, if it is not renewed: never later than in the store.
    ends: u64,
    lost: bool,
    waiting: Vec<Waker>,
}

impl Entry {
    fn is_lost(&self, now: u64) -> bool {
        self.lost || now >= self.ends
    }

    fn lose(&mut self) {
        self.lost = true;
        self.waiting.drain(..).for_each(Waker::wake);
    }

    /// Every token that it may have by now.
    fn tokens(&self) -> Vec<Hold> {
        let next = self.next.map(|next| self.hold.clone().at_turn(next));
        next.into_iter().chain([self.hold.clone()]).collect()
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl<S: Holds + 'static> Leases<S> {
    /// Leases that end `ttl` after they were last renewed. They are renewed three times in that time.
    pub fn new(limiter: Limiter<S>, ttl: Duration) -> Self {
        let held = Held { clock: Clock::monotonic(), entries: Mutex::new(Entries::default()) };
        Self { limiter, ttl, held: Arc::new(held) }
    }

    /// Reserves the units of all checks if all of them fit, and none otherwise: see [`Limiter::reserve`].
    pub async fn acquire(&self, checks: &[Check<'_>]) -> Result<Leased<S>, CheckError> {
        // The store counts from when it answers, which is later.
        let ends = self.held.now().saturating_add(micros(self.ttl));
        let reserved = self.limiter.reserve(checks, self.ttl).await?;
        let lease = reserved.hold.map(HoldGuard::into_hold).map(|hold| self.keep_hold(hold, ends));
        Ok(Leased { decision: reserved.decision, lease })
    }

    fn keep_hold(&self, hold: Hold, ends: u64) -> Lease<S> {
        let mut entries = self.held.entries.lock();
        entries.next += 1;
        let number = entries.next;
        let entry = Entry { hold, next: None, renewing: false, ends, lost: false, waiting: Vec::new() };
        entries.by_number.insert(number, entry);
        Lease { leases: self.clone(), number, ended: false }
    }

    /// The number of leases that were not released yet.
    pub fn len(&self) -> usize {
        self.held.entries.lock().by_number.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Renews all leases in time, for as long as it is polled: spawn it once. `sleep` waits, as `tokio::time::sleep` does.
    pub async fn keep<F: Future<Output = ()>>(&self, mut sleep: impl FnMut(Duration) -> F) {
        loop {
            sleep(self.renew_all()).await;
        }
    }

    /// Begins to renew all leases, and says how long to wait until the next time. [`keep`](Self::keep) does no more; this is for programs
    /// without tasks.
    pub fn renew_all(&self) -> Duration {
        let now = self.held.now();
        let beat = micros(self.ttl) / 3;
        let (mut pause, mut renewals) = (beat, Vec::new());
        let mut entries = self.held.entries.lock();
        for (&number, entry) in &mut entries.by_number {
            if entry.is_lost(now) {
                entry.lose();
                continue;
            }
            pause = pause.min(entry.ends - now);
            if !std::mem::replace(&mut entry.renewing, true) {
                // The same as the last time, if that was not answered.
                let next = *entry.next.get_or_insert_with(Turn::random);
                let renewal = Renewal { leases: self.clone(), number };
                renewals
                    .push(Box::pin(renewal.run(entry.hold.clone(), next)) as Pin<Box<dyn Future<Output = ()> + Send>>);
            }
        }
        drop(entries);
        if !renewals.is_empty() {
            self.limiter.store().finish(Box::pin(all(renewals)));
        }
        Duration::from_micros(pause.max(1000))
    }
}

/// All of them at once, so that a connection sends them together.
async fn all(mut renewals: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>) {
    poll_fn(|context: &mut Context<'_>| {
        renewals.retain_mut(|renewal| renewal.as_mut().poll(context).is_pending());
        if renewals.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// One renewal. If it is dropped before it ends, it can be tried again.
struct Renewal<S: Holds> {
    leases: Leases<S>,
    number: u64,
}

impl<S: Holds> Drop for Renewal<S> {
    fn drop(&mut self) {
        if let Some(entry) = self.leases.held.entries.lock().by_number.get_mut(&self.number) {
            entry.renewing = false;
        }
    }
}

impl<S: Holds> Renewal<S> {
    async fn run(self, hold: Hold, next: Turn) {
        let Leases { limiter, ttl, held } = &self.leases;
        let sent = held.now();
        let answer = limiter.renew(&hold, next, *ttl).await;
        let mut entries = held.entries.lock();
        let Some(entry) = entries.by_number.get_mut(&self.number) else { return };
        match answer {
            Ok(renewed) if renewed.done && renewed.state == HoldState::Open => {
                (entry.hold, entry.next) = (hold.at_turn(next), None);
                let left = renewed
                    .expires_at
                    .map_or(micros(*ttl), |at| at.as_micros().saturating_sub(renewed.decided_at.as_micros()));
                entry.ends = sent.saturating_add(left);
            }
            Ok(_) => entry.lose(),
            // Whether it was renewed is not known. The next try has the same token.
            Err(_) => {}
        }
    }
}

impl<S: Holds + 'static> Lease<S> {
    /// Whether it was not renewed in time. Then its units may belong to others: stop the work.
    pub fn is_lost(&self) -> bool {
        let held = &self.leases.held;
        held.entries.lock().by_number.get(&self.number).is_none_or(|entry| entry.is_lost(held.now()))
    }

    /// Ends when the lease was not renewed in time: because the store could not be reached, the state was reset, or its life has ended.
    /// Needs [`Leases::keep`], or somebody who calls [`Leases::renew_all`].
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<S> {
        let (held, number) = (Arc::clone(&self.leases.held), self.number);
        poll_fn(move |context| {
            let now = held.now();
            match held.entries.lock().by_number.get_mut(&number) {
                Some(entry) if !entry.is_lost(now) => {
                    entry.waiting.retain(|waker| !waker.will_wake(context.waker()));
                    entry.waiting.push(context.waker().clone());
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
    }

    /// The hold, with its token as of the last renewal that was answered.
    pub fn hold(&self) -> Hold {
        let entries = self.leases.held.entries.lock();
        entries.by_number.get(&self.number).map_or_else(Hold::of_nothing, |entry| entry.hold.clone())
    }

    /// Ends the lease: what was in flight comes back, and what was charged to other limits stays charged.
    pub async fn release(self) -> Result<Resolved, StoreError> {
        self.settle(Units::AsReserved).await
    }

    /// Ends the lease, and charges what was used to its other limits.
    pub async fn settle(mut self, used: Units) -> Result<Resolved, StoreError> {
        let tokens = self.end();
        end(&self.leases.limiter, tokens, used).await
    }

    fn end(&mut self) -> Vec<Hold> {
        self.ended = true;
        let entry = self.leases.held.entries.lock().by_number.remove(&self.number);
        entry.map_or_else(Vec::new, |mut entry| {
            entry.lose();
            entry.tokens()
        })
    }
}

impl<S: Holds + 'static> Drop for Lease<S> {
    fn drop(&mut self) {
        if !self.ended {
            let (limiter, tokens) = (self.leases.limiter.clone(), self.end());
            let work = async move { drop(end(&limiter, tokens, Units::AsReserved).await) };
            self.leases.limiter.store().finish(Box::pin(work));
        }
    }
}

/// Settles by whichever token the store knows. A renewal that is still on its way may change it meanwhile.
async fn end<S: Holds>(limiter: &Limiter<S>, tokens: Vec<Hold>, used: Units) -> Result<Resolved, StoreError> {
    const TURNS: usize = 3;
    let mut last = None;
    for hold in tokens.iter().cycle().take(TURNS * tokens.len()) {
        let answer = limiter.store().resolve(&Resolution::new(hold, Resolve::Settle(used.clone()))).await?;
        if answer.refused != Some(Refused::Renewed) {
            return Ok(answer);
        }
        last = Some(answer);
    }
    Ok(last.unwrap_or_else(|| Resolved::of_nothing(&Resolve::Settle(used), crate::clock::Timestamp::from_micros(0))))
}

impl Held {
    fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }
}

impl<S: Holds> Clone for Leases<S> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), ttl: self.ttl, held: Arc::clone(&self.held) }
    }
}

impl<S: Holds> fmt::Debug for Leases<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.held.entries.lock().by_number.len();
        f.debug_struct("Leases").field("ttl", &self.ttl).field("open", &open).finish_non_exhaustive()
    }
}

impl<S: Holds + 'static> fmt::Debug for Lease<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("lost", &self.is_lost()).finish_non_exhaustive()
    }
}
