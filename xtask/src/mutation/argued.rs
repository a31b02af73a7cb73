//! Survivors that no test can notice, each with the reason.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::Change;
use crate::run;

#[derive(Debug)]
pub struct Argued {
    pub file: String,
    pub before: String,
    pub after: String,
}

impl Argued {
    pub(super) fn is_of(&self, change: &Change) -> bool {
        (&self.file, &self.before, &self.after) == (&change.file, &change.before, &change.after)
    }
}

pub fn path(language: &str) -> PathBuf {
    run::root().join("xtask/mutants").join(language).with_extension("txt")
}

/// `file:` holds for all that follow. A mutant is a line with `-`, what it was, one with `+`, what it became, and one that
/// begins with `because`. Several mutants may share a reason: then only the last has it. `#` begins a comment.
pub fn read(language: &str) -> Result<Vec<Argued>> {
    let path = path(language);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let (mut file, mut before, mut reasoned, mut all) = (String::new(), String::new(), true, Vec::new());
    for (line, number) in text.lines().zip(1..) {
        match line.split_once(' ') {
            Some(("file:", name)) => name.clone_into(&mut file),
            Some(("-", text)) => text.clone_into(&mut before),
            Some(("+", text)) => {
                all.push(Argued { file: file.clone(), before: before.clone(), after: text.to_owned() });
                reasoned = false;
            }
            Some(("because", _)) => reasoned = true,
            _ if line.is_empty() || line.starts_with('#') => {}
            _ => bail!("{}:{number}: unknown line `{line}`", path.display()),
        }
    }
    if !reasoned {
        bail!("{}: the last mutant has no reason", path.display());
    }
    Ok(all)
}
