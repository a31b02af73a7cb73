//! Policy files as they are named on the command line: files, folders, or `-` for standard input.

use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tallygate_config::{Config, Finding, Findings};
use tallygate_http::sanitize;
use tallygate_redis::{AnyStore, StoreUrl};

/// What means standard input, and its name in findings.
const STDIN: (&str, &str) = ("-", "(stdin)");
/// One more than what is accepted, so that more is noticed.
const MAX_STDIN: u64 = (1 << 20) + 1;

/// Files that cannot be used, and why: one line for each finding.
#[derive(Debug)]
pub(crate) struct Unusable {
    what: &'static str,
    findings: Vec<Finding>,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        self.findings.iter().try_for_each(|finding| write!(f, "\n{}", text(finding)))
    }
}

impl std::error::Error for Unusable {}

/// A finding as compilers write it: `file:line:column: error: message`, with its help on the next line.
pub(crate) fn text(finding: &Finding) -> String {
    // Text from a file, or its name, must not start a line of its own.
    let Finding { file, message, help, .. } = finding;
    let (file, message, help) = (sanitize::text(file), sanitize::text(message), help.as_deref().map(sanitize::text));
    format!("{:#}", Finding { file, message, help, ..*finding })
}

/// Pairs of name and text, which together make one configuration.
pub(crate) fn read(paths: &[PathBuf]) -> anyhow::Result<Vec<(String, String)>> {
    let (mut texts, mut findings) = (Vec::new(), Vec::new());
    if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
        bail!("`-` is standard input, which can only be read once: name it once");
    }
    for path in paths {
        if is_stdin(path) {
            let mut text = String::new();
            let read = io::stdin().lock().take(MAX_STDIN).read_to_string(&mut text);
            read.context("standard input cannot be read")?;
            texts.push((STDIN.1.to_owned(), text));
            continue;
        }
        match tallygate_config::read(path) {
            Ok(read) => texts.extend(read),
            Err(unread) => findings.extend(unread),
        }
    }
    if !findings.is_empty() {
        return Err(Unusable { what: "the configuration cannot be read:", findings }.into());
    }
    Ok(texts)
}

/// Warnings for the files that [`read`] skips.
pub(crate) fn skipped(paths: &[PathBuf]) -> Vec<Finding> {
    paths.iter().filter(|path| !is_stdin(path)).flat_map(|path| tallygate_config::skipped(path)).collect()
}

/// What is wrong with the store of the files, if it cannot be used.
pub(crate) fn invalid_store(config: &Config) -> Option<Finding> {
    let store = config.store.as_deref().filter(|store| store.trim() != AnyStore::MEMORY)?;
    let error = store.parse::<StoreUrl>().err()?;
    Some(config.invalid_store(&format!("`store`: {error}")))
}

/// Files that cannot be used for this reason.
pub(crate) fn unusable(finding: Finding) -> anyhow::Error {
    Unusable { what: "the configuration is refused:", findings: vec![finding] }.into()
}

/// The configuration at `path`, for commands that need a valid one.
pub(crate) fn load(path: &Path) -> anyhow::Result<Config> {
    let texts = read(&[path.to_owned()])?;
    Config::from_texts(&texts).map_err(|findings: Findings| {
        Unusable { what: "the configuration is refused:", findings: findings.into_iter().collect() }.into()
    })
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == STDIN.0
}
