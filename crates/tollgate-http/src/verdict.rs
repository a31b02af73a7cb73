//! Verdicts, as HTTP edges tell them: headers, problems, JSON.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue};
use serde_json::Value;
use tollgate::{Mode, Outcome, Ruling, Source, Verdict};

use crate::{Answer, Dialect, Headers, Line, Part, Problem};

/// When to come again if nobody knows.
const SOON: Duration = Duration::from_secs(1);

/// What a refused caller is told.
pub fn verdict_problem(verdict: &Verdict) -> Problem {
    let refuses = |ruling: &&Ruling| ruling.mode() != Mode::Shadow && !ruling.status().allowed();
    let mut violated: Vec<&str> =
        verdict.rulings().iter().filter(refuses).map(|ruling| ruling.policy().name()).collect();
    violated.dedup();
    match verdict.outcome() {
        Outcome::Unavailable => Problem::reduced_capacity(&violated, Some(SOON)),
        _ => {
            let wait = verdict.binding().and_then(|ruling| ruling.status().retry_after());
            Problem::quota_exceeded(&violated, wait)
        }
    }
}

/// The headers of a verdict, set on a response. Shadows are left out, and so are limits that nobody could look at: their
/// numbers would be made up.
pub fn verdict_headers(verdict: &Verdict, dialect: Dialect, to: &mut HeaderMap) {
    let unix_now = dialect.unix_now();
    let outcome = verdict.outcome();
    let allowed = outcome == Outcome::Allowed;
    if dialect == Dialect::Off && allowed {
        return;
    }
    let mut apply = |lines: &[Line<'_>], binding| Headers { dialect, lines, binding, allowed, unix_now }.apply(to);
    if let [ruling] = verdict.rulings() {
        let line = line(ruling);
        apply(line.as_slice(), line.map(|_| 0));
    } else {
        let known = verdict.rulings().iter().filter_map(|ruling| Some((ruling, line(ruling)?)));
        let (rulings, lines): (Vec<&Ruling>, Vec<Line<'_>>) = known.unzip();
        let binding = verdict.binding().and_then(|binding| rulings.iter().position(|one| std::ptr::eq(*one, binding)));
        apply(&lines, binding);
    }
    if outcome == Outcome::Unavailable {
        to.insert(RETRY_AFTER, HeaderValue::from(SOON.as_secs()));
    }
}

/// What a ruling adds to the headers, if it does.
fn line(ruling: &Ruling) -> Option<Line<'_>> {
    let made_up = matches!(ruling.source(), Source::OnErrorAllow | Source::OnErrorDeny);
    if ruling.mode() == Mode::Shadow || made_up {
        return None;
    }
    Some(Line { policy: ruling.policy().name(), limit: ruling.limit()?, status: ruling.status() })
}

/// The object that every decision answers.
pub fn verdict_json(verdict: &Verdict) -> Value {
    let parts: Vec<Part<'_>> = verdict.rulings().iter().map(part).collect();
    let binding =
        verdict.binding().and_then(|binding| verdict.rulings().iter().position(|one| std::ptr::eq(one, binding)));
    let (split, decided_at) = (verdict.split(), verdict.decided_at());
    Answer { allowed: verdict.allowed(), parts: &parts, binding, split, decided_at }.to_json()
}

fn part(ruling: &Ruling) -> Part<'_> {
    let (policy, status, source) = (ruling.policy().name(), ruling.status(), ruling.source());
    Part { policy, status, source, shadow: ruling.mode() == Mode::Shadow }
}
