//! The picture: a row of bars for what was offered and one for each algorithm, below each other in time.

use std::io::{self, Write};
use std::time::Duration;

use super::traffic::{SLOTS, Traffic, WINDOWS};
use super::trial::Trial;
use crate::color::Color;
use crate::duration;

/// Lower blocks of one to eight eighths.
const BLOCKS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
const LINES: u64 = 2;
const EIGHTHS: u64 = 8;

const LABEL: usize = 17;
const ADMITTED: usize = 9;
const WORST: usize = 10;
const WIDTH: usize = 80;

pub(crate) fn draw(out: &mut impl Write, traffic: &Traffic, trials: &[Trial], color: Color) -> io::Result<()> {
    let offered = traffic.per_slot(traffic.calls());
    let peak = offered.iter().copied().max().unwrap_or(1).max(1);

    let window = Duration::from_micros(traffic.window());
    let key =
        format!("{} admitted  {} refused  {} a window begins", color.good("█"), color.refused("░"), color.faint("│"));
    let rest = WINDOWS * (SLOTS + 1) - 1 - "# admitted  # refused  # a window begins".len();
    let worst = format!("peak/{}", duration::render(window).replace(' ', ""));
    writeln!(out, "{:LABEL$}{key}{:rest$}{:>ADMITTED$}{worst:>WORST$}\n", "", "", "admitted")?;

    for line in (0..LINES).rev() {
        let bars = row(&offered, &offered, peak, line, color, Color::offered);
        if line == 0 {
            writeln!(out, "{:LABEL$}{bars}", "")?;
            continue;
        }
        let total = short(traffic.calls().len() as u64 * traffic.cost());
        writeln!(out, "{}{bars}{:>ADMITTED$}", name("offered", color), format!("of {total}"))?;
    }
    writeln!(out, "{:LABEL$}{}\n", "", color.faint(&axis(window)))?;

    for trial in trials {
        let admitted = traffic.per_slot(&trial.admitted);
        let (first_label, second_label) = label(trial.limit.algorithm().name());
        for line in (0..LINES).rev() {
            let bars = row(&admitted, &offered, peak, line, color, Color::good);
            if line == 0 {
                writeln!(out, "{}{bars}", name(second_label, color))?;
                continue;
            }
            let worst = format!("{:>WORST$}", short(trial.worst.units));
            let worst = if trial.over() { color.over(&worst) } else { worst };
            writeln!(out, "{}{bars}{:>ADMITTED$}{worst}", name(first_label, color), short(trial.units))?;
        }
        writeln!(out, "{}", verdict_line(traffic, trial, color))?;
    }
    Ok(())
}

/// One line of bars: what was admitted solid, and what was refused shaded where it would have stood.
fn row(
    solid: &[u64],
    whole: &[u64],
    peak: u64,
    line: u64,
    color: Color,
    solid_paint: fn(Color, &str) -> String,
) -> String {
    let height = |count: u64| (count * LINES * EIGHTHS).div_ceil(peak);
    let part = |count: u64| height(count).saturating_sub(line * EIGHTHS).min(EIGHTHS);
    let mut written = String::new();
    for (slot, (&solid, &whole)) in solid.iter().zip(whole).enumerate() {
        if slot > 0 && slot.is_multiple_of(SLOTS) {
            written += &color.faint("│");
        }
        written += &match (part(solid), part(whole)) {
            (0, 0) => " ".to_owned(),
            (0, _) => color.refused("░"),
            (eighths, _) => solid_paint(color, BLOCKS[usize::try_from(eighths).unwrap_or(0)]),
        };
    }
    written
}

fn axis(window: Duration) -> String {
    let begins = (0_u32..).take(WINDOWS).map(|number| match number {
        0 => "0".to_owned(),
        _ => duration::render(window * number),
    });
    // Below the mark of its boundary, which stands before the window's first column.
    let mut line = String::new();
    for (number, begin) in begins.enumerate() {
        let column = (number * (SLOTS + 1)).saturating_sub(1);
        if line.chars().count() < column || number == 0 {
            line = format!("{line:column$}{begin}");
        }
    }
    line
}

/// What to make of a trial; what went over the limit is bracketed where it happened.
fn verdict_line(traffic: &Traffic, trial: &Trial, color: Color) -> String {
    let verdict = trial.verdict();
    if !trial.over() {
        return format!("{:LABEL$}{}", "", color.faint(&verdict));
    }
    let column = |at: u64| {
        let slot = traffic.slot_of(at);
        LABEL + slot + slot / SLOTS
    };
    let (from, to) = (column(trial.worst.first), column(trial.worst.last));
    let bracket = match to - from {
        0 => "┴".to_owned(),
        between => format!("└{}┘", "─".repeat(between - 1)),
    };
    let length = verdict.chars().count();
    if to + 2 + length > WIDTH && length < from {
        let room = from - 1;
        return color.over(&format!("{verdict:>room$} {bracket}"));
    }
    color.over(&format!("{:from$}{bracket} {verdict}", ""))
}

fn name(text: &str, color: Color) -> String {
    color.title(&format!("{text:LABEL$}"))
}

/// A long name breaks where its second half can stand alone.
fn label(name: &str) -> (&str, &str) {
    match name.find("_from_") {
        Some(at) if name.len() >= LABEL => name.split_at(at),
        _ => (name, ""),
    }
}

/// Exact up to a million, then three digits: the columns are narrow.
pub(crate) fn short(units: u64) -> String {
    match units {
        0..1_000_000 => units.to_string(),
        1_000_000..1_000_000_000 => format!("{}.{}M", units / 1_000_000, units / 100_000 % 10),
        _ => format!("{}.{}G", units / 1_000_000_000, units / 100_000_000 % 10),
    }
}
