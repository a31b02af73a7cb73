//! The Rust code of the last commit, mutated as cargo-mutants proposes, one file after the other.
//!
//! In work trees that are kept, so that each mutant compiles only what it changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::judge::{self, Memory};
use super::{Mutant, Verdict, report};
use crate::{run, setup, tree};

/// What decides, the most important first.
const FILES: [&str; 24] = [
    "crates/tallygate/src/algorithm/token_bucket.rs",
    "crates/tallygate/src/algorithm/fixed_window.rs",
    "crates/tallygate/src/algorithm/sliding_window.rs",
    "crates/tallygate/src/algorithm/sliding_counter.rs",
    "crates/tallygate/src/algorithm/sliding_log.rs",
    "crates/tallygate/src/limit/numbers.rs",
    "crates/tallygate/src/call.rs",
    "crates/tallygate/src/store/memory/shard.rs",
    "crates/tallygate/src/store/deny_cache.rs",
    "crates/tallygate/src/policy/on_error.rs",
    "crates/tallygate/src/policy/local.rs",
    "crates/tallygate/src/store/memory.rs",
    "crates/tallygate/src/store/memory/table.rs",
    "crates/tallygate/src/policy/evaluation.rs",
    "crates/tallygate/src/check.rs",
    "crates/tallygate/src/limit.rs",
    "crates/tallygate/src/key.rs",
    "crates/tallygate/src/limit/text.rs",
    "crates/tallygate/src/policy/pattern.rs",
    "crates/tallygate/src/policy/matcher.rs",
    "crates/tallygate-redis/src/connection/failure.rs",
    "crates/tallygate-redis/src/connection/resp.rs",
    "crates/tallygate-redis/src/connection/deadline.rs",
    "crates/tallygate-redis/src/wire.rs",
];
/// Each has a work tree and a target folder of its own.
const JOBS: usize = 2;

/// `[file] …`, by parts of their paths.
pub fn run(args: &[String]) -> Result<()> {
    let listed = |file: &&str| args.is_empty() || args.iter().any(|name| file.contains(name));
    let files: Vec<&str> = FILES.into_iter().filter(listed).collect();
    if files.is_empty() {
        bail!("no file has this name: see FILES in xtask/src/mutation/rust.rs");
    }
    let folder = run::target().join("mutation");
    let memory = Memory::open(folder.join("rust.tsv"))?;
    let judge = Judge { ready: setup::run()?, folder };
    let mut judged = Vec::new();
    for job in 0..JOBS {
        tree::check_out(&judge.tree(job))?;
    }
    for file in files {
        let mutants = mutants(&judge.tree(0), file)?;
        let tests = tests_of(package(file))?;
        if mutants.iter().any(|mutant| memory.of(mutant, &tests).is_none()) {
            judge.baseline(package(file))?;
        }
        judged.extend(judge::all(&mutants, &memory, &tests, JOBS, |mutant, job| judge.one(mutant, job))?);
    }
    report("rust", &judged)
}

fn package(file: &str) -> &str {
    file.split('/').nth(1).unwrap_or_default()
}

/// Changes with the tests of a package.
fn tests_of(package: &str) -> Result<String> {
    let folders = [format!("HEAD:crates/{package}"), "HEAD:crates/tallygate-testkit".to_owned()];
    let trees = run::output(Command::new("git").arg("rev-parse").args(folders).current_dir(run::root()))?;
    Ok(judge::digest(&trees))
}

struct Judge {
    ready: setup::Ready,
    folder: PathBuf,
}

impl Judge {
    fn tree(&self, job: usize) -> PathBuf {
        self.folder.join(format!("tree-{job}"))
    }

    /// The code as it is must pass, else every mutant would count as killed.
    fn baseline(&self, package: &str) -> Result<()> {
        thread::scope(|scope| {
            let jobs: Vec<_> = (0..JOBS).map(|job| scope.spawn(move || self.tests(package, job))).collect();
            for (job, verdict) in jobs.into_iter().enumerate() {
                if verdict.join().expect("no job panics")? != Verdict::Survived {
                    bail!("the tests fail without a mutant: see {}", self.output(job).display());
                }
            }
            Ok(())
        })
    }

    fn one(&self, mutant: &Mutant, job: usize) -> Result<Verdict> {
        let path = self.tree(job).join(&mutant.change.file);
        fs::write(&path, &mutant.mutated)?;
        let verdict = self.tests(package(&mutant.change.file), job);
        fs::write(&path, &mutant.source)?;
        verdict
    }

    fn output(&self, job: usize) -> PathBuf {
        self.folder.join(format!("rust-{job}"))
    }

    /// The quickest first. Only what changed is compiled.
    fn tests(&self, package: &str, job: usize) -> Result<Verdict> {
        let mut build = run::cargo(&["test", "--package", package, "--lib", "--test", "tests", "--no-run"]);
        // Compiling takes longer than the tests.
        build.arg(format!("--config=profile.dev.package.{package}.opt-level=0"));
        build.args(["--config=profile.dev.debug=false", "--message-format=json-render-diagnostics"]);
        build.current_dir(self.tree(job)).env("CARGO_TARGET_DIR", self.folder.join(format!("rust-build-{job}")));
        let built = build.stdin(Stdio::null()).output()?;
        if !built.status.success() {
            return Ok(Verdict::Unviable);
        }
        let found = judge::programs(&String::from_utf8_lossy(&built.stdout))?;
        let unit = judge::program(&found, &package.replace('-', "_"))?;
        let tests = judge::program(&found, "tests")?;
        let stages: [(&Path, &[&str]); 3] = match package {
            "tallygate" => [(&tests, &["model::"]), (&unit, &[]), (&tests, &[])],
            _ => [(&unit, &["--skip", "simulation::"]), (&unit, &["simulation::"]), (&tests, &[])],
        };
        for (program, filters) in stages {
            let mut tests = Command::new(program);
            tests.args(filters).args(["--nocapture", "--test-threads", "2"]);
            tests.current_dir(self.tree(job).join("crates").join(package));
            self.ready.apply(&mut tests);
            let verdict = judge::run_tests(&mut tests, &self.output(job))?;
            if verdict != Verdict::Survived {
                return Ok(verdict);
            }
        }
        Ok(Verdict::Survived)
    }
}

/// Every mutant of a file of the work tree.
fn mutants(tree: &Path, file: &str) -> Result<Vec<Mutant>> {
    let mut list = run::cargo(&["mutants", "--list", "--json", "--package", package(file), "--file", file]);
    let remedy = "cargo-mutants is needed: cargo install cargo-mutants --locked";
    let output = run::output(list.current_dir(tree)).context(remedy)?;
    let source = fs::read_to_string(tree.join(file))?;
    let listed: Vec<Value> = serde_json::from_str(&output)?;
    listed.iter().map(|listed| mutant(file, &source, listed)).collect()
}

fn mutant(file: &str, source: &str, listed: &Value) -> Result<Mutant> {
    let place = |end: &str, axis: &str| -> Result<usize> {
        let number = listed["span"][end][axis].as_u64().context("a mutant without a span")?;
        Ok(usize::try_from(number)? - 1)
    };
    // Lines and columns count from one; columns, in characters.
    let offset = |end: &str| -> Result<usize> {
        let before = source.split_inclusive('\n').take(place(end, "line")?).map(str::len).sum();
        let column = source[before..].char_indices().nth(place(end, "column")?);
        Ok(column.map_or(source.len(), |(at, _)| before + at))
    };
    let replacement = listed["replacement"].as_str().context("a mutant without a replacement")?;
    Ok(Mutant::new(file, source, offset("start")?..offset("end")?, replacement))
}

#[cfg(test)]
mod tests {
    use super::super::{argued, in_one_line};
    use super::*;

    #[test]
    fn every_argued_mutant_has_its_line_in_the_code() {
        for file in FILES {
            assert!(run::root().join(file).is_file(), "{file}");
        }
        for one in argued::read("rust").unwrap() {
            let source = fs::read_to_string(run::root().join(&one.file)).unwrap();
            assert!(in_one_line(&source).contains(&one.before), "the code has no such line any more: {one:?}");
        }
    }
}
