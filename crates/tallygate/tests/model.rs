//! The algorithms answer as the model does, which is written from the documents in exact fractions.
//!
//! `cargo xtask model --decisions N` compares more.

use std::env;
use std::str::FromStr;

use tallygate::Algorithm;
use tallygate_testkit::model::Run;

#[test]
fn every_answer_is_that_of_the_model() {
    let only = variable::<Algorithm>("TALLYGATE_MODEL_ALGORITHM");
    let decisions = variable("TALLYGATE_MODEL_DECISIONS");
    let run = Run {
        decisions: decisions.unwrap_or(300_000),
        seed: variable("TALLYGATE_MODEL_SEED").unwrap_or(1),
        algorithms: only.map_or_else(|| Algorithm::OVER_TIME.to_vec(), |only| vec![only]),
        threads: variable("TALLYGATE_MODEL_THREADS").unwrap_or(1),
        progress: decisions.is_some(),
    };
    let report = run.run();
    println!("{report}");
    assert!(report.differences.is_empty(), "{report}");
    for (algorithm, seen) in report.seen.iter().filter(|(_, seen)| seen.decisions >= 10_000) {
        let rare = [seen.denied, seen.refunded, seen.changed, seen.back].into_iter().min();
        assert!(rare > Some(seen.decisions / 200), "{algorithm} tries too little: {seen}");
    }
}

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not valid")))
}
