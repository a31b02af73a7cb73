//! Dropped calls: a call is dropped at every possible point, and then the states must be as before it or as after it.
//! Written once, and run on every store, through every interface.
//!
//! A [`Matrix`] makes the calls and verifies the states; its [`Scene`]s are generated. All of it runs on the test's
//! thread. For a store that needs a runtime, enter a multi-threaded one first.

mod matrix;
mod scene;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tallygate::call::{Call, Effect, Verb};
use tallygate::check::Receipt;
use tallygate::policy::{PolicySet, Stores};
use tallygate::{Cost, Limiter, Store};

use crate::resp::Reply;
use crate::server::Server;
use crate::wait::PATIENCE;
pub use matrix::{Matrix, Summary, Then};
pub use scene::{Case, Scene, policies, yaml};

/// Polls a future only when it was woken.
pub const WHEN_WOKEN: Duration = PATIENCE;

/// Polls `future` when it is woken and at least `every` so often, at most `polls` times, and then drops it if it is not
/// ready.
pub fn drop_after<F: Future>(future: F, polls: usize, every: Duration) -> Option<F::Output> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    for poll in 1..=polls {
        if let Poll::Ready(answer) = future.as_mut().poll(&mut context) {
            return Some(answer);
        }
        // Dropped immediately after the last poll.
        if poll < polls {
            thread::park_timeout(every);
        }
    }
    None
}

/// Polls `future` until it is ready.
///
/// # Panics
/// When it takes too long.
pub fn wait<F: Future>(future: F) -> F::Output {
    drop_after(future, 1_000_000, WHEN_WOKEN).expect("the future is ready in time")
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A way from a program to a store: polls a call a given number of times, and returns which states are right then, and
/// whether it was answered.
pub type Way<S> = fn(&S, &PolicySet, &Case, usize, Duration) -> (Then, bool);

/// The ways for every verb: directly to the store, and under policies.
pub fn ways<S: Store + Clone>() -> [(&'static str, Way<S>); 3] {
    let asked: Way<S> = |store, _, case, polls, every| {
        let checks = case.checks();
        let call = Call::new(case.verb(), &checks).expect("a call");
        let answer = drop_after(call.ask(store), polls, every);
        let answered = answer.map(|answer| {
            let answer = answer.expect("the store answers");
            // A call of one check answers what the check answers, whatever its mode.
            assert!(answer.allowed() == case.allowed() || checks.len() == 1, "{case:?}: {answer:?}");
        });
        (Then::polled(case.verb(), polls, answered.is_some()), answered.is_some())
    };
    let limited: Way<S> = |store, _, case, polls, every| {
        let (limiter, checks) = (Limiter::new(store.clone()), case.checks());
        let call = async {
            match (case.verb(), &checks[..]) {
                (Verb::Check, [check]) => limiter.check(*check).await.map(drop),
                (Verb::Check, checks) => limiter.check_all(checks).await.map(drop),
                (Verb::Refund, [check]) => limiter.refund(&[Receipt::new(*check, check.cost, None)]).await.map(drop),
                (Verb::Reset, [check]) => limiter.reset(*check).await.map(drop),
                (Verb::Peek, checks) => limiter.peek_all(checks).await.map(drop),
                (verb, checks) => Ok(Call::new(verb, checks)?.ask(&**limiter.store()).await.map(drop)?),
            }
        };
        let answered = drop_after(call, polls, every).map(|answer| answer.expect("the store answers"));
        (Then::polled(case.verb(), polls, answered.is_some()), answered.is_some())
    };
    let evaluated: Way<S> = |store, set, case, polls, every| {
        let (stores, asks) = (Stores::new(store.clone()), [case.ask()]);
        let evaluation = set.domain(case.scene().domain()).expect("each scene has one").evaluate(&asks);
        let verdict = drop_after(evaluation.decide(&stores, None), polls, every);
        let answered = verdict.map(|verdict| {
            assert_eq!(verdict.store_error(), None);
            let decides = case.verb().effect() != Effect::GivesBack;
            assert!(!decides || verdict.allowed() == case.allowed(), "{case:?}: {verdict:?}");
        });
        (Then::polled(case.verb(), polls, answered.is_some()), answered.is_some())
    };
    [("a call", asked), ("a limiter", limited), ("an evaluation", evaluated)]
}

/// The way of a check that is then refunded: the refund of its verdict is dropped.
pub fn refund_of_verdict<S: Store + Clone>(
    store: &S,
    set: &PolicySet,
    case: &Case,
    polls: usize,
    every: Duration,
) -> (Then, bool) {
    let (stores, asks) = (Stores::new(store.clone()), [case.ask()]);
    let evaluation = set.domain(case.scene().domain()).expect("each scene has one").evaluate(&asks);
    let verdict = wait(evaluation.decide(&stores, None));
    let refunded = drop_after(verdict.refund(&stores), polls, every).is_some();
    (if polls == 0 { Then::After } else { Then::Before }, refunded)
}

/// Prepares and reads the states of a case.
pub trait States {
    /// Charges the state of one of its limits.
    fn charge(&self, case: &Case, place: usize, units: Cost);

    /// The used units of each of its limits.
    fn used(&self, case: &Case) -> Vec<u64>;
}

/// States in a store that the test can access itself.
#[derive(Debug)]
pub struct Stored<S>(pub S);

impl<S: Store> States for Stored<S> {
    fn charge(&self, case: &Case, place: usize, units: Cost) {
        let check = case.state(place).cost(units);
        let decision =
            wait(Call::new(Verb::Check, &[check]).expect("one check").ask(&self.0)).expect("the store answers");
        assert!(decision.allowed(), "{case:?} cannot be prepared");
    }

    fn used(&self, case: &Case) -> Vec<u64> {
        let peek = |place: usize| {
            let check = case.state(place);
            let peeked = wait(Call::new(Verb::Peek, &[check]).expect("one check").ask(&self.0));
            check.limit.capacity() - peeked.expect("the store answers").binding().remaining()
        };
        (0..case.scene().count()).map(peek).collect()
    }
}

/// Checks that all keys of these servers have a TTL, and returns the number of keys.
///
/// # Panics
/// When one does.
#[track_caller]
pub fn every_key_expires(servers: &[Server]) -> usize {
    let mut count = 0;
    for server in servers {
        let mut connection = server.connect().expect("the server accepts");
        let keys = connection.call(&["KEYS", "tallygate:*"]).expect("the server answers");
        for key in keys.items() {
            let Reply::Bulk(key) = key else { panic!("not a key: {key:?}") };
            let left = connection.call(&[b"PTTL".as_slice(), key]).expect("the server answers").int();
            assert_ne!(left, -1, "{} would live for ever", String::from_utf8_lossy(key));
            count += 1;
        }
    }
    count
}
