//! Tables that fit the terminal, and readable numbers.

use std::io::{self, Write};

use crate::color::Color;

/// How wide a table may be.
const WIDTH: usize = 80;

/// Columns as wide as they need to be, numbers aligned right, words left. If a table would be wider than 80 columns, the
/// first cell of each row has a line of its own, and the others are below it.
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

    /// A number with a unit: `50 of 50`, `1.2 MiB`.
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

    fn width(&self) -> usize {
        self.text.chars().count()
    }

    fn colored(&self, width: usize, last: bool, color: Color) -> String {
        let padding = " ".repeat(width.saturating_sub(self.width()));
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

    /// Lines below the last row, indented and wrapped.
    pub(crate) fn note(&mut self, text: &str) {
        self.notes.push((self.rows.len(), wrap(text, "  ")));
    }

    /// Writes the table with a heading above each column, and an empty line at the end. Headings are aligned as the
    /// first row is.
    pub(crate) fn write(&self, out: &mut impl Write, headings: &[&str], color: Color) -> io::Result<()> {
        let Some(first) = self.rows.first() else { return Ok(()) };
        // A column without a value is left out.
        let used = |column: &usize| self.rows.iter().any(|row| row.get(*column).is_some_and(|cell| cell.width() > 0));
        let used: Vec<usize> = (0..headings.len()).filter(used).collect();
        let headings: Vec<Cell> =
            headings.iter().zip(first).map(|(text, cell)| Cell::heading(text, cell.right)).collect();
        let of_used = |row: &Vec<Cell>| used.iter().filter_map(|column| row.get(*column).cloned()).collect();
        let rows: Vec<Vec<Cell>> = std::iter::once(&headings).chain(&self.rows).map(of_used).collect();
        let width = |column: usize| rows.iter().map(|row| row.get(column).map_or(0, Cell::width)).max();
        let widths: Vec<usize> = (0..used.len()).map(|column| width(column).unwrap_or(0)).collect();
        let stacked = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1) > WIDTH;
        for (number, row) in rows.into_iter().enumerate() {
            if stacked {
                write_stacked(out, &row, &widths, color)?;
            } else {
                writeln!(out, "{}", joined(&row, &widths, color))?;
            }
            for (_, note) in self.notes.iter().filter(|(below, _)| *below == number) {
                writeln!(out, "{}", color.faint(note))?;
            }
        }
        writeln!(out)
    }
}

fn joined(row: &[Cell], widths: &[usize], color: Color) -> String {
    let cells = row.iter().zip(widths).enumerate();
    let cells: Vec<String> =
        cells.map(|(column, (cell, &width))| cell.colored(width, column + 1 == row.len(), color)).collect();
    cells.join("  ")
}

fn write_stacked(out: &mut impl Write, row: &[Cell], widths: &[usize], color: Color) -> io::Result<()> {
    let Some((first, rest)) = row.split_first() else { return Ok(()) };
    writeln!(out, "{}", (first.tone)(color, &wrap(&first.text, "")))?;
    match rest {
        // A sentence is wrapped, a line of short cells is not.
        [only] => writeln!(out, "{}", (only.tone)(color, &wrap(&only.text, "  "))),
        _ => writeln!(out, "  {}", joined(rest, &widths[1..], color)),
    }
}

/// Breaks a text between words, so that no line is wider than a terminal; each line begins with `indent`.
pub(crate) fn wrap(text: &str, indent: &str) -> String {
    let mut lines = vec![indent.to_owned()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one at least");
        let empty = line.len() == indent.len();
        if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(format!("{indent}{word}"));
        } else {
            line.push_str(if empty { "" } else { " " });
            line.push_str(word);
        }
    }
    lines.join("\n")
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
    fn a_table_wider_than_a_terminal_is_stacked() {
        let mut table = Table::default();
        table.row(vec![
            Cell::word("n".repeat(60)),
            Cell::word("enforce"),
            Cell::figure("10 of 10"),
            Cell::word("allowed"),
        ]);
        table.note(&"word ".repeat(30));
        let mut written = Vec::new();
        table.write(&mut written, &["policy", "mode", "left", "answer"], Color::for_stdout()).unwrap();
        let written = String::from_utf8(written).unwrap();
        assert!(written.lines().all(|line| line.chars().count() <= WIDTH), "{written}");
        assert!(written.contains("\n  enforce  10 of 10  allowed\n"), "{written}");
        assert!(written.starts_with("policy\n  mode         left  answer\n"), "{written}");
    }

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
