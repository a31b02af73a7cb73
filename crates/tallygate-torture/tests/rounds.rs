//! A fixed round of each world: a few hundred faults within four minutes, and no violation.

use tallygate_torture::{Report, Schedule, WorldKind, round, world};

fn run(kind: WorldKind, seeds: std::ops::Range<u64>, faults: usize) {
    let mut report = Report::default();
    for seed in seeds {
        let schedule = Schedule::new(seed, kind, faults, world::has_valkey());
        let outcome = round::run(&schedule);
        report.add(&schedule, &outcome, |_| schedule.command(faults));
    }
    println!("{report}");
    assert!(report.violations.is_empty(), "{report}");
    assert!(report.exact > 0 && report.injected() > 0, "{report}");
}

#[test]
fn one_server_through_the_library() {
    run(WorldKind::Standalone, 1..5, 20);
}

#[test]
fn a_cluster_through_the_library() {
    run(WorldKind::Cluster, 1..3, 20);
}

#[test]
fn sentinels_through_the_library() {
    run(WorldKind::Sentinel, 3..4, 14);
}

#[test]
fn one_server_through_a_server_process() {
    run(WorldKind::Server, 1..4, 20);
}

#[test]
fn shards_that_die_through_a_server_process() {
    run(WorldKind::Shards, 1..2, 12);
}
