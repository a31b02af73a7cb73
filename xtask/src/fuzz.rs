//! Fuzzing with libFuzzer on the stable compiler: no sanitizer, as there is no unsafe code.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{run, setup};

/// The flags of `cargo fuzz`, without those that need a nightly compiler.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1";

/// States in a real server, which no coverage reaches: a test that draws them, with the same kept inputs.
const STATES: &str = "states";
/// The longest input of each target, in bytes.
const LONGEST: usize = 2048;
/// Beyond the libraries and the corpus, which are loaded anyway. A single input may take far less: see `fuzz/src/lib.rs`.
const MOST_MEMORY_MB: usize = 768;

const USAGE: &str = "expected `fuzz [target …] [--seconds N] [--merge]` or `fuzz <target> --replay FILE`";

#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    targets: Vec<String>,
    seconds: u32,
    /// Adds to the kept inputs whatever reaches more of the code.
    merge: bool,
    replay: Option<PathBuf>,
}

impl Arguments {
    fn read(words: &[String], known: &[String]) -> Result<Self> {
        let mut read = Self { seconds: 60, ..Self::default() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--merge" => read.merge = true,
                "--seconds" => {
                    let text = words.next().context("--seconds needs a number")?;
                    read.seconds = text.parse().with_context(|| format!("--seconds {text}: not a number"))?;
                }
                "--replay" => read.replay = Some(words.next().context("--replay needs a file")?.into()),
                name if known.iter().any(|target| target == name) => read.targets.push(name.to_owned()),
                other => bail!("unknown argument `{other}`: {USAGE}; the targets are {}", known.join(", ")),
            }
        }
        match (&read.replay, read.targets.len()) {
            (Some(_), count) if count != 1 || read.targets[0] == STATES => bail!(USAGE),
            (None, 0) => read.targets = known.to_vec(),
            _ => {}
        }
        Ok(read)
    }
}

/// One target after the other. Stops at the first that fails.
pub fn run(args: &[String]) -> Result<()> {
    let mut known = programs()?;
    known.push(STATES.to_owned());
    let Arguments { targets, seconds, merge, replay } = Arguments::read(args, &known)?;
    let mut lines = Vec::new();
    for target in &targets {
        if target == STATES {
            states(seconds)?;
            continue;
        }
        let program = build(target)?;
        if let Some(file) = &replay {
            return run::run(Command::new(&program).arg(file));
        }
        lines.push(fuzz(target, &program, seconds)?);
        if merge {
            keep(target, &program)?;
        }
    }
    for line in lines {
        println!("{line}");
    }
    Ok(())
}

/// The names of the programs.
fn programs() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for file in fs::read_dir(run::root().join("fuzz/src/bin"))? {
        names.extend(file?.path().file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

fn kept(target: &str) -> PathBuf {
    run::root().join("fuzz/corpus").join(target)
}

/// What earlier runs on this machine found.
fn found(target: &str) -> PathBuf {
    run::target().join("fuzz/corpus").join(target)
}

/// Returns the path of the program.
fn build(target: &str) -> Result<PathBuf> {
    let folder = run::target().join("fuzz");
    // Named, so that the flags do not reach build scripts.
    let host = run::output(Command::new("rustc").args(["--print", "host-tuple"]))?;
    let host = host.trim();
    let mut command = run::cargo(&["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--bin", target]);
    command.args(["--target", host, "--target-dir"]).arg(&folder);
    let manifest = fs::read_to_string(run::root().join("fuzz/Cargo.toml"))?;
    if let Some(feature) = feature(&manifest, target) {
        command.args(["--features", feature]);
    }
    run::run(command.env("RUSTFLAGS", COVERAGE))?;
    Ok(folder.join(host).join("release").join(target))
}

/// The feature that a program of the manifest needs.
fn feature<'m>(manifest: &'m str, target: &str) -> Option<&'m str> {
    let (_, entry) = manifest.split_once(&format!("[[bin]]\nname = \"{target}\"\n"))?;
    entry.strip_prefix("required-features = [\"")?.split('"').next()
}

/// Looks for new inputs, from the kept ones and those of earlier runs. Returns a line with what was done.
fn fuzz(target: &str, program: &Path, seconds: u32) -> Result<String> {
    let (found, artifacts) = (found(target), run::target().join("fuzz/artifacts"));
    fs::create_dir_all(&found)?;
    fs::create_dir_all(&artifacts)?;
    let mut command = Command::new(program);
    command.arg(&found).arg(kept(target)).args(["-print_final_stats=1", "-timeout=20"]);
    command.arg(format!("-max_total_time={seconds}")).arg(format!("-max_len={LONGEST}"));
    command.arg(format!("-rss_limit_mb={MOST_MEMORY_MB}"));
    command.arg(format!("-artifact_prefix={}/{target}-", artifacts.display()));
    eprintln!("\n$ {target}, {seconds} s");
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let output = child.stderr.take().context("its output is piped")?;
    let (mut stats, mut last) = (Stats::default(), VecDeque::new());
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        stats.read(&line);
        if line.contains("pulse") {
            eprintln!("{target}: {line}");
        }
        last.push_back(line);
        if last.len() > 60 {
            last.pop_front();
        }
    }
    if child.wait()?.success() {
        let line = stats.line(target);
        println!("{line}");
        return Ok(line);
    }
    for line in &last {
        eprintln!("{line}");
    }
    let artifact = last.iter().find_map(|line| line.split_once("Test unit written to ")).map(|(_, file)| file);
    match artifact {
        Some(file) => bail!("{target} failed. Replay it with `cargo xtask fuzz {target} --replay {file}`"),
        None => bail!("{target} failed, and left no input"),
    }
}

/// Copies the inputs that reach what no kept one reaches.
fn keep(target: &str, program: &Path) -> Result<()> {
    let mut command = Command::new(program);
    // Short ones, and one for each place in the code, however often it is passed: every test runs them.
    command
        .args(["-merge=1", "-use_counters=0", "-max_len=512"])
        .arg(kept(target))
        .arg(found(target))
        .stderr(Stdio::null());
    run::run(&mut command)
}

fn states(seconds: u32) -> Result<()> {
    let ready = setup::run()?;
    let mut command = run::cargo(&["test", "-p", "tallygate-redis", "--test", "tests", "--", "--nocapture"]);
    command.arg("fuzz::states").env("TALLYGATE_FUZZ_SECONDS", seconds.to_string());
    ready.apply(&mut command);
    run::run(&mut command)
}

/// What libFuzzer reports.
#[derive(Debug, Default)]
struct Stats {
    executed: u64,
    coverage: u64,
    corpus: String,
    memory_mb: u64,
}

impl Stats {
    fn read(&mut self, line: &str) {
        let after = |name: &str| line.split_once(name).and_then(|(_, rest)| rest.split_whitespace().next());
        let number = |name: &str| after(name).and_then(|word| word.parse().ok());
        self.executed = number("stat::number_of_executed_units:").unwrap_or(self.executed);
        self.memory_mb = number("stat::peak_rss_mb:").unwrap_or(self.memory_mb);
        if line.starts_with('#') {
            self.coverage = number(" cov: ").unwrap_or(self.coverage);
            self.corpus = after(" corp: ").map_or_else(|| self.corpus.clone(), str::to_owned);
        }
    }

    fn line(&self, target: &str) -> String {
        let Self { executed, coverage, corpus, memory_mb } = self;
        format!(
            "xtask fuzz: {target}: {executed} executions, coverage {coverage}, corpus {corpus}, peak {memory_mb} MB"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hygiene::files;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn arguments_name_targets() {
        let known = words("keys limit_text states");
        let read = |text: &str| Arguments::read(&words(text), &known);
        assert_eq!(read("").unwrap(), Arguments { targets: known.clone(), seconds: 60, ..Arguments::default() });
        let one = read("keys --seconds 5 --merge").unwrap();
        assert_eq!((one.targets, one.seconds, one.merge), (words("keys"), 5, true));
        for wrong in
            ["key", "--seconds", "--seconds x", "--replay f", "keys limit_text --replay f", "states --replay f"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_last_figures_count() {
        let mut stats = Stats::default();
        stats.read("#2\tINITED cov: 10 ft: 11 corp: 1/1b exec/s: 0 rss: 40Mb");
        stats.read("#65536\tpulse  cov: 412 ft: 900 corp: 97/3210b lim: 60 exec/s: 3000 rss: 61Mb");
        stats.read("stat::number_of_executed_units: 70001");
        stats.read("stat::peak_rss_mb:              61");
        let line = "xtask fuzz: keys: 70001 executions, coverage 412, corpus 97/3210b, peak 61 MB";
        assert_eq!(stats.line("keys"), line);
    }

    /// Every target has kept inputs, few and small, and a test that replays them.
    #[test]
    fn what_was_found_stays_found() {
        let mut targets = programs().unwrap();
        targets.push(STATES.to_owned());
        targets.sort();
        let corpus = run::root().join("fuzz/corpus");
        let mut folders: Vec<String> =
            fs::read_dir(&corpus).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        folders.sort();
        assert_eq!(folders, targets, "a folder of inputs for each target, and no other");
        let (mut count, mut bytes) = (0, 0);
        for target in &targets {
            let sizes: Vec<u64> =
                fs::read_dir(kept(target)).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
            assert!(!sizes.is_empty(), "{target}");
            (count, bytes) = (count + sizes.len(), bytes + sizes.iter().sum::<u64>());
        }
        assert!(count <= 400 && bytes <= 300_000, "{count} inputs, {bytes} bytes: keep fewer");

        let sources = files::below(&run::root().join("crates")).unwrap();
        for target in targets.iter().filter(|target| *target != STATES) {
            let replayed = |file: &&files::TextFile| file.text.contains(&format!("replay(\"{target}\""));
            assert_eq!(sources.iter().filter(replayed).count(), 1, "{target} is replayed by one test");
        }
    }

    #[test]
    fn a_program_names_the_feature_that_it_needs() {
        let manifest = "[[bin]]\nname = \"a\"\n\n[[bin]]\nname = \"b\"\nrequired-features = [\"x\"]\n";
        assert_eq!((feature(manifest, "a"), feature(manifest, "b")), (None, Some("x")));
    }
}
