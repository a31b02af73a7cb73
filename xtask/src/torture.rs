//! Random faults on real servers, and the mutants that they must find.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{run, setup, tree};

/// Arguments go to the harness; `--mutants` breaks the product in known ways instead, and `--mutants NAME` in one.
pub fn run(args: &[String]) -> Result<()> {
    let ready = setup::run()?;
    if args.first().is_some_and(|word| word == "--mutants") {
        return mutants(&ready, args.get(1).map(String::as_str));
    }
    let (profile, args): (Vec<&String>, Vec<&String>) = args.iter().partition(|word| *word == "--release");
    let mut build = run::cargo(&["build", "-p", "tallygate-cli", "-p", "tallygate-torture"]);
    run::run(build.args(&profile))?;
    let folder = if profile.is_empty() { "debug" } else { "release" };
    let mut torture = Command::new(run::target().join(folder).join("torture"));
    torture.args(args).current_dir(run::root());
    ready.apply(&mut torture);
    run::run(&mut torture)
}

/// A known fault of the product, put back in a copy of it.
struct Mutant {
    name: String,
    /// Arguments of the harness.
    args: Vec<String>,
    /// What the harness must say.
    expect: String,
    edits: Vec<Edit>,
}

struct Edit {
    file: String,
    find: String,
    replace: String,
}

impl Edit {
    /// The text of the file with the edit.
    fn edited(&self, tree: &Path) -> Result<String> {
        let path = tree.join(&self.file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let count = text.matches(&self.find).count();
        if count != 1 {
            bail!("{} has {count} places with `{}`, expected one: adapt the mutant to the code", self.file, self.find);
        }
        Ok(text.replace(&self.find, &self.replace))
    }

    fn apply(&self, tree: &Path) -> Result<()> {
        Ok(fs::write(tree.join(&self.file), self.edited(tree)?)?)
    }
}

/// Builds each mutant in a work tree of its own, and requires that the harness finds it.
fn mutants(ready: &setup::Ready, only: Option<&str>) -> Result<()> {
    let mut mutants = all_mutants()?;
    mutants.sort_by(|a, b| a.name.cmp(&b.name));
    mutants.retain(|mutant| only.is_none_or(|only| mutant.name.contains(only)));
    if mutants.is_empty() {
        bail!("no mutant has this name: see crates/tallygate-torture/mutants");
    }
    let folder = run::target().join("mutants/tree");
    let mut survived = Vec::new();
    for mutant in &mutants {
        tree::check_out(&folder)?;
        if !is_found(ready, mutant, &folder).with_context(|| format!("mutant {}", mutant.name))? {
            survived.push(mutant.name.as_str());
        }
    }
    tree::remove(&folder)?;
    println!("xtask torture: {} of {} mutants were found", mutants.len() - survived.len(), mutants.len());
    if survived.is_empty() { Ok(()) } else { bail!("not found: {}", survived.join(", ")) }
}

fn all_mutants() -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for file in fs::read_dir(run::root().join("crates/tallygate-torture/mutants"))? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "mutant") {
            mutants.push(read(&path)?);
        }
    }
    Ok(mutants)
}

fn is_found(ready: &setup::Ready, mutant: &Mutant, tree: &Path) -> Result<bool> {
    for edit in &mutant.edits {
        edit.apply(tree)?;
    }
    // A separate target folder, so that the binaries of the real product stay.
    let target: PathBuf = run::target().join("mutants/build");
    let mut build = run::cargo(&["build", "-p", "tallygate-cli", "-p", "tallygate-torture"]);
    run::run(build.current_dir(tree).env("CARGO_TARGET_DIR", &target))?;
    let mut torture = Command::new(target.join("debug/torture"));
    torture
        .args(&mutant.args)
        .args(["--minimise", "0", "--until", &mutant.expect])
        .stdout(Stdio::piped())
        .current_dir(tree);
    ready.apply(&mut torture);
    run::announce(&torture);
    let output = torture.output().context("the harness could not be run")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.lines().find(|line| line.contains(&mutant.expect));
    match found {
        Some(line) => println!("xtask torture: mutant {} found: {}", mutant.name, line.trim()),
        None => println!("xtask torture: mutant {} NOT found:\n{text}", mutant.name),
    }
    Ok(found.is_some())
}

/// `args:` and `expect:` are one line each. An edit is `file:`, and then the lines between `find:`, `replace:` and `end`.
/// Lines that begin with `#` say what it is.
fn read(path: &Path) -> Result<Mutant> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let text = fs::read_to_string(path)?;
    let mut mutant = Mutant { name, args: Vec::new(), expect: String::new(), edits: Vec::new() };
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        match line.split_once(':') {
            Some(("args", rest)) => mutant.args = rest.split_whitespace().map(str::to_owned).collect(),
            Some(("expect", rest)) => rest.trim().clone_into(&mut mutant.expect),
            Some(("file", rest)) => {
                let file = rest.trim().to_owned();
                let mut until =
                    |end: &str| lines.by_ref().take_while(|line| *line != end).collect::<Vec<_>>().join("\n");
                if !until("find:").is_empty() {
                    bail!("{}: `find:` must follow `file:`", path.display());
                }
                let (find, replace) = (until("replace:"), until("end"));
                mutant.edits.push(Edit { file, find, replace });
            }
            _ if line.starts_with('#') || line.is_empty() => {}
            _ => bail!("{}: unknown line `{line}`", path.display()),
        }
    }
    if mutant.args.is_empty() || mutant.expect.is_empty() || mutant.edits.is_empty() {
        bail!("{} needs `args:`, `expect:` and an edit", path.display());
    }
    Ok(mutant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_still_fits_the_code() {
        let mutants = all_mutants().unwrap();
        assert!(!mutants.is_empty());
        for mutant in mutants {
            for edit in &mutant.edits {
                assert!(edit.edited(&run::root()).is_ok(), "{}: {:?}", mutant.name, edit.edited(&run::root()).err());
            }
        }
    }
}
