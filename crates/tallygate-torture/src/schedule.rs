//! What a round does: a world, a load and a list of faults, all of it chosen by a seed.

use std::time::Duration;

use tallygate::{Algorithm, Limit};
use tallygate_testkit::Flavour;
use tallygate_testkit::random::Random;

use crate::fault::Fault;

/// What a round runs against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorldKind {
    /// One Redis or Valkey behind the fault proxy, called through the library.
    Standalone,
    /// A master, a replica and three Sentinels, called through the library.
    Sentinel,
    /// Three masters with a replica each, called through the library.
    Cluster,
    /// One Redis or Valkey behind the fault proxy, called through a server process.
    Server,
    /// Three masters without replicas, called through a server process: a dead shard stays dead.
    Shards,
}

impl WorldKind {
    /// All of them, in the order in which rounds take turns.
    pub const ALL: [Self; 5] = [Self::Standalone, Self::Server, Self::Cluster, Self::Shards, Self::Sentinel];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Standalone => "standalone",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
            Self::Server => "server",
            Self::Shards => "shards",
        }
    }

    /// Whether calls go through a server process.
    #[must_use]
    pub fn is_served(self) -> bool {
        matches!(self, Self::Server | Self::Shards)
    }

    /// Whether states are in several slots.
    #[must_use]
    pub fn is_cluster(self) -> bool {
        matches!(self, Self::Cluster | Self::Shards)
    }
}

/// What survives a kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing.
    None,
    /// Everything: the append-only file is written before the reply.
    Aof,
    /// What was there at the last snapshot.
    Rdb,
}

/// A fault and the quiet before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Its number in the schedule as drawn, which `--keep` names.
    pub number: usize,
    /// Milliseconds without a fault.
    pub quiet: u64,
    /// Then this.
    pub fault: Fault,
    /// And this at the same time.
    pub beside: Option<Fault>,
}

/// The calls of a round.
#[derive(Debug, Clone)]
pub struct Load {
    /// Concurrent callers.
    pub callers: usize,
    /// Clients: stores of the library, or connections of each caller to the server.
    pub clients: usize,
    /// The limit of each policy.
    pub limits: Vec<Limit>,
    /// How many subjects there are.
    pub subjects: usize,
    /// The most policies of one call.
    pub policies_per_call: u64,
    /// The most subjects of one call.
    pub subjects_per_call: u64,
    /// The most units of one call.
    pub cost: u64,
    /// The share of calls that are dropped, in percent.
    pub hang_up: u64,
    /// The longest pause of a caller, in microseconds.
    pub pause: u64,
    /// The deadline of the store.
    pub deadline: Duration,
}

/// A round.
#[derive(Debug, Clone)]
pub struct Schedule {
    /// It chose everything below.
    pub seed: u64,
    /// Where.
    pub world: WorldKind,
    /// Redis or Valkey.
    pub flavour: Flavour,
    /// Of a standalone server.
    pub persistence: Persistence,
    /// Whether `min-replicas-to-write` is 1, where there are replicas.
    pub min_replicas: bool,
    /// Replicas of each master, where there are any.
    pub replicas: usize,
    /// Whether calls go through a server process.
    pub served: bool,
    /// Whether the fault proxy is in front of a single server.
    pub proxied: bool,
    /// The calls.
    pub load: Load,
    /// The faults, one after the other.
    pub steps: Vec<Step>,
    /// Milliseconds of load after the last fault.
    pub tail: u64,
}

/// The last policy: one unit in an hour. Its only subject has taken it before the round begins.
pub const SPENT: &str = "spent";

impl Schedule {
    /// The schedule of a seed, with about `faults` faults.
    #[must_use]
    pub fn new(seed: u64, world: WorldKind, faults: usize, valkey: bool) -> Self {
        let mut random = Random::new(seed ^ (world as u64 + 1).wrapping_mul(0x9E37_79B9_97F4_A7C1));
        let flavour = if valkey && random.chance(40) { Flavour::Valkey } else { Flavour::Redis };
        let persistence = random.pick(&[Persistence::None, Persistence::Aof, Persistence::Rdb]);
        let min_replicas = random.chance(50);
        // Failovers are met by the library more often than by a server: its callers see more of them.
        let fails_over = matches!(world, WorldKind::Sentinel | WorldKind::Cluster);
        let served = world.is_served() || fails_over && random.chance(40);
        let load = Load::new(&mut random, served);
        let steps = (0..faults).map(|number| {
            let (quiet, fault) = (random.between(50, 250), Fault::draw(&mut random, world, number));
            Step { number, quiet, fault, beside: fault.beside(&mut random, world) }
        });
        let steps = steps.collect();
        // The load alone is a round too.
        let tail = if faults == 0 { 2000 } else { 200 };
        // A promoted master has one replica less. With none it would refuse every charge, until the old master is back.
        let replicas = if min_replicas && world == WorldKind::Sentinel { 2 } else { 1 };
        Self { seed, world, flavour, persistence, min_replicas, replicas, served, proxied: true, load, steps, tail }
    }

    /// Only the steps of these numbers, and at most so many callers.
    #[must_use]
    pub fn reduced(&self, keep: &[usize], callers: usize) -> Self {
        let mut reduced = self.clone();
        reduced.steps.retain(|step| keep.contains(&step.number));
        reduced.tail = if reduced.steps.is_empty() { 2000 } else { self.tail };
        reduced.load.callers = callers.clamp(1, self.load.callers.max(1));
        reduced
    }

    /// The command that runs it again.
    #[must_use]
    pub fn command(&self, drawn: usize) -> String {
        let mut command = format!(
            "cargo xtask torture --seed {} --only {} --per-round {drawn} --rounds 1",
            self.seed,
            self.world.name()
        );
        if self.steps.len() < drawn {
            let numbers: Vec<String> = self.steps.iter().map(|step| step.number.to_string()).collect();
            // An empty list keeps nothing: the load alone.
            command += &format!(" --keep {}", if numbers.is_empty() { "none".to_owned() } else { numbers.join(",") });
        }
        command + &format!(" --callers {}", self.load.callers)
    }
}

impl Load {
    fn new(random: &mut Random, served: bool) -> Self {
        let policies = usize::try_from(random.between(2, 6)).expect("few");
        // The first two are of each family; the others are of either.
        let limits = (0..policies).map(|index| match index {
            0 => long(random),
            1 => short(random),
            _ if random.chance(50) => long(random),
            _ => short(random),
        });
        let limits = limits.collect();
        let subjects_per_call = if random.chance(60) { random.between(2, 8) } else { 1 };
        Self {
            callers: usize::try_from(random.between(4, 16)).expect("few"),
            clients: usize::try_from(random.between(1, 3)).expect("few"),
            limits,
            subjects: usize::try_from(random.between(3, 16)).expect("few"),
            policies_per_call: random.between(1, policies as u64),
            subjects_per_call,
            cost: random.pick(&[1, 1, 3, 10]),
            hang_up: random.pick(&[0, 5, 30]),
            pause: random.pick(&[500, 2000, 5000]),
            deadline: Duration::from_millis(if served { 15 } else { random.pick(&[20, 50, 100]) }),
        }
    }
}

/// Units do not come back within a round, except a few of a token bucket.
fn long(random: &mut Random) -> Limit {
    let algorithm = random.pick(&[
        Algorithm::TokenBucket,
        Algorithm::FixedWindowFromFirstCall,
        Algorithm::SlidingWindow,
        Algorithm::SlidingCounter,
        Algorithm::SlidingLog,
    ]);
    let amount = random.spread(20, 3000);
    Limit::builder(amount, Duration::from_secs(86_400)).algorithm(algorithm).build().expect("a common limit")
}

/// Units come back within a round, often.
fn short(random: &mut Random) -> Limit {
    let algorithm = random.pick(Algorithm::OVER_TIME);
    let window = Duration::from_millis(random.spread(100, 2000));
    Limit::builder(random.spread(3, 200), window).algorithm(algorithm).build().expect("a common limit")
}
