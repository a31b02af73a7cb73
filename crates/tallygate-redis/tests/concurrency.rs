//! Many processes and one limit: together they get exactly the limit.

mod worker;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use tallygate::clock::Timestamp;
use tallygate::history::Record;
use tallygate::{Algorithm, Limit};
use tallygate_testkit::{Cluster, Flavour, Server, valkey_available};

use crate::support::{every_key_expires, flavours, patient, replays, used, within_bound, yearly};

/// Per process and job.
const TASKS: u64 = 32;
/// Per task.
const CALLS: u64 = 80;

/// The number of checks in a call, and its answer, as the worker writes them.
fn read(line: &str) -> (u64, Record) {
    let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
    let [checks, at, cost, allowed, remaining, retry, reset] = numbers[..] else { panic!("{line}") };
    let record = Record {
        remaining: Some(remaining),
        retry_after: Some(Duration::from_micros(retry)),
        reset_after: Some(Duration::from_micros(reset)),
        ..Record::bare(Timestamp::from_micros(at), cost, allowed == 1)
    };
    (checks, record)
}

/// Two processes on one store. Each runs this test program with one test selected, which is a [`worker`] there.
struct Workers(Vec<(Child, ChildStdin, BufReader<ChildStdout>)>);

impl Workers {
    fn start(url: &str) -> Self {
        let start = || {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "concurrency::two_processes_admit_exactly_the_limit"])
                .env(worker::URL, url)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
            let mut output = BufReader::new(output);
            lines_until(&mut output, "ready");
            (child, input, output)
        };
        Self(vec![start(), start()])
    }

    /// Runs the job in all of them at once, and collects the answers to all calls.
    fn run(&mut self, job: &str) -> Vec<(u64, Record)> {
        for (_, input, _) in &mut self.0 {
            writeln!(input, "{job}").unwrap();
        }
        let outputs = self.0.iter_mut().map(|(_, _, output)| lines_until(output, "done"));
        let said: Vec<String> = outputs.flatten().collect();
        assert_eq!(said.len() as u64, 2 * TASKS * CALLS, "{job}: a worker failed");
        said.iter().map(|line| read(line)).collect()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for (mut child, input, _) in self.0.drain(..) {
            drop(input);
            let ended = child.wait().unwrap();
            assert!(ended.success() || std::thread::panicking(), "a worker failed: {ended}");
        }
    }
}

fn lines_until(output: &mut impl BufRead, last: &str) -> Vec<String> {
    output.lines().map(Result::unwrap).take_while(|line| line != last).collect()
}

/// Every algorithm with a window that does not end during the test, and with one that ends many times; then two limits
/// at once.
async fn exactly_the_limit(url: &str) {
    let mut workers = Workers::start(url);
    for &algorithm in Algorithm::OVER_TIME {
        let whole = yearly(algorithm, 2000);
        let records: Vec<Record> =
            workers.run(&format!("{algorithm}|{whole}")).into_iter().map(|(_, record)| record).collect();
        replays(&whole, &records);
        let admitted = records.iter().filter(|record| record.allowed).count();
        assert_eq!(admitted, 2000, "{whole}");

        let short = Limit::builder(150, Duration::from_millis(100)).algorithm(algorithm).build().unwrap();
        let records: Vec<Record> =
            workers.run(&format!("{algorithm}-short|{short}")).into_iter().map(|(_, record)| record).collect();
        replays(&short, &records);
    }
    all_or_none(url, &mut workers).await;
}

/// Half the callers need both limits, half only the second: a denied call charges nothing.
async fn all_or_none(url: &str, workers: &mut Workers) {
    for (first, second) in
        [(Algorithm::TokenBucket, Algorithm::SlidingLog), (Algorithm::SlidingWindow, Algorithm::FixedWindow)]
    {
        let limits = [yearly(first, 300), yearly(second, 900)];
        let subject = format!("both {first}");
        let answers = workers.run(&format!("{subject}|{}|{}", limits[0], limits[1]));
        let admitted = |checks: u64| -> Vec<Record> {
            let all = answers.iter().filter(|(asked, record)| *asked >= checks && record.allowed);
            all.map(|(_, record)| record.clone()).collect()
        };
        for ((policy, limit), checks) in ["first", "second"].iter().zip(&limits).zip([2, 1]) {
            let admitted = admitted(checks);
            within_bound(limit, &admitted);
            let used = used(&patient(url).await, policy, subject.as_bytes(), limit).await;
            assert_eq!(admitted.len() as u64, used, "{policy} of {limit}: charged is what was admitted");
        }
        // Both were in more demand than available, so at least one of them is used up.
        assert!(admitted(1).len() == 900 || admitted(2).len() == 300);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_admit_exactly_the_limit() {
    if let Ok(url) = std::env::var(worker::URL) {
        return worker::run(&url).await;
    }
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        exactly_the_limit(&server.url()).await;
        assert!(every_key_expires(&server) > 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_admit_exactly_the_limit_on_a_cluster() {
    let flavour = if valkey_available() { Flavour::Valkey } else { Flavour::Redis };
    let cluster = Cluster::start(flavour, 3, 0);
    exactly_the_limit(&cluster.url()).await;
    let keys: usize = cluster.nodes().iter().map(every_key_expires).sum();
    assert!(keys > 0);
}
