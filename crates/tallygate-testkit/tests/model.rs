//! The comparison with the model finds every mistake that it is given.

use tallygate::Algorithm;
use tallygate::call::Verb;
use tallygate_testkit::model::{Answer, Model, Product, Question, Story, Subject};

/// A mistake is found within this many stories. Most are found in the first.
const STORIES: u64 = 300;

/// The product with a mistake around it.
struct Mistaken<F>(F);

impl<F: FnMut(u64, &Question) -> Answer> Subject for Mistaken<F> {
    fn ask(&mut self, now: u64, question: &Question) -> Answer {
        (self.0)(now, question)
    }
}

/// Every algorithm finds the mistake; a fresh subject is made for each story.
fn is_found<S: Subject>(algorithms: &[Algorithm], mistaken: impl Fn() -> S) {
    for &algorithm in algorithms {
        let found = (1..=STORIES).find_map(|seed| Story::new(algorithm, seed).compare(&mut mistaken()).err());
        let report = found.unwrap_or_else(|| panic!("{algorithm}: not found in {STORIES} stories")).to_string();
        assert!(report.contains(algorithm.name()) && report.contains("product: "), "{report}");
    }
}

/// The product with a mistake in how it is asked, or in what it answers.
fn with(mistake: impl Fn(&mut Product, u64, &Question) -> Answer) -> impl Subject {
    let mut product = Product::default();
    Mistaken(move |now, question: &Question| mistake(&mut product, now, question))
}

#[test]
fn a_boundary_one_microsecond_late_or_early_is_found() {
    is_found(Algorithm::OVER_TIME, || with(|product, now, question| product.ask(now - 1, question)));
    is_found(Algorithm::OVER_TIME, || with(|product, now, question| product.ask(now + 1, question)));
}

#[test]
fn a_refused_call_that_is_counted_is_found() {
    is_found(Algorithm::OVER_TIME, || {
        with(|product, now, question| {
            let answer = product.ask(now, question);
            if question.verb == Verb::Check && !answer.allowed && answer.retry_after.is_some() && answer.remaining > 0 {
                let rest = Question { units: answer.remaining, ..question.clone() };
                product.ask(now, &rest);
            }
            answer
        })
    });
}

#[test]
fn a_peek_that_charges_is_found() {
    is_found(Algorithm::OVER_TIME, || {
        with(|product, now, question| {
            let answer = product.ask(now, question);
            if question.verb == Verb::Peek && answer.allowed {
                product.ask(now, &Question { verb: Verb::Check, ..question.clone() });
            }
            answer
        })
    });
}

#[test]
fn waits_wrong_by_one_microsecond_are_found() {
    is_found(Algorithm::OVER_TIME, || {
        with(|product, now, question| {
            let answer = product.ask(now, question);
            Answer { retry_after: answer.retry_after.map(|wait| wait.saturating_sub(1)), ..answer }
        })
    });
    is_found(Algorithm::OVER_TIME, || {
        with(|product, now, question| {
            let answer = product.ask(now, question);
            Answer { reset_after: answer.reset_after + u64::from(answer.reset_after > 0), ..answer }
        })
    });
}

#[test]
fn a_refund_that_ignores_when_it_was_charged_is_found() {
    is_found(Algorithm::OVER_TIME, || {
        with(|product, now, question| product.ask(now, &Question { charged_at: None, ..question.clone() }))
    });
}

#[test]
fn a_refund_of_one_unit_too_many_is_found() {
    is_found(Algorithm::OVER_TIME, || {
        with(|product, now, question| {
            let more = u64::from(question.verb == Verb::Refund && question.units < 1_000_000_000);
            product.ask(now, &Question { units: question.units + more, ..question.clone() })
        })
    });
}

#[test]
fn a_clock_that_never_steps_back_is_found() {
    is_found(Algorithm::OVER_TIME, || {
        let (mut product, mut latest) = (Product::default(), 0);
        Mistaken(move |now: u64, question: &Question| {
            latest = now.max(latest);
            // Waits as of now: only what is regained is wrong.
            let answer = product.ask(latest, question);
            let catches_up = latest - now;
            let from_now = |wait: u64| if wait > 0 { wait + catches_up } else { 0 };
            Answer {
                retry_after: answer.retry_after.map(from_now),
                reset_after: from_now(answer.reset_after),
                ..answer
            }
        })
    });
}

#[test]
fn a_changed_limit_that_starts_afresh_is_found() {
    is_found(Algorithm::OVER_TIME, || {
        let (mut product, mut before) = (Product::default(), None);
        Mistaken(move |now, question: &Question| {
            if question.limit.amount() > 0
                && before.replace(question.limit.clone()).is_some_and(|old| old != question.limit)
            {
                product.ask(now, &Question { verb: Verb::Reset, ..question.clone() });
            }
            product.ask(now, question)
        })
    });
}

#[test]
fn a_refill_rounded_up_is_found() {
    is_found(&[Algorithm::TokenBucket, Algorithm::SlidingCounter], Model::that_rounds_up);
}

/// The mistakes above are found because they are mistakes.
#[test]
fn the_product_and_the_model_itself_have_none() {
    for &algorithm in Algorithm::OVER_TIME {
        for seed in 1..=10 {
            let story = Story::new(algorithm, seed);
            let seen = story.compare(&mut Product::default()).unwrap_or_else(|difference| panic!("{difference}"));
            assert_eq!(story.compare(&mut Model::default()).ok(), Some(seen));
        }
    }
}
