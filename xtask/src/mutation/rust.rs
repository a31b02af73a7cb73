//! The Rust code of the last commit, mutated: all mutants of a package are compiled once, each behind a switch, which a variable of
//! the environment turns on.

mod places;
mod switches;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::argued::{self, Argued};
use super::judge::{self, Memory, STAGES_OF_ARGUED};
use super::{Change, Edit, Mutant, Verdict, report};
use crate::{run, setup, tree};
use places::Place;
use switches::{SWITCH, Switched};

/// All of the library, and of the client what reads, sends and judges.
const CORE: &str = "crates/tallygate/src";
const CLIENT: [&str; 7] =
    ["coalesce", "connection/deadline", "connection/failure", "connection/outage", "connection/resp", "split", "wire"];
/// Test programs at a time.
const JOBS: usize = 2;
/// Address space of a test program in KiB: a mutant may never stop collecting.
const MOST_MEMORY: &str = "8388608";

/// `[--list] [file] …`, by parts of their paths.
pub fn run(args: &[String]) -> Result<()> {
    let (options, names): (Vec<&str>, Vec<&str>) =
        args.iter().map(String::as_str).partition(|word| word.starts_with("--"));
    if let Some(unknown) = options.iter().find(|word| **word != "--list") {
        bail!("unknown option `{unknown}`: expected --list");
    }
    let folder = run::target().join("mutation");
    let tree = folder.join("tree");
    tree::check_out(&tree)?;
    let mut files = files(&tree)?;
    files.retain(|file| names.is_empty() || names.iter().any(|name| file.contains(name)));
    if files.is_empty() {
        bail!("no mutated file has this name: see xtask/src/mutation/rust.rs");
    }
    let packages: BTreeSet<&str> = files.iter().map(|file| package(file)).collect();
    let memory = Memory::open(folder.join("rust.tsv"))?;
    let mut judged = Vec::new();
    for package in packages {
        let mut code = Code::read(&tree, package, files.iter().filter(|file| self::package(file) == package))?;
        if options.contains(&"--list") {
            code.mutants.iter().for_each(|mutant| println!("{}", mutant.change));
            println!("{package}: {} mutants", code.mutants.len());
            continue;
        }
        let tests = tests_of(package)?;
        let programs = code.build(&folder.join("rust-build"))?;
        let judge = Judge::new(package, &tree, &folder, programs)?;
        let one = |at: usize, mutant: &Mutant, job| match code.numbers[at] {
            Some(number) => judge.one(&mutant.change, number, job),
            None => Ok(Verdict::Unviable),
        };
        judged.extend(judge::all(&code.mutants, &memory, &tests, JOBS, one)?);
    }
    if options.contains(&"--list") { Ok(()) } else { report("rust", &judged) }
}

/// The files that are mutated.
fn files(tree: &Path) -> Result<Vec<String>> {
    let core = run::output(Command::new("git").args(["ls-files", CORE]).current_dir(tree))?;
    // The root of the crate only lists its modules, and gets the switch.
    let mutated = |file: &&str| file.ends_with(".rs") && !file.ends_with("/tests.rs") && !file.ends_with("/lib.rs");
    let core = core.lines().filter(mutated).map(str::to_owned);
    Ok(core.chain(CLIENT.map(|file| format!("crates/tallygate-redis/src/{file}.rs"))).collect())
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

/// The files of a package, and their mutants.
struct Code {
    tree: PathBuf,
    package: String,
    files: Vec<File>,
    mutants: Vec<Mutant>,
    /// For each mutant the number of its switch, unless it does not compile.
    numbers: Vec<Option<usize>>,
}

struct File {
    path: String,
    source: String,
    places: Vec<Place>,
}

impl Code {
    fn read<'f>(tree: &Path, package: &str, paths: impl Iterator<Item = &'f String>) -> Result<Self> {
        let (mut files, mut mutants) = (Vec::new(), Vec::new());
        for path in paths {
            let source = fs::read_to_string(tree.join(path)).with_context(|| path.clone())?;
            let places = places::places(&source).with_context(|| path.clone())?;
            let edits = places.iter().flat_map(|place| &place.edits);
            mutants.extend(edits.map(|Edit { range, text }| Mutant::new(path, &source, range.clone(), text)));
            files.push(File { path: path.clone(), source, places });
        }
        let numbers = (1..=mutants.len()).map(Some).collect();
        Ok(Self { tree: tree.to_owned(), package: package.to_owned(), files, mutants, numbers })
    }

    /// The test programs. Leaves the mutants out that do not compile.
    fn build(&mut self, target: &Path) -> Result<[PathBuf; 2]> {
        let lib = self.tree.join("crates").join(&self.package).join("src/lib.rs");
        fs::write(&lib, fs::read_to_string(&lib)? + SWITCH)?;
        loop {
            let files = self.switch()?;
            let mut build = run::cargo(&["test", "--package", &self.package, "--lib", "--test", "tests", "--no-run"]);
            build.arg("--message-format=json-render-diagnostics").current_dir(&self.tree);
            build.env("CARGO_TARGET_DIR", target).env("RUSTFLAGS", "--cap-lints allow").stderr(Stdio::piped());
            // What a stopped build leaves of it does not link.
            build.env("CARGO_INCREMENTAL", "0");
            let built = build.stdin(Stdio::null()).output()?;
            let messages = String::from_utf8_lossy(&built.stdout).into_owned();
            if built.status.success() {
                let found = judge::programs(&messages)?;
                return Ok([
                    judge::program(&found, &self.package.replace('-', "_"))?,
                    judge::program(&found, "tests")?,
                ]);
            }
            let blamed = blamed(&messages, &files)?;
            println!("{}: {} mutants do not compile", self.package, blamed.len());
            if blamed.is_empty() {
                bail!("the code with switches does not compile:\n{}", String::from_utf8_lossy(&built.stderr));
            }
            for number in blamed {
                self.numbers[number - 1] = None;
            }
        }
    }

    /// Writes every file with the switches of its mutants.
    fn switch(&self) -> Result<Vec<(String, Switched)>> {
        let mut numbers = self.numbers.iter().copied();
        let mut files = Vec::new();
        for File { path, source, places } in &self.files {
            let of_place = |place: &'_ Place| numbers.by_ref().take(place.edits.len()).collect();
            let numbered: Vec<Vec<Option<usize>>> = places.iter().map(of_place).collect();
            let switched = Switched::new(source, &places.iter().zip(&numbered).collect::<Vec<_>>());
            fs::write(self.tree.join(path), &switched.text)?;
            files.push((path.clone(), switched));
        }
        Ok(files)
    }
}

/// The mutants that the compiler complains of.
fn blamed(messages: &str, files: &[(String, Switched)]) -> Result<BTreeSet<usize>> {
    let mut blamed = BTreeSet::new();
    for line in messages.lines() {
        let message = &serde_json::from_str::<Value>(line)?["message"];
        if message["level"] != "error" {
            continue;
        }
        let spans = message["spans"].as_array().into_iter().flatten();
        for span in spans.filter(|span| span["is_primary"] == true) {
            let offset = span["byte_start"].as_u64().and_then(|offset| usize::try_from(offset).ok());
            let file =
                files.iter().find(|(path, _)| span["file_name"].as_str().is_some_and(|name| path.ends_with(name)));
            if let (Some(offset), Some((_, switched))) = (offset, file) {
                blamed.extend(switched.at(offset));
            }
        }
    }
    Ok(blamed)
}

/// Tests that judge together.
struct Stage {
    unit: bool,
    filters: &'static [&'static str],
    /// Whether they are about a file.
    about: fn(&str) -> bool,
}

const fn unit(filters: &'static [&'static str]) -> Stage {
    Stage { unit: true, filters, about: |_| true }
}

const fn tests(filters: &'static [&'static str], about: fn(&str) -> bool) -> Stage {
    Stage { unit: false, filters, about }
}

/// The quickest first.
const OF_CORE: [Stage; 7] = [
    tests(&["allotments::"], |file| file.contains("allotments")),
    tests(&["deny_cache::"], |file| file.contains("deny_cache")),
    tests(&["evaluation::"], |file| file.contains("/policy")),
    tests(&["model::"], |file| !file.contains("/policy")),
    unit(&[]),
    tests(&["--skip", "model::", "--skip", "conformance::"], |_| true),
    tests(&["conformance::"], |file| {
        ["/algorithm", "/call", "/check", "/store/memory"].iter().any(|part| file.contains(part))
    }),
];
const OF_CLIENT: [Stage; 3] = [
    unit(&["--skip", "simulation::"]),
    unit(&["simulation::"]),
    tests(&["twins::memory_and_redis", "refusals::", "faults::"], |_| true),
];

struct Judge {
    ready: setup::Ready,
    folder: PathBuf,
    crate_folder: PathBuf,
    /// The unit tests, and the others.
    programs: [PathBuf; 2],
    /// How long each of them may take.
    stages: Vec<(Stage, Duration)>,
    argued: Vec<Argued>,
}

impl Judge {
    /// The code as it is must pass, else every mutant would count as killed.
    #[allow(clippy::disallowed_methods, reason = "the time that real programs take")]
    fn new(package: &str, tree: &Path, folder: &Path, programs: [PathBuf; 2]) -> Result<Self> {
        let stages = if package == "tallygate" { Vec::from(OF_CORE) } else { Vec::from(OF_CLIENT) };
        let (folder, crate_folder) = (folder.to_owned(), tree.join("crates").join(package));
        let mut judge = Self {
            ready: setup::run()?,
            folder,
            crate_folder,
            programs,
            stages: Vec::new(),
            argued: argued::read("rust")?,
        };
        for stage in stages {
            let start = Instant::now();
            if judge.stage(&stage, judge::LONGEST, 0, 0)? != Verdict::Survived {
                bail!("the tests fail without a mutant: see {}", judge.output(0).display());
            }
            let took = start.elapsed();
            println!("passes without a mutant: {package} {:?}, in {:.1} s", stage.filters, took.as_secs_f64());
            judge.stages.push((stage, took * 4 + Duration::from_secs(20)));
        }
        Ok(judge)
    }

    fn one(&self, change: &Change, number: usize, job: usize) -> Result<Verdict> {
        let count = if self.argued.iter().any(|one| one.is_of(change)) { STAGES_OF_ARGUED } else { usize::MAX };
        let stages = self.stages.iter().filter(|(stage, _)| (stage.about)(&change.file)).take(count);
        for (stage, longest) in stages {
            let verdict = self.stage(stage, *longest, number, job)?;
            if verdict != Verdict::Survived {
                return Ok(verdict);
            }
        }
        Ok(Verdict::Survived)
    }

    fn output(&self, job: usize) -> PathBuf {
        self.folder.join(format!("rust-{job}"))
    }

    /// The number of no mutant is 0.
    fn stage(&self, stage: &Stage, longest: Duration, number: usize, job: usize) -> Result<Verdict> {
        let mut tests = Command::new("sh");
        tests
            .args(["-c", "ulimit -v \"$0\" && exec \"$@\"", MOST_MEMORY])
            .arg(&self.programs[usize::from(!stage.unit)]);
        tests.args(stage.filters).args(["--nocapture", "--test-threads", "2"]).current_dir(&self.crate_folder);
        self.ready.apply(&mut tests);
        tests.env("TALLYGATE_MUTANT", number.to_string());
        judge::run_tests(&mut tests, &self.output(job), longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_argued_mutant_is_still_one_of_the_code() {
        assert!(files(&run::root()).unwrap().iter().all(|file| run::root().join(file).is_file()));
        for one in argued::read("rust").unwrap() {
            let code = Code::read(&run::root(), package(&one.file), std::iter::once(&one.file)).unwrap();
            let found = code.mutants.iter().any(|mutant| one.is_of(&mutant.change));
            assert!(found, "the code has no such mutant any more: {one:?}");
        }
    }
}
