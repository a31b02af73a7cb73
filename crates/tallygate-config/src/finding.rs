//! What is wrong with a file, where, and what to do about it.

use std::cell::{RefCell, RefMut};
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

tallygate::words! {
    /// How bad a finding is.
    #[derive(Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Severity, "severity" {
        /// The file is refused.
        Error = "error",
        /// The file is taken; somebody should look.
        Warning = "warning",
    }
}

/// One thing that is wrong, or worth a look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The file it is about.
    pub file: String,
    /// The line, counted from 1.
    pub line: u32,
    /// The character in the line, counted from 1.
    pub column: u32,
    /// What is wrong, in one line.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, file, line, column, message, help } = self;
        write!(f, "{file}:{line}:{column}: {severity}: {message}")?;
        match help {
            Some(help) => write!(f, "\n  help: {help}"),
            None => Ok(()),
        }
    }
}

/// Everything that was found: at least one error, if it is returned as one.
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

/// The findings so far: shared by all who read, so that nobody has to hand them on.
#[derive(Debug, Default)]
pub(crate) struct Report(RefCell<Vec<Finding>>);

impl Report {
    pub fn error(&self, at: &Place, message: impl Into<String>) -> RefMut<'_, Finding> {
        self.add(Severity::Error, at, message.into())
    }

    pub fn warn(&self, at: &Place, message: impl Into<String>) -> RefMut<'_, Finding> {
        self.add(Severity::Warning, at, message.into())
    }

    fn add(&self, severity: Severity, at: &Place, message: String) -> RefMut<'_, Finding> {
        // A finding is one line: what a file says must not break it, or drive a terminal.
        let message = message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let (file, line, column) = (at.file.to_string(), at.line, at.column);
        let mut all = self.0.borrow_mut();
        all.push(Finding { severity, file, line, column, message, help: None });
        RefMut::map(all, |all| all.last_mut().expect("one was just pushed"))
    }

    /// Warnings if nothing is an error, else everything; those of a file in the order of their places.
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
        self.help = Some(help.into());
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

/// A place in a file; lines and columns count from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub file: Arc<str>,
    pub line: u32,
    pub column: u32,
}

impl Place {
    /// For what is wrong with the file as a whole.
    pub fn start_of(file: &str) -> Self {
        Self { file: file.into(), line: 1, column: 1 }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}
