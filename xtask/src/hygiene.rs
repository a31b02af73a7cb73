//! Dependencies, by cargo-deny, and what no other tool checks: words, sizes, links, code blocks of the guides.

mod dependencies;
mod fences;
pub mod files;
mod links;
mod phrases;
mod promises;
mod text;

use anyhow::{Result, bail};

/// What was found. Only `failures` make the check fail.
#[derive(Debug, Default)]
pub struct Findings {
    failures: Vec<String>,
    warnings: Vec<String>,
}

impl Findings {
    fn fail(&mut self, finding: String) {
        self.failures.push(finding);
    }

    fn warn(&mut self, finding: String) {
        self.warnings.push(finding);
    }
}

/// Reports every finding, not only the first.
pub fn run() -> Result<()> {
    eprintln!("\n$ hygiene");
    let mut findings = Findings::default();
    dependencies::check(&mut findings)?;
    let files = files::all()?;
    for file in &files {
        text::check(file, &mut findings);
        links::check(file, &mut findings);
        phrases::check(file, &mut findings);
    }
    fences::check(&files, &mut findings);
    promises::check(&files, &mut findings);
    for warning in &findings.warnings {
        eprintln!("hygiene: warning: {warning}");
    }
    for failure in &findings.failures {
        eprintln!("hygiene: {failure}");
    }
    match findings.failures.len() {
        0 => {
            eprintln!("hygiene: {} files, clean", files.len());
            Ok(())
        }
        count => bail!("{count} findings"),
    }
}
