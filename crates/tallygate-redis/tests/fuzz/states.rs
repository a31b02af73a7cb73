//! States that were replaced by anything: the scripts answer as if the state were valid, or refuse it as it is. They never fail half
//! way, never admit more than the limit holds, and never leave a key without a TTL.
//!
//! Coverage does not reach into the server, so inputs are drawn: valid states with a few of their numbers replaced.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use tallygate::clock::{ManualClock, Timestamp};
use tallygate::store::StoreErrorKind;
use tallygate::{Algorithm, Check, CheckError, Decision, Key, Limit, Limiter};
use tallygate_redis::RedisStore;
use tallygate_testkit::random::Random;
use tallygate_testkit::wait::PATIENCE;
use tallygate_testkit::{Connection, Reply, Server};

use crate::support::{RedisLimiter, flavours, receipt, units, wall_micros, yearly};

/// The clock of the scripts stands still, so that a kept state means the same in every year.
const NOW: u64 = 1_790_000_000_000_000;
/// What the scripts on such a clock add to a TTL.
const SLACK: Duration = Duration::from_secs(3600);

/// Without `TALLYGATE_FUZZ_SECONDS`: so many states for each algorithm and server.
const USUAL: u64 = 40;
/// The bytes of a member of a log. Its score is the instant that it begins with.
const MEMBER: usize = 24;

/// An input: which algorithm, and the bytes of its state.
struct Input {
    algorithm: Algorithm,
    state: Vec<u8>,
}

impl Input {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (&choice, state) = bytes.split_first()?;
        let algorithm = Algorithm::OVER_TIME[usize::from(choice) % Algorithm::OVER_TIME.len()];
        Some(Self { algorithm, state: state.to_vec() })
    }

    /// As a file of `fuzz/corpus/states`.
    fn bytes(&self) -> Vec<u8> {
        let choice = Algorithm::OVER_TIME.iter().position(|algorithm| *algorithm == self.algorithm).unwrap();
        [&[u8::try_from(choice).unwrap()], self.state.as_slice()].concat()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_state_is_used_or_refused_but_never_believed_beyond_the_limit() {
    let seconds = std::env::var("TALLYGATE_FUZZ_SECONDS").ok().map(|seconds| seconds.parse::<u64>().unwrap());
    let seed = seconds.map_or(1, |_| wall_micros());
    let flavours = flavours();
    for flavour in &flavours {
        let server = Server::of(*flavour).start();
        let clock = ManualClock::new(Timestamp::from_micros(NOW));
        let store = RedisStore::builder(&server.url()).deadline(PATIENCE).manual_clock(clock).connect().await.unwrap();
        let mut rig = Rig { limiter: Limiter::new(store), connection: server.connect().unwrap(), turn: 0 };
        let kept = kept();
        for input in &kept {
            rig.run(input).await;
        }
        let mut random = Random::new(seed);
        let began = Instant::now();
        let share = seconds.map(|seconds| Duration::from_secs(seconds) / u32::try_from(flavours.len()).unwrap());
        let mut count = 0_u64;
        while share.map_or(count < USUAL, |share| began.elapsed() < share) {
            for &algorithm in Algorithm::OVER_TIME {
                let state = rig.drawn(algorithm, &kept, &mut random).await;
                rig.run(&Input { algorithm, state }).await;
            }
            count += 1;
        }
        eprintln!(
            "states: {} on {flavour:?}, seed {seed}",
            kept.len() as u64 + count * Algorithm::OVER_TIME.len() as u64
        );
    }
}

fn kept() -> Vec<Input> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/states");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().filter_map(|file| Input::read(&fs::read(file).unwrap())).collect()
}

/// The number of the question that is a refund.
const REFUND: u32 = 4;

struct Rig {
    limiter: RedisLimiter,
    connection: Connection,
    turn: u64,
}

impl Rig {
    fn call(&mut self, command: &[&[u8]]) -> Reply {
        self.connection.call(command).unwrap()
    }

    /// Replaces a state, asks every question about it, and compares.
    async fn run(&mut self, input: &Input) {
        self.turn += 1;
        let subject = self.turn.to_string();
        let (limit, other) = (yearly(input.algorithm, 5), yearly(input.algorithm, 7));
        let key = Key::new("states", &subject).unwrap();
        let name = key.encode("tallygate", input.algorithm.kind());
        let (check, changed) = (Check::new(key, &limit), Check::new(key, &other));
        let beside = Check::new(Key::new("beside", &subject).unwrap(), &limit);

        for call in 0..=REFUND {
            self.plant(&name, input);
            let mut admitted = 0;
            // Often enough that what is admitted adds up to more than the limit, if it can.
            for _ in 0..8 {
                let before = self.dump(&name);
                let (answer, asked) = match call {
                    0 => (self.limiter.check(check).await.map(Some), &limit),
                    1 => (self.limiter.check(changed).await.map(Some), &other),
                    2 => (self.limiter.peek(check).await.map(Some), &limit),
                    3 => (self.limiter.check_all(&[beside, check]).await.map(Some), &limit),
                    REFUND.. => (self.limiter.refund(&[receipt(check, None)]).await.map(|_| None), &limit),
                };
                let before = if call == REFUND { None } else { Some(&before) };
                admitted += self.holds(input, &name, before, &answer, asked);
                if call <= 1 {
                    assert!(admitted <= asked.capacity(), "{}: {admitted} of {asked}", shown(input));
                }
                if answer.is_err() {
                    break;
                }
            }
            self.call(&[b"UNLINK", beside.key.encode("tallygate", input.algorithm.kind()).as_bytes()]);
        }
        // The operator's remedy.
        self.limiter.reset(check).await.unwrap();
        let fresh = self.limiter.check(check).await.unwrap();
        assert!(fresh.allowed() && fresh.binding().remaining() == 4, "{}", shown(input));
        self.call(&[b"UNLINK", name.as_bytes()]);
    }

    /// What must be true of every answer. Returns the units that it admitted.
    fn holds(
        &mut self,
        input: &Input,
        name: &str,
        before: Option<&Reply>,
        answer: &Result<Option<Decision>, CheckError>,
        limit: &Limit,
    ) -> u64 {
        let now = self.dump(name);
        // A refund may have been made before what is left of a damaged log turns out to be unreadable.
        let unchanged = before.is_none_or(|before| now == *before);
        let left = self.call(&[b"PTTL", name.as_bytes()]).int();
        assert_ne!(left, -1, "{}: a key without a TTL", shown(input));
        match answer {
            // A refund: it has no status.
            Ok(None) => 0,
            Ok(Some(decision)) => {
                let status = decision.statuses().last().unwrap();
                assert!(status.remaining() <= limit.capacity(), "{}: {status:?}", shown(input));
                // Twice: a clock that is behind the state may cost as much again.
                let most = 2 * limit.full_after() + limit.window();
                assert!(status.retry_after().unwrap_or_default() <= most, "{}: {status:?}", shown(input));
                assert!(status.reset_after() <= most, "{}: {status:?}", shown(input));
                if !unchanged && left != -2 {
                    let most = i64::try_from((most + SLACK).as_millis()).unwrap();
                    assert!(left <= most, "{}: expires in {left} ms", shown(input));
                }
                if decision.allowed() { status.units() } else { 0 }
            }
            Err(CheckError::Store(error)) => {
                let said = error.to_string();
                let kind = error.kind();
                assert!(
                    matches!(kind, StoreErrorKind::Corrupt | StoreErrorKind::NewerFormat),
                    "{}: {said}",
                    shown(input)
                );
                assert!(unchanged, "{}: refused, and yet written: {said}", shown(input));
                let crashed = ["user_script", "attempt to", "bad argument", "too many"];
                assert!(!crashed.iter().any(|word| said.contains(word)), "{}: a script failed: {said}", shown(input));
                0
            }
            Err(other) => panic!("{}: {other}", shown(input)),
        }
    }

    fn dump(&mut self, name: &str) -> Reply {
        self.call(&[b"DUMP", name.as_bytes()])
    }

    fn plant(&mut self, name: &str, input: &Input) {
        self.call(&[b"UNLINK", name.as_bytes()]);
        if input.algorithm != Algorithm::SlidingLog {
            self.call(&[b"SET", name.as_bytes(), &input.state, b"PX", b"600000"]).ok();
            return;
        }
        for member in input.state.chunks(MEMBER) {
            let instant =
                member.iter().chain(&[0; 7]).take(7).fold(0_u64, |instant, byte| instant << 8 | u64::from(*byte));
            self.call(&[b"ZADD", name.as_bytes(), instant.to_string().as_bytes(), member]).ok();
        }
        self.call(&[b"PEXPIRE", name.as_bytes(), b"600000"]);
    }

    /// A kept state or a valid one, with some of it replaced.
    async fn drawn(&mut self, algorithm: Algorithm, kept: &[Input], random: &mut Random) -> Vec<u8> {
        let same: Vec<&Input> = kept.iter().filter(|input| input.algorithm == algorithm).collect();
        let mut state = match same.is_empty() || random.chance(60) {
            true => self.valid(algorithm, random).await,
            false => random.pick(&same).state.clone(),
        };
        for _ in 0..random.between(0, 3) {
            mutate(&mut state, random);
        }
        state
    }

    /// What the store itself writes, after a few calls.
    async fn valid(&mut self, algorithm: Algorithm, random: &mut Random) -> Vec<u8> {
        let limit = match random.between(0, 2) {
            0 => yearly(algorithm, 5),
            1 => yearly(algorithm, random.between(1, 9)),
            _ => Limit::builder(5, Duration::from_millis(random.spread(1, 86_400_000)))
                .algorithm(algorithm)
                .build()
                .unwrap(),
        };
        let key = Key::new("valid", "states").unwrap();
        let name = key.encode("tallygate", algorithm.kind());
        self.call(&[b"UNLINK", name.as_bytes()]);
        for _ in 0..random.between(1, 4) {
            self.limiter.check(Check::new(key, &limit).cost(units(1))).await.unwrap();
        }
        if algorithm != Algorithm::SlidingLog {
            return match self.call(&[b"GET", name.as_bytes()]) {
                Reply::Bulk(state) => state,
                _ => Vec::new(),
            };
        }
        let members = self.call(&[b"ZRANGE", name.as_bytes(), b"0", b"-1"]);
        let bytes = members.items().iter().flat_map(|member| match member {
            Reply::Bulk(member) => member.clone(),
            other => panic!("{other:?}"),
        });
        bytes.collect()
    }
}

/// Values at which arithmetic in doubles goes wrong.
fn number(random: &mut Random) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "any double is right")]
    let now = NOW as f64;
    let year = 365.0 * 86_400e6;
    let exact = 9_007_199_254_740_992.0;
    random.pick(&[
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        2.0,
        5.0,
        5.5,
        255.0,
        1e6,
        1e15,
        exact,
        exact - 1.0,
        exact + 2.0,
        1e300,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::MIN_POSITIVE,
        now,
        now + 0.5,
        now + year,
        now + 2.0 * year,
        now - year,
        now + 10.0 * year,
        year,
        year / 2.0,
        year * 1e3,
    ])
}

fn mutate(state: &mut Vec<u8>, random: &mut Random) {
    let length = state.len() as u64;
    let at = |random: &mut Random| usize::try_from(random.between(0, length.max(1) - 1)).unwrap();
    let byte = |random: &mut Random| random.number().to_le_bytes()[0];
    match random.between(0, 7) {
        // A number of a packed state.
        0..=2 => {
            let place = usize::try_from(random.between(0, length / 8)).unwrap() * 8 + usize::from(random.chance(90));
            let value = number(random).to_le_bytes();
            if let Some(field) = state.get_mut(place..place + 8) {
                field.copy_from_slice(&value);
            }
        }
        3 | 4 if length > 0 => state[at(random)] = byte(random),
        5 if length > 0 => state[at(random)] ^= 1 << random.between(0, 7),
        6 if length > 0 => state.truncate(at(random)),
        _ => {
            // Another sub-window, another call, or far too many.
            let more = usize::try_from(random.pick(&[1_u64, 5, 5, 24, 24, 40, 5000])).unwrap();
            state.extend((0..more).map(|_| byte(random)));
        }
    }
}

fn shown(input: &Input) -> String {
    let hex: String = input.bytes().iter().take(400).map(|byte| format!("{byte:02x}")).collect();
    format!("{}, an input of the target states, in hex: {hex}", input.algorithm)
}
