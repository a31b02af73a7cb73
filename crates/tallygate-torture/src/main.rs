//! `cargo xtask torture` runs this.
#![allow(clippy::disallowed_methods, reason = "it measures real processes, in real time")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tallygate_torture::minimise::minimise;
use tallygate_torture::{Report, Schedule, WorldKind, drill, round, world};

const HELP: &str = "\
usage: torture [options]
       torture drill [NAME] [--seconds N]

  --faults N       stop once N faults were injected (default 100)
  --seed S         the seed of the first round; each round takes the next (default 1)
  --rounds R       stop after so many rounds
  --minutes M      stop after so many minutes
  --until WORDS    stop after a violation with these words
  --only WORLD     standalone, server, cluster, shards or sentinel; by default the seeds take turns
  --per-round N    faults of one round (default 20)
  --keep A,B       only these faults of each round, by their numbers, or none
  --callers N      at most so many callers
  --worlds N       rounds at the same time (default 2)
  --minimise N     rounds to spend on making a failing round smaller (default 8)
  --detail         print what each fault did to its callers
  --print          print the schedules, without running them";

struct Options {
    faults: u64,
    seed: u64,
    rounds: u64,
    minutes: u64,
    until: Option<String>,
    only: Option<WorldKind>,
    per_round: usize,
    keep: Option<Vec<usize>>,
    callers: Option<usize>,
    worlds: u64,
    minimise: usize,
    print: bool,
    detail: bool,
}

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "--help" || word == "-h") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let mut words = std::env::args().skip(1).peekable();
    if words.next_if(|word| word == "drill").is_some() {
        return drills(words);
    }
    let options = match options(words) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    if options.print {
        for seed in options.seed..options.seed + options.rounds.min(5) {
            println!("{:#?}", schedule(&options, seed, world::has_valkey()));
        }
        return ExitCode::SUCCESS;
    }
    let (report, next) = run(&options);
    print!("{report}");
    println!("next            --seed {next}");
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// All drills, or the one that is named. Fails if a bound was broken.
fn drills(mut words: impl Iterator<Item = String>) -> ExitCode {
    let (mut names, mut seconds) = (Vec::new(), None);
    while let Some(word) = words.next() {
        let known = drill::ALL.iter().any(|drill| drill.name == word);
        let number =
            if word == "--seconds" { words.next().and_then(|number| number.parse::<u64>().ok()) } else { None };
        match number {
            Some(number) if (1..=600).contains(&number) => seconds = Some(number),
            None if known => names.push(word),
            _ => {
                eprintln!("usage: drill [NAME] [--seconds N], with N from 1 to 600, and these names:\n");
                drill::ALL.iter().for_each(|drill| eprintln!("  {:<10} {}", drill.name, drill.about));
                return ExitCode::from(2);
            }
        }
    }
    let mut held = true;
    for drill in drill::ALL.iter().filter(|drill| names.is_empty() || names.iter().any(|name| name == drill.name)) {
        eprintln!("drill {}: {} …", drill.name, drill.about);
        let start = Instant::now();
        let sheet = drill.run(seconds);
        println!("drill {}: {}, {} s\n\n{sheet}", drill.name, drill.about, start.elapsed().as_secs());
        held &= sheet.held();
    }
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn options(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        faults: 100,
        seed: 1,
        rounds: u64::MAX,
        minutes: u64::MAX / 60,
        until: None,
        only: None,
        per_round: 20,
        keep: None,
        callers: None,
        worlds: 2,
        minimise: 8,
        print: false,
        detail: false,
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--print" => options.print = true,
            "--detail" => options.detail = true,
            _ => {}
        }
        if matches!(word.as_str(), "--print" | "--detail") {
            continue;
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let number = || value.replace('_', "").parse::<u64>().map_err(|_| format!("{word} {value}: not a number"));
        let size = || number().map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        match word.as_str() {
            "--faults" => options.faults = number()?,
            "--seed" => options.seed = number()?,
            "--rounds" => options.rounds = number()?,
            "--minutes" => options.minutes = number()?,
            "--until" => options.until = Some(value),
            "--per-round" => options.per_round = size()?,
            "--callers" => options.callers = Some(size()?),
            "--worlds" => options.worlds = number()?.max(1),
            "--minimise" => options.minimise = size()?,
            "--keep" if value == "none" => options.keep = Some(Vec::new()),
            "--keep" => {
                let numbers =
                    value.split(',').map(|one| one.parse().map_err(|_| format!("--keep {one}: not a number")));
                options.keep = Some(numbers.collect::<Result<_, _>>()?);
            }
            "--only" => {
                let world = WorldKind::ALL.into_iter().find(|world| world.name() == value);
                options.only = Some(world.ok_or_else(|| format!("--only {value}: unknown world"))?);
            }
            _ => return Err(format!("unknown option `{word}`")),
        }
    }
    Ok(options)
}

fn schedule(options: &Options, seed: u64, valkey: bool) -> Schedule {
    let turn = usize::try_from(seed % WorldKind::ALL.len() as u64).unwrap_or(0);
    let world = options.only.unwrap_or(WorldKind::ALL[turn]);
    let schedule = Schedule::new(seed, world, options.per_round, valkey);
    let all: Vec<usize> = (0..options.per_round).collect();
    let keep = options.keep.as_ref().unwrap_or(&all);
    schedule.reduced(keep, options.callers.unwrap_or(usize::MAX))
}

fn is_done(options: &Options, report: &Report) -> bool {
    let found = |words: &String| report.violations.iter().any(|violation| violation.contains(words));
    report.injected() >= options.faults || options.until.as_ref().is_some_and(found)
}

fn run(options: &Options) -> (Report, u64) {
    let valkey = world::has_valkey();
    let (report, next, start) = (Mutex::new(Report::default()), AtomicU64::new(options.seed), Instant::now());
    let until = start + Duration::from_secs(options.minutes.min(100_000) * 60);
    thread::scope(|scope| {
        for _ in 0..options.worlds {
            scope.spawn(|| {
                loop {
                    if is_done(options, &report.lock().expect("no round panicked")) || Instant::now() > until {
                        return;
                    }
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed - options.seed >= options.rounds {
                        next.fetch_sub(1, Ordering::Relaxed);
                        return;
                    }
                    let schedule = schedule(options, seed, valkey);
                    let outcome = round::run(&schedule);
                    if options.detail {
                        let lines: Vec<String> = outcome.details.iter().map(|detail| format!("  {detail}\n")).collect();
                        print!("seed {seed} {}\n{}", schedule.world.name(), lines.concat());
                    }
                    let violations = &outcome.checked.violations;
                    let mut commands: BTreeMap<&str, String> = BTreeMap::new();
                    for violation in violations {
                        eprintln!("VIOLATION seed {seed} {}: {}", schedule.world.name(), violation.what);
                        commands.entry(violation.check).or_insert_with(|| {
                            minimise(&schedule, violation, options.minimise).command(options.per_round)
                        });
                    }
                    let mut report = report.lock().expect("no round panicked");
                    report.add(&schedule, &outcome, |violation| commands[violation.check].clone());
                    eprintln!(
                        "{:>5} s  seed {seed} {} {:?}: {} faults, {} calls, {} violations ({} of {} faults)",
                        start.elapsed().as_secs(),
                        schedule.world.name(),
                        schedule.flavour,
                        schedule.steps.len(),
                        outcome.calls,
                        violations.len(),
                        report.injected(),
                        options.faults
                    );
                }
            });
        }
    });
    (report.into_inner().expect("no round panicked"), next.into_inner())
}
