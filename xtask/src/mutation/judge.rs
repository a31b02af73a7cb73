//! Judging mutants: several at a time, each by test programs that are stopped at the first failed test.
#![allow(clippy::disallowed_methods, reason = "the time that real programs take")]

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Change, Mutant, Verdict};
use crate::run;

/// What a test program says of a failed test.
const FAILED: &[u8] = b"... FAILED";
/// Mutants that mean the same are judged by the quickest stages only.
pub const STAGES_OF_ARGUED: usize = 2;
/// A run that takes longer has code that does not end, or a store that does not answer.
pub const LONGEST: Duration = Duration::from_secs(600);

pub fn digest(value: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// The verdicts of earlier runs, in a file: a run that was stopped goes on.
pub struct Memory {
    path: PathBuf,
    /// By mutant, with the digest of the tests.
    known: HashMap<String, (Verdict, String)>,
}

impl Memory {
    pub fn open(path: PathBuf) -> Result<Self> {
        let text = if path.exists() { fs::read_to_string(&path)? } else { String::new() };
        let line = |line: &str| {
            let mut words = line.split('\t').map(str::to_owned);
            let (id, name, tests) = (words.next()?, words.next()?, words.next()?);
            let verdict = Verdict::ALL.into_iter().find(|verdict| verdict.name() == name)?;
            Some((id, (verdict, tests)))
        };
        let known = text.lines().filter_map(line).collect();
        Ok(Self { path, known })
    }

    /// A verdict holds while its file is the same; that of a survivor only while the tests are the same too.
    pub fn of(&self, mutant: &Mutant, tests: &str) -> Option<Verdict> {
        let (verdict, known) = self.known.get(&mutant.id())?;
        (*verdict != Verdict::Survived || known == tests).then_some(*verdict)
    }
}

/// All mutants, `jobs` at a time, except for those of which the verdict is known. `one` is given the place of the mutant among all, and the number of its job.
pub fn all(
    mutants: &[Mutant],
    memory: &Memory,
    tests: &str,
    jobs: usize,
    one: impl Fn(usize, &Mutant, usize) -> Result<Verdict> + Sync,
) -> Result<Vec<(Change, Verdict)>> {
    let file = Mutex::new(OpenOptions::new().create(true).append(true).open(&memory.path)?);
    let (next, start) = (AtomicUsize::new(0), Instant::now());
    let work = |job: usize| -> Result<Vec<(Change, Verdict)>> {
        let mut judged = Vec::new();
        while let Some((place, mutant)) = mutants.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed)) {
            let verdict = match memory.of(mutant, tests) {
                Some(verdict) => verdict,
                None => {
                    let began = Instant::now();
                    let verdict = one(place, mutant, job)?;
                    let line = format!("{}\t{}\t{tests}\n", mutant.id(), verdict.name());
                    file.lock().expect("no job panics").write_all(line.as_bytes())?;
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
        let work = &work;
        let jobs: Vec<_> = (0..jobs).map(|job| scope.spawn(move || work(job))).collect();
        for job in jobs {
            judged.extend(job.join().expect("no job panics")?);
        }
        anyhow::Ok(())
    })?;
    judged.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(judged)
}

/// The test programs that cargo built, by the names of their targets, from its messages.
pub fn programs(messages: &str) -> Result<HashMap<String, PathBuf>> {
    let mut found = HashMap::new();
    for line in messages.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        if let (Some(program), Some(name)) = (message["executable"].as_str(), message["target"]["name"].as_str()) {
            found.insert(name.to_owned(), PathBuf::from(program));
        }
    }
    Ok(found)
}

pub fn program(found: &HashMap<String, PathBuf>, name: &str) -> Result<PathBuf> {
    found.get(name).cloned().with_context(|| format!("no test program {name}"))
}

/// Runs a test program until a test fails. Its output is in `output` in the folder, which no other job uses.
pub fn run_tests(tests: &mut Command, folder: &Path, longest: Duration) -> Result<Verdict> {
    fs::create_dir_all(folder)?;
    let output = folder.join("output");
    // In a group of its own, and with servers in a folder of its own: a killed program may have started one that nobody knows of.
    let servers = folder.join("servers");
    if servers.exists() {
        fs::remove_dir_all(&servers)?;
    }
    fs::create_dir_all(&servers)?;
    tests.process_group(0).env("TMPDIR", &servers);
    tests.env("RUST_BACKTRACE", "0").env("TALLYGATE_SKIPPED", folder.join("skipped.tsv"));
    tests.stdin(Stdio::null()).stdout(File::create(&output)?).stderr(File::options().append(true).open(&output)?);
    let (mut child, start) = (tests.spawn()?, Instant::now());
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        let failed = fs::read(&output)?.windows(FAILED.len()).any(|part| part == FAILED);
        if failed || start.elapsed() > longest {
            let group = format!("-{}", child.id());
            run::output(Command::new("kill").args(["-KILL", "--", &group]))?;
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
        bail!("{tests:?} runs no test");
    }
    Ok(match status.is_some_and(|status| status.success()) {
        true => Verdict::Survived,
        false if said.contains("Error compiling script") => Verdict::Unviable,
        false => Verdict::Killed,
    })
}
