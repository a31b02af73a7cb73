//! Every line of the Lua scripts, mutated.
//!
//! The tests are compiled once. A mutant is a folder with the source before and after, which the test program reads.
#![allow(clippy::disallowed_methods, reason = "the time that real programs take")]

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::stages::{Stage, stages};
use super::{Change, Verdict, parse, report};
use crate::{run, setup};

const FOLDER: &str = "crates/tallygate-redis/lua";
const JOBS: usize = 3;
/// What the test program says of a failed test.
const FAILED: &[u8] = b"... FAILED";
/// A run that takes longer has a script that does not end, or a store that does not answer.
const LONGEST: Duration = Duration::from_secs(240);

struct Mutant {
    change: Change,
    /// The name of the script.
    script: String,
    source: String,
    mutated: String,
}

impl Mutant {
    /// The same only while the whole script is the same.
    fn id(&self) -> String {
        digest(&(&self.script, &self.mutated))
    }
}

/// `[--fresh] [--list] [--quick] [file] …`; files by a part of their names. `--quick` runs only the first two stages, and
/// forgets who survived them.
pub fn run(args: &[String]) -> Result<()> {
    let (options, names): (Vec<&str>, Vec<&str>) =
        args.iter().map(String::as_str).partition(|word| word.starts_with("--"));
    if let Some(unknown) = options.iter().find(|word| !["--fresh", "--list", "--quick"].contains(word)) {
        bail!("unknown option `{unknown}`: expected --fresh, --list or --quick");
    }
    let mut mutants = all()?;
    mutants.retain(|mutant| names.is_empty() || names.iter().any(|name| mutant.script.contains(name)));
    if mutants.is_empty() {
        bail!("no script has this name: see {FOLDER}");
    }
    if options.contains(&"--list") {
        for Mutant { change: Change { file, line, before, after }, .. } in &mutants {
            println!("{file}:{line}\n  - {before}\n  + {after}");
        }
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
    let judge = Judge { ready, programs, folder, known: read_memory(&memory)?, quick: options.contains(&"--quick") };
    judge.baseline(&mutants)?;
    let judged = judge.all(&mutants, &memory)?;
    report("lua", &judged)
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
    for parse::Edit { range, text } in edits {
        let mutated = format!("{}{text}{}", &source[..range.start], &source[range.end..]);
        if !seen.insert(mutated.clone()) || parse::edits(&mutated).is_err() {
            continue;
        }
        // The whole lines that it touches, before and after.
        let first = source[..range.start].rfind('\n').map_or(0, |at| at + 1);
        let last = source[range.end..].find('\n').map_or(source.len(), |at| range.end + at);
        let (before, after) = (&source[first..last], &mutated[first..last + text.len() - range.len()]);
        let change = Change {
            file: format!("{FOLDER}/{script}.lua"),
            line: source[..range.start].matches('\n').count() + 1,
            before: in_one_line(before),
            after: in_one_line(after),
        };
        mutants.push(Mutant { change, script: script.to_owned(), source: source.to_owned(), mutated });
    }
    Ok(mutants)
}

fn in_one_line(text: &str) -> String {
    let text = text.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    if text.is_empty() { "(nothing)".to_owned() } else { text }
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
        let mut found = HashMap::new();
        for line in output.lines() {
            let message: serde_json::Value = serde_json::from_str(line)?;
            if let (Some(program), Some(name)) = (message["executable"].as_str(), message["target"]["name"].as_str()) {
                found.insert(name.to_owned(), PathBuf::from(program));
            }
        }
        let mut program = |name: &str| found.remove(name).with_context(|| format!("no test program {name}"));
        let (unit, tests) = (program("tallygate_redis")?, program("tests")?);
        let digest = digest(&(fs::read(&unit)?, fs::read(&tests)?));
        Ok(Self { unit, tests, digest })
    }
}

fn digest(value: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// What was judged before: by mutant, the verdict and the digest of the tests.
type Memory = HashMap<String, (Verdict, String)>;

fn read_memory(path: &Path) -> Result<Memory> {
    let text = if path.exists() { fs::read_to_string(path)? } else { String::new() };
    let line = |line: &str| {
        let mut words = line.split('\t').map(str::to_owned);
        let (id, name, tests) = (words.next()?, words.next()?, words.next()?);
        let verdict = Verdict::ALL.into_iter().find(|verdict| verdict.name() == name)?;
        Some((id, (verdict, tests)))
    };
    Ok(text.lines().filter_map(line).collect())
}

struct Judge {
    ready: setup::Ready,
    programs: Programs,
    folder: PathBuf,
    known: Memory,
    quick: bool,
}

impl Judge {
    /// A verdict holds while its script is the same; that of a survivor only while the tests are the same too.
    fn known(&self, mutant: &Mutant) -> Option<Verdict> {
        let (verdict, tests) = self.known.get(&mutant.id())?;
        (*verdict != Verdict::Survived || *tests == self.programs.digest).then_some(*verdict)
    }

    fn all(&self, mutants: &[Mutant], memory: &Path) -> Result<Vec<(Change, Verdict)>> {
        let memory = Mutex::new(OpenOptions::new().create(true).append(true).open(memory)?);
        let (next, start) = (AtomicUsize::new(0), Instant::now());
        let work = |job: usize| -> Result<Vec<(Change, Verdict)>> {
            let mut judged = Vec::new();
            while let Some((place, mutant)) = mutants.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed)) {
                let verdict = match self.known(mutant) {
                    Some(verdict) => verdict,
                    None => {
                        let began = Instant::now();
                        let verdict = self.one(mutant, job)?;
                        let line = format!("{}\t{}\t{}\n", mutant.id(), verdict.name(), self.programs.digest);
                        if !self.quick || verdict != Verdict::Survived {
                            memory.lock().expect("no job panics").write_all(line.as_bytes())?;
                        }
                        let Change { file, line, after, .. } = &mutant.change;
                        println!(
                            "{}/{} {:>4}s {:<9} {:>5.1}s {file}:{line} + {after}",
                            place + 1,
                            mutants.len(),
                            start.elapsed().as_secs(),
                            verdict.name(),
                            began.elapsed().as_secs_f64()
                        );
                        verdict
                    }
                };
                judged.push((mutant.change.clone(), verdict));
            }
            Ok(judged)
        };
        let mut judged = Vec::new();
        thread::scope(|scope| {
            let jobs: Vec<_> = (0..JOBS).map(|job| scope.spawn(move || work(job))).collect();
            for job in jobs {
                judged.extend(job.join().expect("no job panics")?);
            }
            anyhow::Ok(())
        })?;
        judged.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(judged)
    }

    fn stages(&self, script: &str) -> Vec<Stage> {
        let mut stages = stages(script);
        stages.truncate(if self.quick { 2 } else { stages.len() });
        stages
    }

    fn one(&self, mutant: &Mutant, job: usize) -> Result<Verdict> {
        let folder = self.folder.join(format!("mutant-{job}"));
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("before.lua"), &mutant.source)?;
        fs::write(folder.join("after.lua"), &mutant.mutated)?;
        for stage in self.stages(&mutant.script) {
            let verdict = self.stage(&stage, Some(&folder))?;
            if verdict != Verdict::Survived {
                return Ok(verdict);
            }
        }
        Ok(Verdict::Survived)
    }

    /// The scripts as they are must pass, else every mutant would count as killed.
    fn baseline(&self, mutants: &[Mutant]) -> Result<()> {
        let pending = mutants.iter().filter(|mutant| self.known(mutant).is_none());
        let scripts: BTreeSet<&str> = pending.map(|mutant| mutant.script.as_str()).collect();
        let mut passed: Vec<Stage> = Vec::new();
        for stage in scripts.into_iter().flat_map(|script| self.stages(script)) {
            if passed.contains(&stage) {
                continue;
            }
            let start = Instant::now();
            if self.stage(&stage, None)? != Verdict::Survived {
                bail!(
                    "the tests fail without a mutant: {stage:?}; see {}",
                    self.folder.join("baseline/output").display()
                );
            }
            println!("without a mutant, {:.1}s: {stage:?}", start.elapsed().as_secs_f64());
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
        let baseline = self.folder.join("baseline");
        let folder = mutant.unwrap_or(&baseline);
        fs::create_dir_all(folder)?;
        let output = folder.join("output");
        if let Some(mutant) = mutant {
            tests.env("TALLYGATE_MUTANT", mutant);
        }
        tests.env("TALLYGATE_TWINS_STEPS", stage.steps.to_string());
        if !stage.valkey {
            tests.env("TALLYGATE_SKIP_VALKEY", "mutants are judged on Redis alone");
        }
        tests.env("RUST_BACKTRACE", "0");
        tests.env("TALLYGATE_SKIPPED", folder.join("skipped.tsv"));
        if let Some(algorithm) = stage.algorithm {
            tests.env("TALLYGATE_TWINS_ALGORITHM", algorithm);
        }
        tests.stdin(Stdio::null()).stdout(File::create(&output)?).stderr(File::options().append(true).open(&output)?);
        let (mut child, start) = (tests.spawn()?, Instant::now());
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            // One failed test is enough. The watchdog of the testkit kills the servers.
            let failed = fs::read(&output)?.windows(FAILED.len()).any(|part| part == FAILED);
            if failed || start.elapsed() > LONGEST {
                child.kill()?;
                child.wait()?;
                if !failed {
                    return Ok(Verdict::TimedOut);
                }
                break None;
            }
            thread::sleep(Duration::from_millis(10));
        };
        let said = String::from_utf8_lossy(&fs::read(&output)?).into_owned();
        if said.contains(". 0 passed; 0 failed") {
            bail!("{:?} names no test", stage.filters);
        }
        Ok(match status.is_some_and(|status| status.success()) {
            true => Verdict::Survived,
            false if said.contains("Error compiling script") => Verdict::Unviable,
            false => Verdict::Killed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::argued;
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
