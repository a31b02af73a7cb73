//! What is wrong with a file, where, and how to fix it.

use std::cell::{RefCell, RefMut};
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

tallygate::words::words! {
    /// How bad a finding is.
    #[derive(Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Severity, "severity" {
        /// The file is refused.
        Error = "error",
        /// The file is accepted, but is probably not what was meant.
        Warning = "warning",
    }
}

/// One error or warning.
///
/// Displayed on one line, `file:line:column: error: message; help`. The alternate form, `{:#}`, puts the help on a line
/// of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The file it is about.
    pub file: String,
    /// The line, counted from 1; 0 if it is about the file as a whole.
    pub line: u32,
    /// The character in the line, counted from 1; 0 if it is about the file as a whole.
    pub column: u32,
    /// What is wrong, in one line.
    pub message: String,
    /// How to fix it.
    pub help: Option<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, file, line, column, message, help } = self;
        write_place(f, file, *line, *column)?;
        write!(f, ": {severity}: {message}")?;
        match help {
            Some(help) if f.alternate() => write!(f, "\n  help: {help}"),
            Some(help) => write!(f, "; {help}"),
            None => Ok(()),
        }
    }
}

/// All findings. Returned as an error, at least one of them is an error.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Findings(Vec<Finding>);

impl Findings {
    /// All of them, in the order of files and lines.
    pub fn as_slice(&self) -> &[Finding] {
        &self.0
    }

    /// Those that refuse a file.
    pub fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.0.iter().filter(|finding| finding.severity == Severity::Error)
    }
}

/// The findings so far, shared by all readers.
#[derive(Debug, Default)]
pub(crate) struct Report(RefCell<Vec<Finding>>);

impl Report {
    pub fn error(&self, at: &Place, message: impl Into<String>) -> RefMut<'_, Finding> {
        self.add(Severity::Error, at, &message.into())
    }

    pub fn warn(&self, at: &Place, message: impl Into<String>) -> RefMut<'_, Finding> {
        self.add(Severity::Warning, at, &message.into())
    }

    /// How many errors there are.
    pub fn errors(&self) -> usize {
        self.0.borrow().iter().filter(|finding| finding.severity == Severity::Error).count()
    }

    fn add(&self, severity: Severity, at: &Place, message: &str) -> RefMut<'_, Finding> {
        let mut all = self.0.borrow_mut();
        all.push(at.finding(severity, message));
        RefMut::map(all, |all| all.last_mut().expect("one was just pushed"))
    }

    /// Warnings if there is no error, else everything; those of a file in the order of their places.
    pub fn settle(self) -> Result<Vec<Finding>, Findings> {
        let mut all = Findings(self.0.into_inner());
        for of_file in all.0.chunk_by_mut(|one, next| one.file == next.file) {
            of_file.sort_by_key(|finding| (finding.line, finding.column));
        }
        if all.errors().next().is_none() { Ok(all.0) } else { Err(all) }
    }
}

impl Finding {
    pub(crate) fn help(&mut self, help: impl Into<String>) {
        self.help = Some(visible(&help.into()));
    }
}

impl IntoIterator for Findings {
    type Item = Finding;
    type IntoIter = std::vec::IntoIter<Finding>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written: Vec<String> = self.0.iter().map(Finding::to_string).collect();
        f.write_str(&written.join("\n"))
    }
}

impl std::error::Error for Findings {}

/// A place in a file. Lines and columns count from 1; both are 0 for the file as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub file: Arc<str>,
    pub line: u32,
    pub column: u32,
}

impl Place {
    /// The first character.
    pub fn start_of(file: &str) -> Self {
        Self { file: file.into(), line: 1, column: 1 }
    }

    /// The file as a whole, for files that were not read.
    pub fn whole(file: &str) -> Self {
        Self { file: file.into(), line: 0, column: 0 }
    }

    pub fn finding(&self, severity: Severity, message: &str) -> Finding {
        let (file, line, column) = (self.file.to_string(), self.line, self.column);
        Finding { severity, file, line, column, message: visible(message), help: None }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_place(f, &self.file, self.line, self.column)
    }
}

fn write_place(f: &mut fmt::Formatter<'_>, file: &str, line: u32, column: u32) -> fmt::Result {
    match line {
        0 => f.write_str(file),
        _ => write!(f, "{file}:{line}:{column}"),
    }
}

/// Escapes what does not print as itself: text from a file must not break the line or drive a terminal. Quotes and
/// backslashes stay as they are.
fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            ' '..='~' => shown.push(c),
            _ => shown.extend(c.escape_debug()),
        }
    }
    shown
}
