//! Repeated measurements and the Markdown they become.

use std::fmt::Write as _;

/// What one contender got in one column, round by round; `None` where it was not asked.
#[derive(Clone, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    pub fn median(&self) -> Option<f64> {
        median(&self.0)
    }

    /// The median of the ratios within a round: what slows the whole machine for a while slows both.
    pub fn ratio_to(&self, other: &Self) -> Option<f64> {
        let ratios: Vec<f64> = self.0.iter().zip(&other.0).map(|(ours, theirs)| ours / theirs).collect();
        median(&ratios)
    }

    /// `median [least–most]`.
    pub fn spread(&self, decimals: usize) -> String {
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.0.iter().copied().fold(0.0, f64::max);
        match self.median() {
            None => "–".to_owned(),
            Some(middle) => format!("{middle:.decimals$} [{least:.decimals$}–{most:.decimals$}]"),
        }
    }
}

fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// `0.73×`, or a dash.
pub fn times(ratio: Option<f64>) -> String {
    ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}×"))
}

/// A Markdown table with its columns lined up.
pub fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].chars().count(), 3]).max().unwrap_or(3)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::from("|");
        for (cell, width) in cells.zip(&widths) {
            let _ = write!(line, " {cell:<width$} |");
        }
        line + "\n"
    };
    let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let mut text = line(&mut header.iter().copied());
    text += &line(&mut rules.iter().map(String::as_str));
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}
