//! The text files of the repository.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::run;

/// Built, fetched, git's own, or what a fuzzer wrote.
const SKIPPED: [&str; 3] = ["target", ".git", "corpus"];

/// A file, by its path from the root, with forward slashes.
#[derive(Debug)]
pub struct TextFile {
    pub path: String,
    pub text: String,
}

impl TextFile {
    pub fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|own| own == extension)
    }

    /// Whether it is at `crates/<any>/<folder>/…`.
    pub fn in_crate_folder(&self, folder: &str) -> bool {
        let mut parts = self.path.split('/');
        parts.next() == Some("crates") && parts.nth(1) == Some(folder)
    }
}

/// Untracked files too: they are about to be committed.
pub fn all() -> Result<Vec<TextFile>> {
    below(&run::root())
}

/// The text files of a folder, by their path from there.
pub fn below(folder: &Path) -> Result<Vec<TextFile>> {
    let mut files = Vec::new();
    collect(folder, "", &mut files)?;
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(files)
}

fn collect(folder: &Path, prefix: &str, files: &mut Vec<TextFile>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        let kind = entry.file_type()?;
        // In a worktree `.git` is a file.
        if SKIPPED.contains(&name.as_str()) {
            continue;
        }
        if kind.is_dir() {
            collect(&entry.path(), &format!("{path}/"), files)?;
        } else if kind.is_file() {
            let bytes = fs::read(entry.path()).with_context(|| path.clone())?;
            // Binary files are skipped.
            if let Ok(text) = String::from_utf8(bytes) {
                files.push(TextFile { path, text });
            }
        }
    }
    Ok(())
}
