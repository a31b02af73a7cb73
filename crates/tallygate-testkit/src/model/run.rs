//! Many stories, on several threads.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tallygate::Algorithm;

use super::story::{Difference, Seen, Story};

/// How much is compared, and from which seed on.
#[derive(Debug, Clone)]
pub struct Run {
    /// Decisions in all, divided evenly among the algorithms.
    pub decisions: u64,
    /// The seed of the first story of each algorithm; the others follow.
    pub seed: u64,
    /// What is compared.
    pub algorithms: Vec<Algorithm>,
    /// Stories at one time.
    pub threads: usize,
    /// Whether to print how far it is.
    pub progress: bool,
}

/// What was compared, and what differed.
#[derive(Debug, Default)]
pub struct Report {
    /// In the order of the algorithms.
    pub seen: Vec<(Algorithm, Seen)>,
    /// At most [`Report::MOST`] for each algorithm, after which its stories end.
    pub differences: Vec<Difference>,
}

const PROGRESS: Duration = Duration::from_secs(5);

impl Report {
    /// The differences after which an algorithm is given up.
    pub const MOST: usize = 5;
}

impl Run {
    /// Compares until every algorithm has had its share.
    pub fn run(&self) -> Report {
        let mut report = Report::default();
        let share = self.decisions.div_ceil(self.algorithms.len() as u64);
        for &algorithm in &self.algorithms {
            let (next, totals) = (AtomicU64::new(self.seed), Mutex::new((Seen::default(), Vec::new(), Instant::now())));
            std::thread::scope(|scope| {
                for _ in 0..self.threads.max(1) {
                    scope.spawn(|| self.work(algorithm, share, &next, &totals));
                }
            });
            let (seen, differences, _) = totals.into_inner().expect("no thread panicked");
            report.seen.push((algorithm, seen));
            report.differences.extend(differences);
        }
        report
    }

    fn work(
        &self,
        algorithm: Algorithm,
        share: u64,
        next: &AtomicU64,
        totals: &Mutex<(Seen, Vec<Difference>, Instant)>,
    ) {
        loop {
            let story = Story::new(algorithm, next.fetch_add(1, Ordering::Relaxed)).compare_product();
            let mut totals = totals.lock().expect("no thread panicked");
            let (seen, differences, printed) = &mut *totals;
            match story {
                Ok(story) => *seen += story,
                Err(difference) => differences.push(*difference),
            }
            if self.progress && printed.elapsed() > PROGRESS {
                *printed = Instant::now();
                println!("{algorithm}: {} of {share} decisions, {} differences", seen.decisions, differences.len());
            }
            if seen.decisions >= share || differences.len() >= Report::MOST {
                return;
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = Seen::default();
        for (algorithm, seen) in &self.seen {
            all += *seen;
            writeln!(f, "{algorithm}: {seen}")?;
        }
        write!(f, "in all: {all}, {} differences", self.differences.len())?;
        for difference in &self.differences {
            write!(f, "\n\n{difference}\n    again: cargo xtask model --decisions 1")?;
            write!(f, " --algorithm {} --seed {}", difference.algorithm, difference.seed)?;
        }
        Ok(())
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { decisions, denied, refunded, changed, back } = self;
        write!(
            f,
            "{decisions} decisions, {denied} denied, {refunded} refunds, {changed} changed limits, {back} steps back"
        )
    }
}
