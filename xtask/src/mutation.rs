//! Mutation testing: small changes of the code, one at a time, each of which a test must notice.
//!
//! `cargo xtask torture --mutants` is something else: it puts known holes back, to test the harness of faults.

mod argued;
mod judge;
mod lua;
mod rust;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use anyhow::{Result, bail};

use argued::Argued;

/// A change of the text: what is replaced, and by what.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Edit {
    range: Range<usize>,
    text: String,
}

/// A change of one place, by the lines it touches, trimmed and joined.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Change {
    /// From the root of the repository.
    file: String,
    line: usize,
    before: String,
    after: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}\n  - {}\n  + {}", self.file, self.line, self.before, self.after)
    }
}

/// A change, and the text of its file without and with it.
struct Mutant {
    change: Change,
    source: String,
    mutated: String,
}

impl Mutant {
    fn new(file: &str, source: &str, range: Range<usize>, text: &str) -> Self {
        let mutated = format!("{}{text}{}", &source[..range.start], &source[range.end..]);
        // The whole lines that it touches, before and after.
        let first = source[..range.start].rfind('\n').map_or(0, |at| at + 1);
        let last = source[range.end..].find('\n').map_or(source.len(), |at| range.end + at);
        let (before, after) = (&source[first..last], &mutated[first..last + text.len() - range.len()]);
        let line = source[..range.start].matches('\n').count() + 1;
        let change = Change { file: file.to_owned(), line, before: in_one_line(before), after: in_one_line(after) };
        Self { change, source: source.to_owned(), mutated }
    }

    /// The same only while the whole file is the same.
    fn id(&self) -> String {
        judge::digest(&(&self.change.file, &self.mutated))
    }
}

fn in_one_line(text: &str) -> String {
    let text = text.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    if text.is_empty() { "(nothing)".to_owned() } else { text }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Killed,
    TimedOut,
    /// It does not compile.
    Unviable,
    Survived,
}

impl Verdict {
    const ALL: [Self; 4] = [Self::Killed, Self::TimedOut, Self::Unviable, Self::Survived];

    fn name(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::TimedOut => "timed_out",
            Self::Unviable => "unviable",
            Self::Survived => "survived",
        }
    }
}

/// `lua [file] …` or `rust [file] …`
pub fn run(args: &[String]) -> Result<()> {
    match args.split_first() {
        Some((what, rest)) if what == "lua" => lua::run(rest),
        Some((what, rest)) if what == "rust" => rust::run(rest),
        _ => bail!("what to mutate is missing: lua or rust"),
    }
}

/// Prints the counts of each file and the survivors. An error if one of them is not argued.
fn report(language: &str, judged: &[(Change, Verdict)]) -> Result<()> {
    let argued = argued::read(language)?;
    let mut files: BTreeMap<&str, [usize; 6]> = BTreeMap::new();
    let mut survivors = Vec::new();
    for (change, verdict) in judged {
        let counts = files.entry(&change.file).or_default();
        counts[0] += 1;
        counts[1 + Verdict::ALL.iter().position(|one| one == verdict).unwrap_or_default()] += 1;
        if *verdict == Verdict::Survived {
            let known = argued.iter().any(|one| one.is_of(change));
            counts[5] += usize::from(known);
            survivors.extend((!known).then_some(change));
        }
    }
    let killed_but_argued: Vec<&Argued> = argued
        .iter()
        .filter(|one| judged.iter().any(|(change, verdict)| one.is_of(change) && *verdict != Verdict::Survived))
        .collect();
    println!(
        "{:<52} {:>7} {:>6} {:>9} {:>8} {:>8} {:>6}",
        "file", "mutants", "killed", "timed out", "unviable", "survived", "argued"
    );
    let mut sum = [0; 6];
    for (file, counts) in &files {
        print_counts(file, counts);
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    print_counts("all", &sum);
    for one in killed_but_argued {
        println!("xtask mutation: argued, but a test noticed it: {} `{}`", one.file, one.after);
    }
    for change in &survivors {
        println!("survived: {change}");
    }
    if survivors.is_empty() {
        return Ok(());
    }
    let list = argued::path(language);
    bail!("{} mutants survived: add a test that notices them, or argue in {}", survivors.len(), list.display())
}

fn print_counts(name: &str, counts: &[usize; 6]) {
    let [mutants, killed, timed_out, unviable, survived, argued] = counts;
    println!("{name:<52} {mutants:>7} {killed:>6} {timed_out:>9} {unviable:>8} {survived:>8} {argued:>6}");
}
