//! Dropped calls: the embedded store makes a call at the first poll, or not at all.

use std::sync::Arc;

use tallygate::MemoryStore;
use tallygate::call::Verb;
use tallygate_testkit::cancellation::{Matrix, Scene, Stored, policies, refund_of_verdict, ways};

#[test]
fn a_dropped_call_is_made_completely_or_not_at_all() {
    let scenes = Scene::generate(1, 200);
    let set = policies(&scenes);
    for (way, run) in ways() {
        let store = Arc::new(MemoryStore::new());
        let mut matrix = Matrix::new(Stored(Arc::clone(&store)));
        matrix.every_poll(&scenes, Verb::ALL, |case, polls, every| run(&store, &set, case, polls, every));
        let summary = matrix.judge();
        assert_eq!(summary.dropped, 0, "{way} was not ready at its first poll");
    }
}

#[test]
fn a_dropped_refund_of_a_verdict_is_made_completely_or_not_at_all() {
    let scenes = Scene::generate(2, 200);
    let set = policies(&scenes);
    let store = Arc::new(MemoryStore::new());
    let mut matrix = Matrix::new(Stored(Arc::clone(&store)));
    matrix
        .every_poll(&scenes, &[Verb::Check], |case, polls, every| refund_of_verdict(&store, &set, case, polls, every));
    matrix.judge();
}
