//! Where the text comes from: a file, or the visible YAML files of a folder.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::finding::{Findings, Place, Report};
use crate::node::MAX_BYTES;

/// Reads a file, or every `*.yaml` and `*.yml` of a folder in the order of their names: pairs of name and text.
///
/// Folders are not searched further down. Names that start with a `.` are passed over and links followed, so that the
/// folder of a Kubernetes ConfigMap, with its `..data`, is read as what it looks like.
pub fn read(path: &Path) -> Result<Vec<(String, String)>, Findings> {
    let findings = Report::default();
    let at = |path: &Path| Place::start_of(&path.display().to_string());
    let unreadable = |path: &Path, error: io::Error| {
        findings.error(&at(path), format!("cannot be read: {error}"));
    };
    let mut texts = Vec::new();
    match files_of(path) {
        Err(error) => unreadable(path, error),
        Ok(files) if files.is_empty() => {
            findings.error(&at(path), "there is no *.yaml or *.yml file in this folder");
        }
        Ok(files) => {
            for file in files {
                match text_of(&file) {
                    Ok(text) => texts.push((file.display().to_string(), text)),
                    Err(error) => unreadable(&file, error),
                }
            }
        }
    }
    findings.settle().map(|_| texts)
}

fn files_of(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let yaml = matches!(file.extension().and_then(OsStr::to_str), Some("yaml" | "yml"));
        // A link that leads nowhere is kept: reading it says so.
        if !hidden && yaml && !file.is_dir() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn text_of(file: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(file)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MiB; split it"));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}
