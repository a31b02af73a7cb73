//! Decisions in this process: Tallygate's memory store beside the embedded limiters of others.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Result, ensure};
use tallygate::Algorithm;

use crate::Effort;
use crate::memory;
use crate::rivals::{Decide, Quota, Rival};
use crate::table::{Samples, render, times};
use crate::traffic;

const MANY: usize = 100_000;
const MOST: usize = 1_000_000;
/// How many different calls there are to many keys, and how many of them are made in a turn: short turns and many of them,
/// so that what disturbs the machine meets everybody.
const POOL: usize = 1_000_000;
const TURN: usize = 200_000;

/// One question put to every contender.
struct Scenario {
    title: &'static str,
    quota: Quota,
    keys: usize,
    /// What each of two threads calls; one thread alone calls the first.
    calls: [Vec<String>; 2],
    /// How often in a round they call it all.
    repeat: usize,
}

/// What the contenders got in one scenario, in the order of [`Rival::ALL`].
struct Measured {
    title: &'static str,
    one: Vec<Samples>,
    two: Vec<Samples>,
}

pub fn run(effort: &Effort) -> Result<()> {
    let hot = |title, quota| {
        let calls = [1, 2].map(|_| traffic::subjects(&traffic::hot(1000)));
        Scenario { title, quota, keys: 1, calls, repeat: 200 }
    };
    let many = |title, keys, calls: &dyn Fn(u64) -> Vec<u32>| {
        let calls = [11, 12].map(|seed| traffic::subjects(&calls(seed)));
        Scenario { title, quota: Quota::Ample, keys, calls, repeat: 1 }
    };
    let measured = [
        measure(&hot("one hot key", Quota::Ample), effort)?,
        measure(&hot("one hot key, denied", Quota::Tiny), effort)?,
        measure(&many("100k keys, uniform", MANY, &|seed| traffic::uniform(MANY, POOL, seed)), effort)?,
        measure(&many("1M keys, zipf(1.0)", MOST, &|seed| traffic::zipf(MOST, POOL, seed)), effort)?,
    ];
    let bytes = measure_memory(effort)?;
    report(effort, &measured, &bytes);
    Ok(())
}

fn measure(scenario: &Scenario, effort: &Effort) -> Result<Measured> {
    eprintln!("{} …", scenario.title);
    let everybody = traffic::subjects(&traffic::shuffled(scenario.keys));
    let asked = |rival: Rival| {
        let too_slow = rival == Rival::Limitador && scenario.keys == MOST && effort.quick;
        (rival.has_keys() || rival == Rival::Nothing || scenario.keys == 1) && !too_slow
    };
    let mut limiters: Vec<Option<Decide>> = Vec::new();
    for rival in Rival::ALL {
        let built = if asked(rival) { Some(rival.build(scenario.quota, scenario.keys)?) } else { None };
        // Every key is live before the first round, and the tables have grown.
        if let Some(decide) = &built {
            decide(&everybody);
        }
        limiters.push(built);
    }
    let nobody = vec![Samples::default(); Rival::ALL.len()];
    let mut measured = Measured { title: scenario.title, one: nobody.clone(), two: nobody };
    for round in 0..=effort.rounds {
        for (index, rival) in Rival::ALL.into_iter().enumerate() {
            let Some(decide) = &limiters[index] else { continue };
            let repeat = ((scenario.repeat as f64 * rival.share()) as usize).max(1);
            let stretches = scenario.calls.each_ref().map(|calls| {
                if scenario.repeat > 1 {
                    return &calls[..];
                }
                let length = (TURN as f64 * rival.share()) as usize;
                // Another stretch each round, or all rounds would meet the same keys.
                let from = (round * TURN) % (calls.len() - length + 1);
                &calls[from..from + length]
            });
            let calls = stretches[0].len() * repeat;
            let decide_all = |stretch: &[String]| (0..repeat).map(|_| decide(stretch)).sum::<u64>();
            let check = |allowed: u64, calls: usize| {
                let all = scenario.quota == Quota::Ample || rival == Rival::Nothing;
                let expected = if all { calls as u64 } else { 0 };
                ensure!(allowed == expected || round == 0, "{}: {allowed} of {calls} allowed", rival.name());
                Ok(())
            };
            let start = Instant::now();
            let allowed = decide_all(stretches[0]);
            let one = start.elapsed().as_nanos() as f64 / calls as f64;
            check(allowed, calls)?;
            let (allowed, seconds) = two_threads(&decide_all, stretches);
            check(allowed, calls * 2)?;
            // The first round warms up.
            if round > 0 {
                measured.one[index].push(one);
                measured.two[index].push((calls * 2) as f64 / seconds / 1e6);
            }
        }
    }
    Ok(measured)
}

/// How many were allowed, and the seconds from the common start to the end of the later thread.
fn two_threads(decide: &(dyn Fn(&[String]) -> u64 + Sync), calls: [&[String]; 2]) -> (u64, f64) {
    let barrier = Barrier::new(2);
    let threads = std::thread::scope(|scope| {
        let spawned = calls.map(|calls| {
            scope.spawn(|| {
                barrier.wait();
                let start = Instant::now();
                let count = decide(calls);
                (count, start, Instant::now())
            })
        });
        spawned.map(|thread| thread.join().expect("a measuring thread does not panic"))
    });
    let [(count_a, start_a, end_a), (count_b, start_b, end_b)] = threads;
    (count_a + count_b, (end_a.max(end_b) - start_a.min(start_b)).as_secs_f64())
}

fn measure_memory(effort: &Effort) -> Result<Vec<Samples>> {
    eprintln!("memory …");
    let mut bytes = vec![Samples::default(); Rival::ALL.len()];
    for _ in 0..if effort.quick { 1 } else { 3 } {
        for (index, rival) in Rival::ALL.into_iter().enumerate() {
            let main =
                matches!(rival, Rival::BASELINE | Rival::Throttlecrab | Rival::Tallygate(Algorithm::TokenBucket));
            if main || (rival.has_keys() && !effort.quick) {
                bytes[index].push(memory::bytes_per_key(index, MOST)?);
            }
        }
    }
    Ok(bytes)
}

fn report(effort: &Effort, measured: &[Measured], bytes: &[Samples]) {
    let baseline = Rival::ALL.iter().position(|&rival| rival == Rival::BASELINE).unwrap_or(0);
    println!("### One thread: ns per decision, and the ratio to governor keyed (below 1 is faster)\n");
    let mut header = vec!["limiter"];
    header.extend(measured.iter().flat_map(|scenario| [scenario.title, "×"]));
    let rows = Rival::ALL.into_iter().enumerate().map(|(index, rival)| {
        let mut row = vec![rival.name()];
        for scenario in measured {
            row.push(scenario.one[index].spread(0));
            row.push(times(scenario.one[index].ratio_to(&scenario.one[baseline])));
        }
        row
    });
    println!("{}", render(&header, &rows.collect::<Vec<_>>()));

    println!("### Two threads: million decisions per second (the ratio above 1 is faster), and memory\n");
    header.push("bytes per key");
    let rows = Rival::ALL.into_iter().enumerate().map(|(index, rival)| {
        let mut row = vec![rival.name()];
        for scenario in measured {
            row.push(scenario.two[index].spread(1));
            row.push(times(scenario.two[index].ratio_to(&scenario.two[baseline])));
        }
        row.push(bytes[index].median().map_or("–".to_owned(), |bytes| format!("{bytes:.0}")));
        row
    });
    println!("{}", render(&header, &rows.collect::<Vec<_>>()));
    println!("{}\n", NOTES.trim());
    println!("Medians of {} rounds [least–most]; a ratio is the median of the rounds' ratios.", effort.rounds);
}

const NOTES: &str = "
What each was asked:
- The same prebuilt strings `user:00000000000`, … in the same order; cost 1; whole answers are materialised. What reading them
  costs is the row of the loop alone.
- Limit: two million a year with a burst of a hundred million, so that all is allowed and no state expires meanwhile; denied:
  one an hour, ten at once. Windows hold 10^9 a day; the log of the hot key 10^9 per 10 ms. Every key is live before the first round.
- governor 0.10.4: `check_key`, default DashMap and clock. Answers allowed, or the time of the next try; nothing about what
  remains. Keys stay until the user calls `retain_recent`, which was not called.
- governor telling what remains: the same with its `StateInformationMiddleware`, which answers what remains, but no reset.
- governor direct: one limiter without a key. A lower bound for one hot key, not a rival for many.
- throttlecrab 0.4.40: `PeriodicStore` with the capacity given ahead; its limiter is `&mut`, so it sits in a `std` Mutex.
  Answers remaining, retry and reset; sweeps all keys at once every minute.
- limitador 0.14.0: `check_rate_limited_and_update` with one limit and one variable, its `Context` built for each call as it
  must be; 3 % of the operations. Answers the counters with what remains.
- tallygate: `Key::new` and `Limiter::check_now` for each call. Answers remaining, retry, reset and the time; sweeps a few
  buckets as it goes.
- Bytes per key: growth of the resident set in a fresh process that makes a million keys live, divided by the keys; for those
  who keep the key it includes their copy of its 16 bytes.
";
