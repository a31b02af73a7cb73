//! Units that are taken in advance: what two processes over one store admit together, whatever happens in between.

mod bounds;
mod calls;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tallygate::call::{Call, Effect, Verb};
use tallygate::clock::ManualClock;
use tallygate::store::Allotments;
use tallygate::{Check, Cost, Decision, Key, Limit, MemoryStore, Store, StoreError};

use crate::START;

/// A shared store whose calls take several polls: some before the call is decided, and some before its answer arrives.
pub(crate) struct Slow {
    store: MemoryStore,
    /// Polls before and after the decision.
    polls: (usize, usize),
    fails: AtomicBool,
    /// The calls that arrived.
    calls: AtomicU64,
    /// When each call was decided, and how long the state of the key then lasted.
    decided: Mutex<Vec<(u64, u64)>>,
}

impl Slow {
    fn new(clock: &ManualClock, polls: (usize, usize)) -> Arc<Self> {
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let (fails, calls, decided) = (AtomicBool::new(false), AtomicU64::new(0), Mutex::default());
        Arc::new(Self { store, polls, fails, calls, decided })
    }

    fn calls(&self) -> u64 {
        self.calls.load(SeqCst)
    }
}

impl Store for Slow {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        for _ in 0..self.polls.0 {
            Turn(false).await;
        }
        self.calls.fetch_add(1, SeqCst);
        if self.fails.load(SeqCst) {
            return Err(StoreError::unavailable("it does not answer".to_owned()));
        }
        let decision = self.store.call(call).await?;
        if call.verb().effect() == Effect::Charges {
            let (at, reset_after) = (decision.decided_at().unwrap().as_micros(), decision.binding().reset_after());
            self.decided.lock().push((at, at + u64::try_from(reset_after.as_micros()).unwrap()));
        }
        for _ in 0..self.polls.1 {
            Turn(false).await;
        }
        Ok(decision)
    }
}

/// Is ready at its second poll.
struct Turn(bool);

impl Future for Turn {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

type Asked<'a> = Pin<Box<dyn Future<Output = Result<Decision, StoreError>> + Send + 'a>>;

/// A call of one hot check.
fn ask<'a, S: Store>(store: &'a S, limit: &'a Limit, cost: u64) -> Asked<'a> {
    Box::pin(async move {
        let checks = [hot(limit, cost)];
        store.call(&Call::new(Verb::Check, &checks).unwrap()).await
    })
}

fn hot(limit: &Limit, cost: u64) -> Check<'_> {
    Check::new(Key::new("p", "hot").unwrap(), limit).cost(Cost::new(cost).unwrap()).with_allotment(true)
}

fn poll<T>(future: &mut Pin<Box<dyn Future<Output = T> + Send + '_>>) -> Option<T> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

/// Polls until it is ready, which must not take long.
fn wait<T>(mut future: Pin<Box<dyn Future<Output = T> + Send + '_>>) -> T {
    (0..1000).find_map(|_| poll(&mut future)).expect("it is ready in time")
}

/// Two processes over one store, all on one clock.
fn two(clock: &ManualClock, polls: (usize, usize)) -> (Arc<Slow>, [Allotments<Arc<Slow>>; 2]) {
    let store = Slow::new(clock, polls);
    let process = || Allotments::new(Arc::clone(&store)).clock(clock.clone());
    let both = [process(), process()];
    (store, both)
}

fn start() -> ManualClock {
    ManualClock::new(START)
}
