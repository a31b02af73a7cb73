//! Where the text comes from: a file, or the visible YAML files of a folder.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::finding::{Finding, Findings, Place, Report, Severity};
use crate::node::MAX_BYTES;

/// Reads a file, or every `*.yaml` and `*.yml` of a folder in the order of their names: pairs of name and text.
///
/// Subfolders are not searched. Names that start with a `.` are skipped and links followed, so that the folder of a
/// Kubernetes ConfigMap, with its `..data`, is read as what it looks like. See [`skipped`] for what is left out.
pub fn read(path: &Path) -> Result<Vec<(String, String)>, Findings> {
    let findings = Report::default();
    let at = |path: &Path| Place::whole(&path.display().to_string());
    let unreadable = |path: &Path, error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            let mut finding = findings.error(&at(path), "cannot be read: No such file or directory");
            if let Some(near) = neighbour(path) {
                finding.help(format!("did you mean `{near}`?"));
            }
        }
        _ => drop(findings.error(&at(path), format!("cannot be read: {error}"))),
    };
    let mut texts = Vec::new();
    match files_of(path) {
        Err(error) => unreadable(path, error),
        Ok(folder) if folder.files.is_empty() => {
            let mut finding = findings.error(&at(path), "there is no *.yaml or *.yml file in this folder");
            if let Some(below) = folder.others.iter().find(|other| has_files(other)) {
                finding.help(format!("there is one in `{}`: name that folder instead", below.display()));
            }
        }
        Ok(folder) => {
            for file in folder.files {
                match text_of(&file) {
                    Ok(text) => texts.push((file.display().to_string(), text)),
                    Err(error) => unreadable(&file, error),
                }
            }
        }
    }
    findings.settle().map(|_| texts)
}

/// A warning for each file of a folder that [`read`] skips although it may be meant as a policy file: other file names
/// than `*.yaml` and `*.yml`, and subfolders with such files. Hidden files, `*.md` and `*.txt` are not reported.
pub fn skipped(path: &Path) -> Vec<Finding> {
    let others = files_of(path).map(|folder| folder.others).unwrap_or_default();
    let warnings = others.iter().filter_map(|other| {
        let (message, help) = match other.is_dir() {
            true if !has_files(other) => return None,
            true => ("this folder is skipped: subfolders are not searched", "move its files up, or name it as well"),
            false if matches!(extension(other), Some("md" | "txt")) => return None,
            false => ("this file is skipped: only *.yaml and *.yml are read", "rename it, or move it elsewhere"),
        };
        let mut finding = Place::whole(&other.display().to_string()).finding(Severity::Warning, message);
        finding.help(help);
        Some(finding)
    });
    warnings.collect()
}

/// What is visible in a folder, sorted; a file is a folder of one.
#[derive(Default)]
struct Folder {
    files: Vec<PathBuf>,
    /// Other files, and folders.
    others: Vec<PathBuf>,
}

fn files_of(path: &Path) -> io::Result<Folder> {
    let mut folder = Folder::default();
    if !fs::metadata(path)?.is_dir() {
        folder.files.push(path.to_owned());
        return Ok(folder);
    }
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        if file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
            continue;
        }
        // A broken link is kept: reading it reports it.
        let yaml = matches!(extension(&file), Some("yaml" | "yml")) && !file.is_dir();
        if yaml { folder.files.push(file) } else { folder.others.push(file) }
    }
    folder.files.sort();
    folder.others.sort();
    Ok(folder)
}

fn extension(file: &Path) -> Option<&str> {
    file.extension().and_then(OsStr::to_str)
}

fn has_files(path: &Path) -> bool {
    path.is_dir() && files_of(path).is_ok_and(|folder| !folder.files.is_empty())
}

/// A file beside a missing one that was probably meant.
fn neighbour(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let names: Vec<String> =
        fs::read_dir(folder).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let known: Vec<&str> = names.iter().map(String::as_str).filter(|name| !name.starts_with('.')).collect();
    tallygate::words::nearest(name, &known).map(|near| path.with_file_name(near).display().to_string())
}

fn text_of(file: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(file)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MiB; split it"));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}
