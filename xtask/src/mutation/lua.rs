//! Every line of the Lua scripts, mutated.
//!
//! The tests are compiled once. A mutant is a folder with the source before and after, which the test program reads.

mod parse;
mod stages;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::argued::{self, Argued};
use super::judge::{self, Memory, STAGES_OF_ARGUED};
use super::{Edit, Mutant, Verdict, report};
use crate::{run, setup};
use stages::{Stage, stages};

const FOLDER: &str = "crates/tallygate-redis/lua";
const JOBS: usize = 3;

/// `[--fresh] [--list] [file] …`; files by a part of their names.
pub fn run(args: &[String]) -> Result<()> {
    let (options, names): (Vec<&str>, Vec<&str>) =
        args.iter().map(String::as_str).partition(|word| word.starts_with("--"));
    if let Some(unknown) = options.iter().find(|word| !["--fresh", "--list"].contains(word)) {
        bail!("unknown option `{unknown}`: expected --fresh or --list");
    }
    let mut mutants = all()?;
    mutants.retain(|mutant| names.is_empty() || names.iter().any(|name| script(mutant).contains(name)));
    if mutants.is_empty() {
        bail!("no script has this name: see {FOLDER}");
    }
    if options.contains(&"--list") {
        mutants.iter().for_each(|mutant| println!("{}", mutant.change));
        println!("{} mutants", mutants.len());
        return Ok(());
    }
    let folder = run::target().join("mutation");
    let memory = folder.join("lua.tsv");
    if options.contains(&"--fresh") && memory.exists() {
        fs::remove_file(&memory)?;
    }
    let ready = setup::run()?;
    let programs = Programs::build(&folder.join("build"))?;
    let (memory, argued) = (Memory::open(memory)?, argued::read("lua")?);
    let judge = Judge { ready, programs, folder, argued };
    let pending: Vec<&Mutant> =
        mutants.iter().filter(|mutant| memory.of(mutant, &judge.programs.digest).is_none()).collect();
    judge.baseline(&pending)?;
    let judged = judge::all(&mutants, &memory, &judge.programs.digest, JOBS, |_, mutant, job| judge.one(mutant, job))?;
    report("lua", &judged)
}

/// The name of its script.
fn script(mutant: &Mutant) -> &str {
    mutant.change.file.trim_start_matches(FOLDER).trim_matches('/').trim_end_matches(".lua")
}

fn all() -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    let mut paths: Vec<PathBuf> =
        fs::read_dir(run::root().join(FOLDER))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "lua"));
    paths.sort();
    for path in paths {
        let script = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        mutants.extend(mutants_of(&script, &fs::read_to_string(&path)?).with_context(|| script.clone())?);
    }
    Ok(mutants)
}

fn mutants_of(script: &str, source: &str) -> Result<Vec<Mutant>> {
    let mut edits = parse::edits(source)?;
    edits.sort_by_key(|edit| (edit.range.start, edit.range.end));
    let mut seen = BTreeSet::from([source.to_owned()]);
    let mut mutants = Vec::new();
    for Edit { range, text } in edits {
        let mutant = Mutant::new(&format!("{FOLDER}/{script}.lua"), source, range, &text);
        if seen.insert(mutant.mutated.clone()) && parse::edits(&mutant.mutated).is_ok() {
            mutants.push(mutant);
        }
    }
    Ok(mutants)
}

/// The test programs, compiled to read mutants.
struct Programs {
    unit: PathBuf,
    tests: PathBuf,
    /// Changes with the tests.
    digest: String,
}

impl Programs {
    fn build(target: &Path) -> Result<Self> {
        let arguments = ["test", "-p", "tallygate-redis", "--lib", "--test", "tests", "--no-run"];
        let mut build = run::cargo(&arguments);
        build.args(["--message-format", "json-render-diagnostics"]);
        // A separate target folder: the flag would rebuild everything each time.
        build.env("RUSTFLAGS", "--cfg tallygate_mutation").env("CARGO_TARGET_DIR", target).stderr(Stdio::inherit());
        let output = run::output(&mut build)?;
        let found = judge::programs(&output)?;
        let (unit, tests) = (judge::program(&found, "tallygate_redis")?, judge::program(&found, "tests")?);
        let digest = judge::digest(&(fs::read(&unit)?, fs::read(&tests)?));
        Ok(Self { unit, tests, digest })
    }
}

struct Judge {
    ready: setup::Ready,
    programs: Programs,
    folder: PathBuf,
    argued: Vec<Argued>,
}

impl Judge {
    fn one(&self, mutant: &Mutant, job: usize) -> Result<Verdict> {
        let folder = self.folder.join(format!("mutant-{job}"));
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("before.lua"), &mutant.source)?;
        fs::write(folder.join("after.lua"), &mutant.mutated)?;
        let argued = self.argued.iter().any(|one| one.is_of(&mutant.change));
        let count = if argued { STAGES_OF_ARGUED } else { usize::MAX };
        for stage in stages(script(mutant)).iter().take(count) {
            let verdict = self.stage(stage, Some(&folder))?;
            if verdict != Verdict::Survived {
                return Ok(verdict);
            }
        }
        Ok(Verdict::Survived)
    }

    /// The scripts as they are must pass, else every mutant would count as killed.
    fn baseline(&self, pending: &[&Mutant]) -> Result<()> {
        let scripts: BTreeSet<&str> = pending.iter().map(|mutant| script(mutant)).collect();
        let mut passed: Vec<Stage> = Vec::new();
        for stage in scripts.into_iter().flat_map(stages) {
            if passed.contains(&stage) {
                continue;
            }
            if self.stage(&stage, None)? != Verdict::Survived {
                let output = self.folder.join("baseline/output");
                bail!("the tests fail without a mutant: {stage:?}; see {}", output.display());
            }
            println!("passes without a mutant: {stage:?}");
            passed.push(stage);
        }
        Ok(())
    }

    fn stage(&self, stage: &Stage, mutant: Option<&Path>) -> Result<Verdict> {
        let mut tests = Command::new(if stage.unit { &self.programs.unit } else { &self.programs.tests });
        tests
            .args(stage.filters)
            .args(["--nocapture", "--test-threads", "4"])
            .current_dir(run::root().join("crates/tallygate-redis"));
        self.ready.apply(&mut tests);
        if let Some(mutant) = mutant {
            tests.env("TALLYGATE_MUTANT", mutant);
        }
        tests.env("TALLYGATE_TWINS_STEPS", stage.steps.to_string());
        if !stage.valkey {
            tests.env("TALLYGATE_SKIP_VALKEY", "mutants are judged on Redis alone");
        }
        if let Some(algorithm) = stage.algorithm {
            tests.env("TALLYGATE_TWINS_ALGORITHM", algorithm);
        }
        judge::run_tests(&mut tests, mutant.unwrap_or(&self.folder.join("baseline")), judge::LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn every_argued_mutant_is_still_one_of_the_code() {
        let (argued, mut mutants) = (argued::read("lua").unwrap(), HashMap::new());
        assert!(!argued.is_empty());
        for one in argued {
            let of_file = mutants.entry(one.file.clone()).or_insert_with(|| {
                let source = fs::read_to_string(run::root().join(&one.file)).unwrap();
                let script = one.file.rsplit('/').next().unwrap().trim_end_matches(".lua");
                mutants_of(script, &source).unwrap()
            });
            let found = of_file.iter().any(|mutant| one.is_of(&mutant.change));
            assert!(found, "the code has no such mutant any more: {one:?}");
        }
    }

    #[test]
    fn each_construct_is_mutated() {
        let after = |source: &str| -> Vec<String> {
            mutants_of("x", source).unwrap().into_iter().map(|mutant| mutant.change.after).collect()
        };
        assert_eq!(
            after("if a < b then c() end"),
            [
                "if true then c() end",
                "if false then c() end",
                "if not (a < b) then c() end",
                "if a <= b then c() end",
                "if a >= b then c() end",
                "if a < b then  end"
            ]
        );
        assert_eq!(after("a, b = b, not a"), ["(nothing)", "a, b = a, not a", "a, b = b, a", "a, b = b, b"]);
        assert_eq!(
            after("redis.call('SET', k, v, 'PX', 5)"),
            [
                "(nothing)",
                "redis.call('', k, v, 'PX', 5)",
                "redis.call('SET', k, v)",
                "redis.call('SET', k, v, '', 5)",
                "redis.call('SET', k, v, 'PX', 6)",
                "redis.call('SET', k, v, 'PX', 4)"
            ]
        );
        assert_eq!(
            after("local x = a and b -- not c"),
            ["local x = a -- not c", "local x = b -- not c", "local x = a or b -- not c",]
        );
        assert!(after("--[[load]]\n-- a < b").is_empty());
    }
}
