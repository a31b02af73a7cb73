//! What a policy grants to holds: the field `holds`.

use std::time::Duration;

use tallygate::Limit;
use tallygate::hold::HoldTerms;

use super::word;
use crate::fields::{Fields, Names};
use crate::finding::Place;
use crate::node::Kind;

pub(crate) const HOLDS: Names = &["on_abandon", "overrun", "max_open", "max_held", "max_ttl", "max_life", "estimate"];

/// The terms, where the policy sets any.
pub(super) fn holds(policy: Fields<'_>) -> Option<HoldTerms> {
    let fields = Fields::of(policy.get("holds")?, "`holds`", HOLDS, policy.findings)?;
    let mut terms = HoldTerms::DEFAULT;
    if let Some(on_abandon) = word(fields, "on_abandon") {
        terms = terms.with_on_abandon(on_abandon);
    }
    if let Some(overrun) = word(fields, "overrun") {
        terms = terms.with_overrun(overrun);
    }
    if let Some(holds) = max_open(fields) {
        terms = terms.with_most_open(holds);
    }
    if let Some(percent) = max_held(fields) {
        terms = terms.with_most_held(percent);
    }
    if let Some(ttl) = span(fields, "max_ttl", HoldTerms::LONGEST, "a day") {
        terms = terms.with_longest(ttl);
    }
    if let Some(life) = span(fields, "max_life", HoldTerms::LONGEST_LIFE, "30 days") {
        terms = terms.with_max_life(life);
    }
    if let Some(first) = estimate(fields) {
        terms = terms.with_learned_estimate(first);
    }
    Some(terms)
}

/// What a concurrency limit cannot have: its units come back when their hold ends, and only then.
pub(super) fn of_concurrency(policy: Fields<'_>) {
    let refuse = |fields: Fields<'_>, name: &str, why: &str, help: &str| {
        if let Some((_, at)) = fields.text(name) {
            refuse(fields, at, &format!("`{name}` cannot be used with a concurrency limit: {why}"), help);
        }
    };
    let reserved = "its units are only reserved";
    refuse(policy, "cache_denials", "units come back at any time", "remove it");
    refuse(policy, "allotment", reserved, "remove it");
    refuse(policy, "excess", reserved, "remove it");
    if policy.text("on_error").is_some_and(|(text, _)| text.starts_with("local")) {
        refuse(
            policy,
            "on_error",
            "nobody would give back what a share has lent",
            "write `on_error: allow` or `on_error: deny`",
        );
    }
    // What is not a mapping was refused before.
    let holds = policy.get("holds").filter(|node| matches!(node.kind, Kind::Map(_)));
    let Some(holds) = holds.and_then(|node| Fields::open(node, "`holds`", HOLDS, policy.findings)) else { return };
    for name in ["on_abandon", "overrun"] {
        refuse(holds, name, "its units always come back", "remove it");
    }
    refuse(holds, "estimate", "nothing of it is used up", "say how many units each reservation takes");
}

fn max_open(fields: Fields<'_>) -> Option<u32> {
    const MOST: u32 = HoldTerms::MOST_OPEN;
    let (holds, at) = fields.number("max_open")?;
    let fitting = u32::try_from(holds).ok().filter(|holds| (1..=MOST).contains(holds));
    if fitting.is_none() {
        let mut finding = fields.findings.error(at, format!("`max_open` is from 1 to {MOST} holds, not {holds}"));
        finding.help("it is for each caller that the policy counts separately");
    }
    fitting
}

/// A share of the capacity: `50%`.
fn max_held(fields: Fields<'_>) -> Option<u8> {
    let (text, at) = fields.text("max_held")?;
    let percent = text.strip_suffix('%').and_then(|percent| percent.trim_end().parse().ok());
    let percent = percent.filter(|percent| (1..=100).contains(percent));
    if percent.is_none() {
        refuse(
            fields,
            at,
            &format!("`max_held` is from 1% to 100% of the limit, not `{text}`"),
            "for example `max_held: 50%`",
        );
    }
    percent
}

/// A time, written as the window of a limit is.
fn span(fields: Fields<'_>, name: &str, longest: Duration, most: &str) -> Option<Duration> {
    let (text, at) = fields.text(name)?;
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let plain = !digits.is_empty() && unit.trim_start().chars().all(|c| c.is_ascii_alphabetic());
    let limit = Some(format!("1/{text}")).filter(|_| plain).and_then(|limit| limit.parse::<Limit>().ok());
    let span = limit.map(|limit| limit.window()).filter(|span| *span <= longest);
    if span.is_none() {
        let message = format!("`{name}` is a time from 1 ms to {most}, not `{text}`");
        refuse(fields, at, &message, &format!("for example `{name}: 10min`"));
    }
    span
}

/// The first estimate of what is learned: `p95 from 500`.
fn estimate(fields: Fields<'_>) -> Option<u64> {
    let (text, at) = fields.text("estimate")?;
    let mut words = text.split_ascii_whitespace();
    let first = match [words.next(), words.next(), words.next(), words.next()] {
        [Some("p95"), Some("from"), Some(first), None] => first.parse().ok(),
        _ => None,
    };
    let first = first.filter(|first| (1..=Limit::MAX_AMOUNT).contains(first));
    if first.is_none() {
        refuse(
            fields,
            at,
            &format!(
                "`estimate` is what 19 of 20 holds use at most, and what to reserve until that is known, not `{text}`"
            ),
            "for example `estimate: p95 from 500`",
        );
    }
    first
}

fn refuse(fields: Fields<'_>, at: &Place, message: &str, help: &str) {
    fields.findings.error(at, message).help(help);
}
