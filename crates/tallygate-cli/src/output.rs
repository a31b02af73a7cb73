//! Answers as text for people and as JSON for programs.

use std::io::{self, Write};

use serde::Serialize;
use tallygate::decision::Source;
use tallygate::{Decision, Status};
use tallygate_http::{decision_answer, sanitize};

use crate::duration;

/// The outcome of a command, for its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Allowed, or done.
    Allowed,
    Denied,
}

impl From<&Decision> for Outcome {
    fn from(decision: &Decision) -> Self {
        if decision.allowed() { Self::Allowed } else { Self::Denied }
    }
}

/// How to print answers.
#[derive(Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// Print JSON, one object on each line
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn write_json(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    writeln!(out, "{}", sanitize::json(&serde_json::to_string(value)?))
}

pub(crate) fn write_decision(
    out: &mut impl Write,
    form: &OutputArgs,
    policies: &[&str],
    decision: &Decision,
) -> io::Result<()> {
    if form.json {
        return write_json(out, &decision_answer(policies, decision));
    }
    writeln!(out, "{}", decision_text(policies, decision))?;
    if let [_] = policies {
        return Ok(());
    }
    let names: Vec<String> = policies.iter().map(|policy| sanitize::text(policy)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    for (name, status) in names.iter().zip(decision.statuses()) {
        writeln!(out, "  {name:<width$}  {}", status_text(status))?;
    }
    Ok(())
}

/// One decision on one line: the outcome and the numbers of the limit that binds; and what was granted to a call that takes what is
/// left.
pub(crate) fn decision_text(policies: &[&str], decision: &Decision) -> String {
    let binding = decision.binding();
    let mut text = status_text(&binding);
    if policies.len() > 1 {
        text += &format!("  ({} binds)", sanitize::text(policies[decision.binding_index()]));
    }
    if let Some(granted) = decision.granted().filter(|_| decision.allowed()) {
        text += &format!("  (granted: {granted})");
    }
    match decision.source() {
        Source::Store => {}
        Source::ZeroLimit => text += "  (the limit is zero)",
        other => text += &format!("  (from: {})", other.name()),
    }
    if decision.replayed() {
        text += "  (replayed: not charged again)";
    }
    if decision.split() {
        text += "  (charged one after the other: the limits are in different slots)";
    }
    text
}

pub(crate) fn status_text(status: &Status) -> String {
    let mut left = format!("{} of {} left", status.remaining(), status.limit());
    for (units, what) in [(status.held(), "held"), (status.debt(), "in debt")] {
        if units > 0 {
            left += &format!(", {units} {what}");
        }
    }
    if status.holds_full() {
        left += " (no more may be held)";
    }
    let full = duration::render(status.reset_after());
    match (status.allowed(), status.retry_after()) {
        (true, _) if status.reset_after().is_zero() => format!("allowed  {left}"),
        (true, _) => format!("allowed  {left}, full in {full}"),
        (false, Some(wait)) => format!("denied   {left}, retry in {}, full in {full}", duration::render(wait)),
        (false, None) => format!("denied   {left}, waiting does not help"),
    }
}
