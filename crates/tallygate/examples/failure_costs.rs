//! What a decision costs while the store fails, what it costs to be ready for that, and what a repeated denial costs.
//!
//! `cargo run --release -p tallygate --example failure_costs`
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement that is read on a terminal")]

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use tallygate::call::{Call, Verb};
use tallygate::policy::{Action, Ask, Descriptor, Domain, Instances, OnError, Policy, PolicySet, Rule, Stores};
use tallygate::store::DenyCache;
use tallygate::{Check, Cost, Key, Limit, MemoryStore, Store};
use tallygate_testkit::FaultyStore;

const ROUNDS: u32 = 200_000;

#[expect(clippy::disallowed_methods, reason = "a stopwatch: it decides nothing")]
fn nanos(what: &str, mut call: impl FnMut(u32)) {
    let best = (0..5).map(|_| {
        let began = Instant::now();
        (0..ROUNDS).for_each(&mut call);
        began.elapsed().as_nanos() / u128::from(ROUNDS)
    });
    println!("{what:<60} {:>6} ns", best.min().unwrap_or_default());
}

fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

fn decisions<S: Store>(what: &str, stores: &Stores<S>, limit: &str, on_error: OnError) {
    let policy = Policy::new("p", "d", limit).unwrap().with_on_error(on_error);
    let domain = Domain::new("d", [(policy, Rule::new().partition("user"))]).unwrap();
    let set = PolicySet::new(vec![domain]).unwrap();
    let action = Action::new(Verb::Check, Cost::ONE);
    let asks: Vec<[Ask; 1]> =
        (0..1000).map(|user| [Ask::new(Descriptor::new().with("user", format!("user {user}")), action)]).collect();
    nanos(what, |round| {
        let ask = &asks[round as usize % asks.len()];
        ready(set.domain("d").unwrap().evaluate(ask).decide(stores, None));
    });
}

fn main() {
    let stores = || Stores::new(FaultyStore::new(MemoryStore::new())).with_instances(Instances::new(3));
    for limit in ["1000000/h", "1000000/h fixed_window", "1000000/h sliding_window", "10/h"] {
        decisions(&format!("{limit}, store answers, on_error: allow"), &stores(), limit, OnError::Allow);
        decisions(&format!("{limit}, store answers, local follows"), &stores(), limit, OnError::Local);
    }
    for &on_error in OnError::ALL {
        let down = stores();
        down.shared().switch().off();
        decisions(&format!("store fails at once, on_error: {on_error}"), &down, "1000000/h", on_error);
        down.shared().switch().overload();
        decisions(&format!("overloaded, on_error: {on_error}"), &down, "1000000/h", on_error);
    }
    let cached = DenyCache::new(Arc::new(MemoryStore::new()));
    let limit: Limit = "1/h".parse().unwrap();
    let checks = [Check::new(Key::new("p", "user 42").unwrap(), &limit)];
    let call = Call::new(Verb::Check, &checks).unwrap();
    nanos("a denial by the deny cache", |_| drop(call.ask_now(&cached)));
}
