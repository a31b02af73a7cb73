//! The faults, and how they are drawn.

use std::fmt;
use std::time::Duration;

use tallygate_testkit::Mode;
use tallygate_testkit::random::Random;

use crate::schedule::WorldKind;

/// One fault. Durations are in milliseconds; a node is an index into the servers that hold states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "ADR 0028 says what each declares")]
pub enum Fault {
    Stop {
        node: usize,
        millis: u64,
    },
    Kill {
        node: usize,
        millis: u64,
    },
    ScriptFlush {
        node: usize,
    },
    FlushAll {
        node: usize,
    },
    ClientKill {
        node: usize,
    },
    ClientPause {
        node: usize,
        millis: u64,
    },
    OutOfMemory {
        node: usize,
        millis: u64,
    },
    EvictionFlood {
        node: usize,
    },
    Busy {
        node: usize,
        millis: u64,
    },
    Acl {
        node: usize,
        millis: u64,
    },
    Clock {
        node: usize,
        micros: i64,
    },
    ReplicaCut {
        node: usize,
    },
    Proxy {
        mode: Mode,
        millis: u64,
    },
    SentinelFailover,
    SentinelKill,
    SentinelStop {
        millis: u64,
    },
    ClusterFailover {
        node: usize,
        takeover: bool,
    },
    ClusterKill {
        node: usize,
    },
    SlotMoves {
        count: u64,
    },
    /// A master without replica is dead for a while; `skewed` sends nearly all calls to its keys.
    DeadShard {
        node: usize,
        millis: u64,
        skewed: bool,
    },
    ServerStop {
        millis: u64,
    },
    Flood {
        connections: u64,
        millis: u64,
    },
    SlowBodies {
        connections: u64,
    },
    ManyChecks {
        count: u64,
    },
    /// The server waits for a store that is far away, with many policies in each call.
    FarStore {
        millis: u64,
    },
    /// Callers over their own limit hang up at every point.
    HangUps {
        calls: u64,
    },
}

impl Fault {
    /// A fault of this world: the `number`th of its round.
    pub fn draw(random: &mut Random, world: WorldKind, number: usize) -> Self {
        draw(random, world, number)
    }

    /// A fault of the network at the same time, now and then, where there is a proxy.
    pub fn beside(&self, random: &mut Random, world: WorldKind) -> Option<Self> {
        let proxied = matches!(world, WorldKind::Standalone | WorldKind::Server);
        let at_the_server = matches!(
            self,
            Self::Stop { .. }
                | Self::Kill { .. }
                | Self::ScriptFlush { .. }
                | Self::ClientKill { .. }
                | Self::ClientPause { .. }
                | Self::OutOfMemory { .. }
                | Self::Busy { .. }
                | Self::Acl { .. }
                | Self::ServerStop { .. }
        );
        (proxied && at_the_server && random.chance(30)).then(|| proxy_fault(random))
    }

    /// The kind, for counting.
    #[must_use]
    pub fn kind(&self) -> String {
        match self {
            Self::Proxy { mode, .. } => {
                let name = format!("{mode:?}");
                format!("proxy {}", name.split('(').next().unwrap_or_default())
            }
            Self::ClusterFailover { takeover: true, .. } => "ClusterTakeover".to_owned(),
            Self::Clock { micros, .. } => if *micros < 0 { "clock back" } else { "clock forward" }.to_owned(),
            other => {
                let name = format!("{other:?}");
                name.split(' ').next().unwrap_or_default().to_owned()
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

fn draw(random: &mut Random, world: WorldKind, number: usize) -> Fault {
    match world {
        WorldKind::Standalone => store_fault(random),
        WorldKind::Server => match random.between(0, 19) {
            0..=7 => store_fault(random),
            8 => Fault::HangUps { calls: random.between(50, 200) },
            9..=11 => Fault::ServerStop { millis: random.spread(20, 600) },
            12..=13 => {
                Fault::Flood { connections: random.pick(&[256, 512, 1024, 3000]), millis: random.between(600, 1200) }
            }
            14..=15 => Fault::SlowBodies { connections: random.between(50, 300) },
            16..=17 => Fault::ManyChecks { count: random.between(33, 40) },
            _ => Fault::FarStore { millis: random.between(10, 13) },
        },
        WorldKind::Sentinel => match random.between(0, 9) {
            // A failover needs time to settle: most faults are short.
            _ if number % 6 == 5 => match random.between(0, 2) {
                0 => Fault::SentinelKill,
                1 => Fault::SentinelStop { millis: random.between(2500, 4000) },
                _ => Fault::SentinelFailover,
            },
            0..=1 => Fault::Stop { node: 0, millis: random.spread(20, 500) },
            2..=3 => Fault::ScriptFlush { node: 0 },
            4..=5 => Fault::ClientKill { node: 0 },
            6 => Fault::ClientPause { node: 0, millis: random.spread(20, 500) },
            7 => Fault::ReplicaCut { node: 0 },
            8 => Fault::Busy { node: 0, millis: random.spread(50, 400) },
            _ => Fault::OutOfMemory { node: 0, millis: random.spread(50, 500) },
        },
        WorldKind::Cluster => {
            let node = usize::try_from(random.between(0, 2)).expect("one of three");
            match random.between(0, 9) {
                _ if number % 10 == 9 => match random.between(0, 2) {
                    0 => Fault::ClusterKill { node },
                    1 => Fault::ClusterFailover { node, takeover: true },
                    _ => Fault::ClusterFailover { node, takeover: false },
                },
                0..=1 => Fault::SlotMoves { count: random.between(1, 4) },
                2 => Fault::ScriptFlush { node },
                3 => Fault::ClientKill { node },
                4 => Fault::ClientPause { node, millis: random.spread(20, 400) },
                5 => Fault::Stop { node, millis: random.spread(20, 500) },
                6 => Fault::Busy { node, millis: random.spread(50, 300) },
                7 => Fault::OutOfMemory { node, millis: random.spread(50, 500) },
                _ => Fault::HangUps { calls: random.between(50, 200) },
            }
        }
        WorldKind::Shards => {
            let node = usize::try_from(random.between(0, 2)).expect("one of three");
            match random.between(0, 9) {
                0..=3 => Fault::DeadShard { node, millis: random.between(800, 2000), skewed: random.chance(50) },
                4 => Fault::Stop { node, millis: random.spread(50, 800) },
                5 => Fault::ServerStop { millis: random.spread(20, 400) },
                6 => Fault::ScriptFlush { node },
                7 => Fault::ClientKill { node },
                _ => Fault::HangUps { calls: random.between(50, 200) },
            }
        }
    }
}

fn store_fault(random: &mut Random) -> Fault {
    let node = 0;
    let millis = random.spread(20, 600);
    match random.between(0, 24) {
        0..=1 => Fault::Stop { node, millis },
        2..=3 => Fault::Kill { node, millis: random.spread(1, 300) },
        4 => Fault::ScriptFlush { node },
        5 => Fault::FlushAll { node },
        6 => Fault::ClientKill { node },
        7 => Fault::ClientPause { node, millis },
        8 => Fault::OutOfMemory { node, millis },
        9 => Fault::EvictionFlood { node },
        10 => Fault::Busy { node, millis },
        11 => Fault::Acl { node, millis },
        12..=14 => {
            let size = i64::try_from(random.spread(1000, 3_600_000_000)).expect("an hour fits");
            Fault::Clock { node, micros: if random.chance(50) { size } else { -size } }
        }
        _ => proxy_fault(random),
    }
}

fn proxy_fault(random: &mut Random) -> Fault {
    let mode = match random.between(0, 9) {
        0..=2 => Mode::Delay(Duration::from_millis(random.spread(1, 200))),
        3..=4 => Mode::CutAfter(usize::try_from(random.spread(1, 400)).expect("small")),
        5 => Mode::BlackHole,
        6 => Mode::DropReplies,
        7 => Mode::Trickle,
        _ => Mode::Reset,
    };
    Fault::Proxy { mode, millis: random.spread(20, 600) }
}
