//! The explanation as text.

use std::io::{self, Write};

use tallygate::decision::Source;
use tallygate::policy::{Descriptor, Mode, Verdict};
use tallygate_http::sanitize;

use super::{Applying, Explained};
use crate::color::Color;
use crate::duration;
use crate::table::{Cell, Table, thousands, wrap};

/// The call, the policies that apply with their state, those that do not, and the answer.
pub(super) fn write(out: &mut impl Write, explained: &Explained<'_>) -> io::Result<()> {
    let color = Color::for_stdout();
    let several = explained.descriptors.len() > 1;
    let title = format!("domain {}, cost {}", sanitize::text(explained.domain), explained.cost);
    writeln!(out, "{}", color.title(&title))?;
    for (at, descriptor) in explained.descriptors.iter().enumerate() {
        let number = if several { format!("{}  ", at + 1) } else { String::new() };
        writeln!(out, "  {number}{}", entries(descriptor))?;
    }
    writeln!(out)?;
    write_applying(out, &explained.applying, several, color)?;
    write_others(out, explained, several, color)?;
    let answer = wrap(&answer(explained.verdict), "");
    writeln!(out, "{}", if explained.verdict.allowed() { color.good(&answer) } else { color.bad(&answer) })
}

fn entries(descriptor: &Descriptor) -> String {
    let entry = |(key, value): &(String, String)| sanitize::text(&format!("{key}={value}"));
    descriptor.entries().iter().map(entry).collect::<Vec<_>>().join("  ")
}

fn write_applying(out: &mut impl Write, applying: &[Applying<'_>], several: bool, color: Color) -> io::Result<()> {
    let mut rows = Table::default();
    for one in applying {
        let ruling = one.ruling;
        let (policy, status) = (ruling.policy(), ruling.status());
        let limited = ruling.source() != Source::Unlimited;
        let limit = ruling.limit().map_or_else(|| "unlimited".to_owned(), ToString::to_string);
        let left = match ruling.source() {
            Source::Unlimited => String::new(),
            // The store was not asked.
            Source::TooCostly | Source::OnlyReserved => format!("? of {}", thousands(status.limit())),
            _ => format!("{} of {}", thousands(status.remaining()), thousands(status.limit())),
        };
        let full = Some(status.reset_after()).filter(|full| limited && !full.is_zero());
        let mut cells = vec![Cell::word(sanitize::text(policy.name()))];
        if several {
            cells.push(Cell::figure((ruling.descriptor() + 1).to_string()));
        }
        cells.extend([
            Cell::word(policy.mode().name()),
            Cell::word(limit),
            Cell::figure(left),
            Cell::figure(full.map(duration::render).unwrap_or_default()),
            Cell::word(said(one)).good_if(status.allowed()),
        ]);
        rows.row(cells);
        rows.note(&sanitize::text(&one.because));
        if let Some(own) = policy.limit().filter(|own| Some(*own) != ruling.limit()) {
            rows.note(&format!("others have {own}"));
        }
        for (name, payer) in ruling.payers() {
            let (limit, status) = (payer.limit(), payer.status());
            let left = format!("{} of {} left", thousands(status.remaining()), thousands(status.limit()));
            rows.note(&format!("{} pays {limit}: {left}", sanitize::text(name)));
        }
        if let Some(key) = &one.key {
            rows.note(&format!("key {}", sanitize::text(key)));
        }
    }
    let headings = ["applies", "to", "mode", "limit", "left", "full in", "answer"];
    let headings: Vec<&str> = headings.into_iter().filter(|heading| several || *heading != "to").collect();
    rows.write(out, &headings, color)
}

fn write_others(out: &mut impl Write, explained: &Explained<'_>, several: bool, color: Color) -> io::Result<()> {
    let mut rows = Table::default();
    for reason in &explained.others {
        let mut cells = vec![Cell::word(sanitize::text(reason.policy.name()))];
        if several {
            cells.push(Cell::figure((reason.descriptor + 1).to_string()));
        }
        cells.push(Cell::word(sanitize::text(&reason.because)));
        rows.row(cells);
    }
    let headings: &[&str] = if several { &["does not apply", "to", "because"] } else { &["does not apply", "because"] };
    rows.write(out, headings, color)
}

/// What one policy says about the call.
fn said(one: &Applying<'_>) -> String {
    let ruling = one.ruling;
    let said = match (ruling.status().allowed(), ruling.source()) {
        (true, _) => "allowed".to_owned(),
        (false, Source::OnlyReserved) => "denied: what is in flight can only be reserved".to_owned(),
        (false, Source::TooCostly) => "denied: the cost is above the limit".to_owned(),
        (false, Source::ZeroLimit) if ruling.limit().is_some_and(|limit| limit.amount() == 0) => {
            "denied: the limit is zero".to_owned()
        }
        (false, _) => match ruling.status().retry_after() {
            Some(wait) if !wait.is_zero() => format!("denied, retry in {}", duration::render(wait)),
            _ => "denied".to_owned(),
        },
    };
    match (ruling.status().allowed(), one.would_charge) {
        (false, taken @ 1..) => format!("{said}, takes the {} left", thousands(taken)),
        _ => said,
    }
}

fn answer(verdict: &Verdict) -> String {
    let Some(binding) = verdict.binding() else {
        return match verdict.rulings() {
            [] => "allowed: no policy applies".to_owned(),
            rulings if rulings.iter().all(|ruling| ruling.mode() == Mode::Shadow) => {
                "allowed: only shadow policies apply".to_owned()
            }
            _ => "allowed: unlimited".to_owned(),
        };
    };
    let (name, status) = (sanitize::text(binding.policy().name()), binding.status());
    let left = format!("{} of {} left", thousands(status.remaining()), thousands(status.limit()));
    match (verdict.allowed(), status.retry_after()) {
        (true, _) => format!("allowed: {name} binds, {left}"),
        (false, Some(wait)) if wait.is_zero() => format!("denied: {name} binds, {left}"),
        (false, Some(wait)) => format!("denied: {name} binds, {left}, retry in {}", duration::render(wait)),
        (false, None) => format!("denied: {name} binds, waiting does not help"),
    }
}
