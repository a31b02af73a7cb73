use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tallygate::call::Verb;
use tallygate::policy::{Descriptor, Domain, Policy, Rule};
use tallygate::{Cost, MemoryStore};

use super::*;
use crate::question::AdHoc;

fn set(domain: &str) -> PolicySet {
    let policy = Policy::new("per-user", domain, "1/min").unwrap();
    PolicySet::new(vec![Domain::new(domain, [(policy, Rule::new().partition("user"))]).unwrap()]).unwrap()
}

fn app() -> Arc<App> {
    App::new(MemoryStore::new().into(), set("api"), &Settings::default())
}

fn by_policy(verb: Verb, domain: &str) -> Question {
    Question::by_policy(verb, domain.to_owned(), [Descriptor::new().with("user", "alice")], Cost::ONE, None)
}

/// The domain was looked up in one policy set, and the call decided under another: a reload in between that dropped the
/// domain let the call pass without a limit.
#[tokio::test]
async fn a_reload_between_the_check_of_the_domain_and_the_decision_cannot_lift_its_limits() {
    let (app, done) = (app(), Arc::new(AtomicBool::new(false)));
    let reloads = {
        let (app, done) = (Arc::clone(&app), Arc::clone(&done));
        std::thread::spawn(move || {
            let sets = ["api", "other"].map(|domain| Arc::new(Loaded::new(set(domain), None)));
            for loaded in sets.iter().cycle().take_while(|_| !done.load(Relaxed)) {
                app.policies.store(Arc::clone(loaded));
            }
        })
    };
    let question = by_policy(Verb::Check, "api");
    let (mut limited, mut unknown) = (0, 0);
    for _ in 0..100_000 {
        match app.answer(Api::Http, &question, None).await {
            Ok(Answer::Verdict(verdict)) => {
                assert_eq!(verdict.rulings().len(), 1, "decided without the limits of its domain");
                limited += 1;
            }
            Err(AnswerError::UnknownDomain { .. }) => unknown += 1,
            other => panic!("{other:?}"),
        }
    }
    done.store(true, Relaxed);
    reloads.join().unwrap();
    assert!(limited > 0 && unknown > 0, "{limited} calls met the domain, {unknown} did not");
}

#[tokio::test]
async fn an_unknown_domain_is_an_error_but_for_envoy() {
    let app = app();
    for &verb in Verb::ALL {
        for api in [Api::Http, Api::ForwardAuth] {
            let question = by_policy(verb, "apo");
            let error = app.answer(api, &question, None).await.expect_err("no such domain").to_string();
            assert_eq!(error, "There is no domain `apo`: did you mean `api`?");
        }
    }
    for api in [Api::Json, Api::Rls] {
        let question = by_policy(Verb::Check, "apo");
        let verdict = app.answer(api, &question, None).await.unwrap().into_verdict();
        assert!(verdict.allowed() && verdict.rulings().is_empty());
    }
}

#[tokio::test]
async fn every_verb_of_both_kinds_of_questions_is_counted() {
    let app = app();
    let limit = || "1/min".parse().unwrap();
    let ad_hoc = |verb| {
        let asked = AdHoc::new("login".to_owned(), "alice".to_owned(), limit(), Cost::ONE, None).unwrap();
        Question { verb, about: About::AdHoc(asked), up_to: None, reserving: None, request_id: None }
    };
    // Allowed, denied, denied without a charge, given back, forgotten.
    let verbs = [Verb::Check, Verb::Check, Verb::Peek, Verb::Refund, Verb::Reset];
    for question in verbs.map(ad_hoc).into_iter().chain(verbs.map(|verb| by_policy(verb, "api"))) {
        app.answer(Api::Http, &question, None).await.unwrap();
    }
    app.reject(Api::Http);
    let sources = crate::metrics::Sources { app, listeners: Default::default(), traces: None };
    let listed = sources.render();
    for (outcome, count) in [("allowed", 6), ("denied", 4), ("unavailable", 0), ("invalid", 1)] {
        let line = format!("tallygate_calls_total{{api=\"http\",outcome=\"{outcome}\"}} {count}\n");
        assert!(listed.contains(&line), "{line}{listed}");
    }
    let timed = "tallygate_decision_duration_seconds_count{api=\"http\"} 10\n";
    assert!(listed.contains(timed), "{listed}");
}

/// A call that waits for its turn was decided and charged when nobody waited for the answer any more.
#[tokio::test(start_paused = true)]
async fn a_call_waited_for_its_turn_beyond_the_deadline_of_its_caller() {
    let policies =
        (0..1001).map(|at| (Policy::new(format!("p{at}"), "api", "1/min").unwrap(), Rule::new().partition("user")));
    let set = PolicySet::new(vec![Domain::new("api", policies).unwrap()]).unwrap();
    let app = App::new(MemoryStore::new().into(), set, &Settings::default());
    let mut turns = Vec::new();
    while let Ok(turn) = app.turns.take(1001, 1, Some(Instant::now())).await {
        turns.push(turn);
    }
    let question = by_policy(Verb::Check, "api");
    // One without a deadline, as over HTTP, waited until its request timed out.
    for (api, deadline) in [(Api::Rls, Some(Instant::now())), (Api::Http, None)] {
        let late = app.answer(api, &question, deadline).await.expect_err("it has no turn");
        assert!(matches!(&late, AnswerError::Check(CheckError::Store(error)) if error.is_late()), "{late:?}");
    }
    drop(turns);
    assert!(app.answer(Api::Rls, &question, None).await.is_ok());
}
