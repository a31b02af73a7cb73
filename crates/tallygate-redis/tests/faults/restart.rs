//! A server that is killed and comes back, empty or with its data.

use std::time::Duration;

use tallygate::history::Record;
use tallygate::{Algorithm, Limit};
use tallygate_testkit::Server;

use crate::support::{
    Load, RedisLimiter, every_key_expires, flavours, patient, used, wall_micros, within, within_bound, yearly,
};

const RESTARTS: u64 = 3;
const AMOUNT: u64 = 300;

fn loads(limiter: &RedisLimiter) -> Vec<(Limit, Load)> {
    let load = |&algorithm: &Algorithm| {
        let limit = yearly(algorithm, AMOUNT);
        let load = Load::start(limiter, &limit, "restarted", algorithm.name(), 3);
        (limit, load)
    };
    Algorithm::OVER_TIME.iter().map(load).collect()
}

/// Kills and restarts the server under load. Returns the instants between.
async fn restarts(server: &Server, loads: &[(Limit, Load)]) -> Vec<u64> {
    let mut deaths = Vec::new();
    for restart in 0..=RESTARTS {
        for (_, load) in loads {
            load.serves(50).await;
        }
        every_key_expires(server);
        if restart < RESTARTS {
            server.kill();
            deaths.push(wall_micros());
            server.restart();
        }
    }
    deaths
}

/// Each loss of all states admits at most one more limit per key, and clients recover on their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_restart_admits_one_more_limit_at_most() {
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        let limiter = within(&server.url(), Duration::from_millis(250)).await;
        let loads = loads(&limiter);
        let deaths = restarts(&server, &loads).await;
        for (limit, load) in loads {
            let answers = load.finish().await;
            answers.only_outages();
            let life = |record: &Record| deaths.iter().filter(|death| record.decided_at.as_micros() > **death).count();
            for lived in 0..=deaths.len() {
                let records: Vec<Record> =
                    answers.records.iter().filter(|record| life(record) == lived).cloned().collect();
                within_bound(&limit, &records);
                assert!(records.iter().any(|record| record.allowed), "{limit}: an empty server admits");
            }
            assert!(answers.allowed() <= AMOUNT * (1 + RESTARTS));
        }
    }
}

/// Every answer was written first: with an append-only file a crash loses no charge.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_from_the_append_only_file_loses_nothing() {
    for flavour in flavours() {
        let server = Server::of(flavour).arg("--appendonly", "yes").arg("--appendfsync", "always").start();
        let limiter = within(&server.url(), Duration::from_millis(500)).await;
        let loads = loads(&limiter);
        restarts(&server, &loads).await;
        let judge = patient(&server.url()).await;
        for (limit, load) in loads {
            let answers = load.finish().await;
            answers.only_outages();
            within_bound(&limit, &answers.records);
            let used = used(&judge, "restarted", limit.algorithm().name().as_bytes(), &limit).await;
            assert!(used >= answers.allowed() && used <= answers.allowed() + answers.ambiguous(), "{limit}: {used}");
        }
    }
}
