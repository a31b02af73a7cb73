//! The Rust code of the last commit, mutated by cargo-mutants, one file after the other.
//!
//! In a work tree that is kept, so that each mutant compiles only what it changes.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Change, Verdict, report};
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
/// Seconds for the tests of one mutant, on a slow machine.
const LONGEST: &str = "300";

/// `[--report] [file] …`; files by a part of their paths. `--report` only prints what is known.
pub fn run(args: &[String]) -> Result<()> {
    let (options, names): (Vec<&str>, Vec<&str>) =
        args.iter().map(String::as_str).partition(|word| word.starts_with("--"));
    if let Some(unknown) = options.iter().find(|word| **word != "--report") {
        bail!("unknown option `{unknown}`: expected --report");
    }
    let listed = |file: &&str| names.is_empty() || names.iter().any(|name| file.contains(name));
    let files: Vec<&str> = FILES.into_iter().filter(listed).collect();
    if files.is_empty() {
        bail!("no file has this name: see FILES in xtask/src/mutation/rust.rs");
    }
    if !options.contains(&"--report") {
        let ready = setup::run()?;
        tree::check_out(&tree_path())?;
        for file in &files {
            judge(&ready, file)?;
        }
    }
    let mut judged = Vec::new();
    let mut pending = 0;
    for file in files {
        let verdicts = read_verdicts(&folder(file).join("mutants.out"))?;
        for (name, change) in mutants(file)? {
            match verdicts.get(&name) {
                Some(verdict) => judged.push((change, *verdict)),
                None => pending += 1,
            }
        }
    }
    if pending > 0 {
        println!("xtask mutation: {pending} mutants are not judged yet; run it again to go on");
    }
    report("rust", &judged)
}

fn mutants_command() -> Result<Command> {
    let mut command = run::cargo(&["mutants"]);
    for tool in ["cargo-mutants", "cargo-nextest"] {
        let found = Command::new(tool).arg("--version").output();
        found.with_context(|| format!("{tool} is needed: cargo install {tool} --locked"))?;
    }
    command.env_remove("RUSTFLAGS");
    Ok(command)
}

fn folder(file: &str) -> PathBuf {
    let name = file.trim_start_matches("crates/").replace(['/', '.'], "-");
    run::target().join("mutation/rust").join(name)
}

fn tree_path() -> PathBuf {
    run::target().join("mutation/tree")
}

fn package(file: &str) -> &str {
    file.split('/').nth(1).unwrap_or_default()
}

/// Goes on where an earlier run was stopped.
fn judge(ready: &setup::Ready, file: &str) -> Result<()> {
    fs::create_dir_all(folder(file))?;
    let mut command = mutants_command()?;
    command.args(["--package", package(file), "--file", file, "--iterate", "--timeout", LONGEST]);
    command.args(["--build-timeout", LONGEST, "--no-shuffle", "--in-place", "--output"]).arg(folder(file));
    // nextest stops at the first test that fails. Compiling the crate takes longer than running its tests unoptimised.
    let unoptimised = format!("--config=profile.dev.package.{}.opt-level=0", package(file));
    command.args(["--test-tool", "nextest", "--cargo-arg"]).arg(unoptimised);
    command.current_dir(tree_path()).env("CARGO_TARGET_DIR", run::target().join("mutation/rust-build"));
    command.args(["--", "--lib", "--test", "tests"]);
    ready.apply(&mut command);
    let program = run::announce(&command);
    let status = command.status().with_context(|| format!("cannot run `{program}`"))?;
    // 2: some were missed, 3: some timed out. That is for the report.
    if matches!(status.code(), Some(0 | 2 | 3)) { Ok(()) } else { run::check(program, status) }
}

/// Every mutant of a file, by its name.
fn mutants(file: &str) -> Result<Vec<(String, Change)>> {
    let mut command = mutants_command()?;
    let output = run::output(command.args(["--list", "--json", "--package", package(file), "--file", file]))?;
    let source = fs::read_to_string(run::root().join(file))?;
    let listed: Vec<Value> = serde_json::from_str(&output)?;
    listed.iter().map(|mutant| Ok((name(mutant)?, change(file, &source, mutant)?))).collect()
}

fn name(mutant: &Value) -> Result<String> {
    Ok(mutant["name"].as_str().context("a mutant without a name")?.to_owned())
}

fn change(file: &str, source: &str, mutant: &Value) -> Result<Change> {
    let place = |end: &str, axis: &str| -> Result<usize> {
        let number = mutant["span"][end][axis].as_u64().context("a mutant without a span")?;
        Ok(usize::try_from(number)?)
    };
    let (line, last) = (place("start", "line")?, place("end", "line")?);
    let text = source.lines().nth(line - 1).context("a span outside of its file")?;
    let after = if line == last {
        // Columns are counted in characters, from one.
        let column = |end: &str| -> Result<usize> {
            let column = place(end, "column")? - 1;
            Ok(text.char_indices().nth(column).map_or(text.len(), |(at, _)| at))
        };
        let replacement = mutant["replacement"].as_str().unwrap_or_default();
        format!("{}{replacement}{}", &text[..column("start")?], &text[column("end")?..])
    } else {
        let name = name(mutant)?;
        name.rsplit_once(": ").map_or(name.clone(), |(_, what)| what.to_owned())
    };
    Ok(Change { file: file.to_owned(), line, before: text.trim().to_owned(), after: after.trim().to_owned() })
}

/// By name. What was caught by an earlier run is only listed.
fn read_verdicts(folder: &Path) -> Result<HashMap<String, Verdict>> {
    let mut verdicts = HashMap::new();
    for (list, verdict) in [
        ("previously_caught.txt", Verdict::Killed),
        ("caught.txt", Verdict::Killed),
        ("unviable.txt", Verdict::Unviable),
        ("timeout.txt", Verdict::TimedOut),
        ("missed.txt", Verdict::Survived),
    ] {
        let path = folder.join(list);
        let text = if path.exists() { fs::read_to_string(path)? } else { String::new() };
        verdicts.extend(text.lines().map(|name| (name.to_owned(), verdict)));
    }
    Ok(verdicts)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::argued;
    use super::*;

    #[test]
    fn every_argued_mutant_has_its_line_in_the_code() {
        for file in FILES {
            assert!(run::root().join(file).is_file(), "{file}");
        }
        for one in argued::read("rust").unwrap() {
            let source = fs::read_to_string(run::root().join(&one.file)).unwrap();
            let lines: HashSet<&str> = source.lines().map(str::trim).collect();
            assert!(lines.contains(one.before.as_str()), "the code has no such line any more: {one:?}");
        }
    }
}
