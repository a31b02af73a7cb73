//! Workers that share a third party's quota.

use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tallygate_testkit::http::Response;
use tallygate_testkit::{Server, Upstream};
use tokio::time::Instant;

use super::process::program;

#[test]
fn three_workers_keep_one_quota() {
    let redis = Server::redis().start();
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let third_party = Upstream::answering({
        let arrivals = Arc::clone(&arrivals);
        move |_| {
            arrivals.lock().unwrap().push(Instant::now());
            Response::new(200, "done")
        }
    });
    let url = format!("http://{}/", third_party.addr());
    let started = Instant::now();
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let mut worker = Command::new(program("outbound"));
            worker.args([&url, "15"]).env("TALLYGATE_STORE", redis.url()).stdout(Stdio::piped());
            worker.spawn().unwrap()
        })
        .collect();
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && said.ends_with("call 15: 200 OK\n"), "{said}");
    }
    let mut arrivals = std::mem::take(&mut *arrivals.lock().unwrap());
    arrivals.sort_unstable();
    assert_eq!(arrivals.len(), 45);
    // `20/s burst 5`: the n-th call beyond the burst has to wait for n twentieths of a second, in whichever process.
    for (beyond, arrival) in (1_u32..).zip(&arrivals[5..]) {
        let due = Duration::from_millis(50) * beyond;
        assert!(arrival.duration_since(started) >= due, "{beyond}: {:?} < {due:?}", arrival.duration_since(started));
    }
}
