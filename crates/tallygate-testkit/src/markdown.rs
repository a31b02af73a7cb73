//! Tables of a Markdown document, for tests that compare a reference page with the product.

use std::collections::BTreeMap;

/// A table, and the heading that it is under.
#[derive(Debug)]
pub struct Table {
    /// The text of the heading, without its marks.
    pub heading: String,
    /// The cells of the first line.
    pub columns: Vec<String>,
    /// All other lines.
    pub rows: Vec<Row>,
}

/// The cells of a row, by column.
#[derive(Debug, Clone)]
pub struct Row(BTreeMap<String, String>);

impl Row {
    /// The text of a cell.
    pub fn text(&self, column: &str) -> &str {
        self.0.get(column).unwrap_or_else(|| panic!("no column `{column}` in {self:?}"))
    }

    /// The text of a cell, without the marks of code.
    pub fn plain(&self, column: &str) -> String {
        self.text(column).replace('`', "")
    }

    /// What is marked as code in a cell.
    pub fn code(&self, column: &str) -> Vec<&str> {
        self.text(column).split('`').skip(1).step_by(2).collect()
    }
}

/// All tables of a document. A row that does not have the cells of its header is an error.
pub fn tables(document: &str) -> Vec<Table> {
    let (mut found, mut heading, mut in_code, mut in_table) = (Vec::<Table>::new(), "", false, false);
    for line in document.lines() {
        in_code ^= line.trim_start().starts_with("```");
        if in_code {
            continue;
        }
        if line.starts_with('#') {
            heading = line.trim_start_matches('#').trim();
        }
        let Some(cells) = line.strip_prefix('|').and_then(|line| line.trim_end().strip_suffix('|')) else {
            in_table = false;
            continue;
        };
        let cells: Vec<String> = cells.split('|').map(|cell| cell.trim().to_owned()).collect();
        if !std::mem::replace(&mut in_table, true) {
            found.push(Table { heading: heading.to_owned(), columns: cells, rows: Vec::new() });
            continue;
        }
        let table = found.last_mut().expect("a row follows its header");
        assert_eq!(cells.len(), table.columns.len(), "this row does not have the columns {:?}: {line}", table.columns);
        if !cells.iter().all(|cell| cell.trim_matches(['-', ':']).is_empty()) {
            table.rows.push(Row(table.columns.iter().cloned().zip(cells).collect()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_with_their_headings() {
        let page =
            "# A\n\n| x | y |\n|---|---|\n| `a`, `b` | c `d` |\n\ntext\n```text\n| no |\n```\n## B\n| z |\n|---|\n";
        let [first, second] = tables(page).try_into().unwrap();
        assert_eq!((first.heading.as_str(), first.rows.len()), ("A", 1));
        assert_eq!((first.rows[0].code("x"), first.rows[0].plain("y")), (vec!["a", "b"], "c d".to_owned()));
        assert_eq!((second.heading.as_str(), second.columns, second.rows.len()), ("B", vec!["z".to_owned()], 0));
    }

    #[test]
    #[should_panic(expected = "does not have the columns")]
    fn a_row_with_a_cell_too_many_is_an_error() {
        tables("| x |\n|---|\n| a | b |\n");
    }
}
