//! The picture: a row of bars for the offered calls and one for each algorithm, on one time axis.

use std::io::{self, Write};
use std::time::Duration;

use super::traffic::{SLOTS, Traffic, WINDOWS};
use super::trial::Trial;
use crate::color::Color;
use crate::duration;

/// Lower blocks of one to eight eighths.
const BLOCKS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
const EIGHTHS: u64 = 8;

const LABEL: usize = 17;
const ADMITTED: usize = 9;
const WORST: usize = 10;
const WIDTH: usize = 80;

pub(crate) fn draw(out: &mut impl Write, traffic: &Traffic, trials: &[Trial], color: Color) -> io::Result<()> {
    let offered = traffic.per_slot(&traffic.calls);
    let window = Duration::from_micros(traffic.window);
    let key =
        format!("{} admitted  {} refused  {} a window begins", color.good("█"), color.refused("░"), color.faint("│"));
    let rest = WINDOWS * (SLOTS + 1) - 1 - "# admitted  # refused  # a window begins".len();
    let worst = format!("peak/{}", duration::render(window).replace(' ', ""));
    writeln!(out, "{:LABEL$}{key}{:rest$}{:>ADMITTED$}{worst:>WORST$}\n", "", "", "admitted")?;

    let total = format!("of {}", short(traffic.calls.len() as u64 * traffic.cost));
    let [top, bottom] = rows(&offered, &offered, color, Color::offered);
    writeln!(out, "{}{top}{total:>ADMITTED$}", name("offered", color))?;
    writeln!(out, "{:LABEL$}{bottom}", "")?;
    writeln!(out, "{:LABEL$}{}\n", "", color.faint(&axis(window)))?;

    for trial in trials {
        let (first_label, second_label) = label(trial.limit.algorithm().name());
        let worst = format!("{:>WORST$}", short(trial.worst.admitted));
        let worst = if trial.over() { color.over(&worst) } else { worst };
        let [top, bottom] = rows(&traffic.per_slot(&trial.admitted), &offered, color, Color::good);
        writeln!(out, "{}{top}{:>ADMITTED$}{worst}", name(first_label, color), short(trial.units))?;
        writeln!(out, "{}{bottom}", name(second_label, color))?;
        writeln!(out, "{}", verdict_line(traffic, trial, color))?;
    }
    Ok(())
}

/// Two lines of bars, the upper first: admitted calls solid, refused ones shaded.
fn rows(solid: &[u64], whole: &[u64], color: Color, solid_paint: fn(Color, &str) -> String) -> [String; 2] {
    let peak = whole.iter().copied().max().unwrap_or(1).max(1);
    let height = |count: u64| (count * 2 * EIGHTHS).div_ceil(peak);
    [EIGHTHS, 0].map(|below| {
        let part = |count: u64| height(count).saturating_sub(below).min(EIGHTHS);
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
    })
}

fn axis(window: Duration) -> String {
    let begins = (0_u32..).take(WINDOWS).map(|number| match number {
        0 => "0".to_owned(),
        _ => duration::render(window * number),
    });
    // Below the mark of its boundary, which is before the window's first column.
    let mut line = String::new();
    for (number, begin) in begins.enumerate() {
        let column = (number * (SLOTS + 1)).saturating_sub(1);
        if line.chars().count() < column || number == 0 {
            line = format!("{line:column$}{begin}");
        }
    }
    line
}

/// The verdict on a trial, with a bracket where it exceeded the limit.
fn verdict_line(traffic: &Traffic, trial: &Trial, color: Color) -> String {
    let verdict = trial.verdict();
    if !trial.over() {
        return format!("{:LABEL$}{}", "", color.faint(&verdict));
    }
    let column = |at: u64| {
        let slot = traffic.slot_of(at);
        LABEL + slot + slot / SLOTS
    };
    let (from, to) = (column(trial.worst.from.as_micros()), column(trial.worst.to.as_micros()));
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

/// A long name is split into two lines.
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
