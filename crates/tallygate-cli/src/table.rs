//! Rows under headings, and numbers that can be read at a glance.

use std::io::{self, Write};

use crate::color::Color;

/// Columns that are as wide as they need to be. Numbers stand to the right, words to the left.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<Cell>>,
    /// Below which row, and what.
    notes: Vec<(usize, String)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    right: bool,
    tone: fn(Color, &str) -> String,
}

impl Cell {
    pub(crate) fn word(text: impl Into<String>) -> Self {
        Self { text: text.into(), right: false, tone: Color::plain }
    }

    pub(crate) fn number(number: u64) -> Self {
        Self::figure(thousands(number))
    }

    /// A number that is not one to a program: `50/50`, `1.2 MiB`.
    pub(crate) fn figure(text: impl Into<String>) -> Self {
        Self { text: text.into(), right: true, tone: Color::plain }
    }

    /// A number that should be zero.
    pub(crate) fn fault(number: u64) -> Self {
        Self::number(number).good_if(number == 0)
    }

    pub(crate) fn good_if(self, good: bool) -> Self {
        let tone = match (good, self.right) {
            // A zero among numbers needs no colour.
            (true, true) => Color::plain,
            (true, false) => Color::good,
            (false, _) => Color::bad,
        };
        Self { tone, ..self }
    }

    fn heading(text: &str, right: bool) -> Self {
        Self { text: text.to_owned(), right, tone: Color::faint }
    }

    fn colored(&self, width: usize, last: bool, color: Color) -> String {
        let padding = " ".repeat(width - self.text.chars().count());
        let text = (self.tone)(color, &self.text);
        match (self.right, last) {
            (true, _) => padding + &text,
            (false, true) => text,
            (false, false) => text + &padding,
        }
    }
}

impl Table {
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// A line below the last row, as long as it likes.
    pub(crate) fn note(&mut self, text: &str) {
        self.notes.push((self.rows.len(), text.to_owned()));
    }

    /// With a heading above each column, and an empty line at the end; the first row tells on which side headings stand.
    pub(crate) fn write(&self, out: &mut impl Write, headings: &[&str], color: Color) -> io::Result<()> {
        let Some(first) = self.rows.first() else { return Ok(()) };
        let headings = headings.iter().zip(first).map(|(text, cell)| Cell::heading(text, cell.right)).collect();
        let rows: Vec<&Vec<Cell>> = std::iter::once(&headings).chain(&self.rows).collect();
        let width =
            |column: usize| rows.iter().map(|row| row.get(column).map_or(0, |cell| cell.text.chars().count())).max();
        let widths: Vec<usize> = (0..headings.len()).map(|column| width(column).unwrap_or(0)).collect();
        for (number, row) in rows.into_iter().enumerate() {
            let colored = row.iter().zip(&widths).enumerate();
            let colored: Vec<String> =
                colored.map(|(column, (cell, &width))| cell.colored(width, column + 1 == row.len(), color)).collect();
            writeln!(out, "{}", colored.join("  "))?;
            for (_, note) in self.notes.iter().filter(|(below, _)| *below == number) {
                writeln!(out, "{}", color.faint(note))?;
            }
        }
        writeln!(out)
    }
}

/// `1234567` as `1,234,567`.
pub(crate) fn thousands(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", thousands(number / 1000), number % 1000),
    }
}

/// `1 key`, `1,234 keys`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", thousands(number), if number == 1 { "" } else { "s" })
}

/// Bytes in the unit that leaves one to three digits before the point.
#[expect(clippy::cast_precision_loss, reason = "shown with one digit after the point")]
pub(crate) fn bytes(bytes: u64) -> String {
    let (mut size, mut unit) = (bytes as f64 / 1024.0, "KiB");
    for larger in ["MiB", "GiB", "TiB"] {
        if size >= 1000.0 {
            (size, unit) = (size / 1024.0, larger);
        }
    }
    if bytes < 1000 { format!("{bytes} B") } else { format!("{size:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_sized() {
        assert_eq!(
            ["0", "999", "1,000", "12,345,678"],
            [0, 999, 1000, 12_345_678].map(thousands).each_ref().map(String::as_str)
        );
        assert_eq!(
            ["0 B", "999 B", "1.0 KiB", "1.0 MiB"],
            [0, 999, 1000, 1_024_000].map(bytes).each_ref().map(String::as_str)
        );
        assert_eq!((count(1, "key"), count(0, "key")), ("1 key".to_owned(), "0 keys".to_owned()));
    }
}
