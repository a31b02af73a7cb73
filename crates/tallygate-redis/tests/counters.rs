//! Counters on a server answer exactly as those in memory.

use std::sync::Arc;
use std::time::Duration;

use tallygate::counter::{CounterError, CounterValue, Counters};
use tallygate::history::SERVER_STEP_BACK;
use tallygate::store::StoreErrorKind;
use tallygate::{Counter, MemoryStore};
use tallygate_redis::RedisStore;
use tallygate_testkit::Server;
use tallygate_testkit::random::Random;
use tokio::task::JoinSet;

use crate::support::{every_key_expires, flavours, patient};

const HOUR: Duration = Duration::from_secs(3600);

const WHOLE: [i64; 18] = [
    0,
    1,
    -1,
    2,
    7,
    -7,
    1000,
    1 << 52,
    (1 << 53) - 1,
    1 << 53,
    (1 << 53) + 1,
    -(1 << 53) - 1,
    99_999_999_999_999_999,
    100_000_000_000_000_000,
    i64::MAX - 1,
    i64::MAX,
    i64::MIN + 1,
    i64::MIN,
];
const FRACTIONS: [f64; 24] = [
    0.0,
    -0.0,
    0.1,
    0.2,
    0.3,
    -0.1,
    -0.3,
    0.5,
    1.0,
    -1.0,
    1.5,
    1e-300,
    -1e-300,
    5e-324,
    1e15,
    1e16,
    9.999_999_999_999_999e16,
    1e17,
    -1e17,
    1e18,
    9.223_372_036_854_775e18,
    1e300,
    f64::MAX,
    f64::MIN,
];

#[derive(Debug, Clone, Copy)]
enum Call {
    Incr,
    Decr,
    IncrBy(i64),
    DecrBy(i64),
    Float(f64),
    Get,
    Delete,
}

impl Call {
    fn random(random: &mut Random) -> Self {
        match random.between(0, 99) {
            0..=9 => Self::Incr,
            10..=19 => Self::Decr,
            20..=39 => {
                Self::IncrBy(if random.chance(50) { random.pick(&WHOLE) } else { random.number().cast_signed() })
            }
            40..=49 => Self::DecrBy(random.pick(&WHOLE)),
            50..=69 => Self::Float(random.pick(&FRACTIONS)),
            // Any bits: subnormal, huge, infinite, NaN.
            70..=79 => Self::Float(f64::from_bits(random.number())),
            80..=93 => Self::Get,
            _ => Self::Delete,
        }
    }

    async fn ask<S: Counters>(self, counter: &Counter<S>) -> Result<CounterValue, CounterError> {
        match self {
            Self::Incr => counter.incr().await.map(CounterValue::Integer),
            Self::Decr => counter.decr().await.map(CounterValue::Integer),
            Self::IncrBy(delta) => counter.incr_by(delta).await.map(CounterValue::Integer),
            Self::DecrBy(delta) => counter.decr_by(delta).await.map(CounterValue::Integer),
            Self::Float(delta) => counter.incr_by_float(delta).await.map(CounterValue::Float),
            Self::Get => counter.get().await,
            Self::Delete => counter.delete().await,
        }
    }
}

/// Distinguishes 0 from -0; NaN equals itself.
fn bits(answer: &Result<CounterValue, CounterError>) -> String {
    match answer {
        Ok(CounterValue::Float(value)) => format!("float {:016x} {value}", value.to_bits()),
        other => format!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_and_server_counters_are_equal() {
    for (flavour, traces) in flavours().into_iter().zip([24, 8]) {
        let server = Server::of(flavour).start();
        let redis = Arc::clone(patient(&server.url()).await.store());
        let mut tasks = JoinSet::new();
        for seed in 0..traces {
            tasks.spawn(trace(Arc::clone(&redis), seed));
        }
        let overflows: usize = tasks.join_all().await.into_iter().sum();
        assert!(overflows > 50, "only {overflows} calls overflowed: the traces try too little");
    }
}

async fn trace(redis: Arc<RedisStore>, seed: u64) -> usize {
    let memory = Arc::new(MemoryStore::new());
    let mut random = Random::new(0xc0_7e57 + seed);
    let names = [format!("a:{seed}"), format!("{{b}}{seed}"), format!("{seed} {}", "\u{eb}".repeat(500))];
    let (mut story, mut overflows) = (Vec::new(), 0);
    for _ in 0..600 {
        let name = &names[usize::try_from(random.between(0, 2)).unwrap()];
        let call = Call::random(&mut random);
        let one = call.ask(&Counter::new(Arc::clone(&memory), name).unwrap()).await;
        let two = call.ask(&Counter::new(Arc::clone(&redis), name).unwrap()).await;
        story.push(format!("{name:.3} {call:?} -> {one:?}"));
        let recent = &story[story.len().saturating_sub(12)..];
        assert_eq!(bits(&one), bits(&two), "memory and server differ, seed {seed}:\n{}", recent.join("\n"));
        overflows += usize::from(matches!(one, Err(CounterError::Overflow { .. })));
    }
    overflows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sums_people_try() {
    let server = Server::redis().start();
    let redis = Arc::clone(patient(&server.url()).await.store());
    let counter = |name: &str| Counter::new(Arc::clone(&redis), name).unwrap();
    let tenths = counter("tenths");
    tenths.incr_by_float(0.1).await.unwrap();
    assert_eq!(tenths.incr_by_float(0.2).await.unwrap().to_bits(), (0.1_f64 + 0.2).to_bits());
    assert!(matches!(tenths.incr().await, Err(CounterError::NotAnInteger { .. })));
    tenths.incr_by_float(-(0.1 + 0.2)).await.unwrap();
    assert_eq!(tenths.get().await.unwrap(), CounterValue::Integer(0));
    assert_eq!(tenths.incr().await.unwrap(), 1);
    let minus_zero = counter("minus zero").incr_by_float(-0.0).await.unwrap();
    assert!(minus_zero == 0.0 && minus_zero.is_sign_positive());

    let most = counter("most");
    assert_eq!(most.incr_by(i64::MAX).await.unwrap(), i64::MAX);
    let error = most.incr().await.unwrap_err();
    assert!(error.to_string().contains("9223372036854775807"), "{error}");
    assert_eq!(most.get().await.unwrap(), CounterValue::Integer(i64::MAX));
    assert_eq!(most.decr_by(i64::MAX).await.unwrap(), 0);
    assert_eq!(most.incr_by(i64::MIN).await.unwrap(), i64::MIN);
    assert!(matches!(most.decr().await, Err(CounterError::Overflow { .. })));
}

/// Many callers, one number: every increment counts once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_increment_is_lost() {
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        let redis = Arc::clone(patient(&server.url()).await.store());
        let mut callers = JoinSet::new();
        for _ in 0..32 {
            let counter = Counter::new(Arc::clone(&redis), "hot").unwrap().expires_after(HOUR).unwrap();
            callers.spawn(async move {
                let mut sums = Vec::new();
                for _ in 0..50 {
                    sums.push(counter.incr().await.unwrap());
                }
                sums
            });
        }
        let mut sums: Vec<i64> = callers.join_all().await.into_iter().flatten().collect();
        sums.sort_unstable();
        assert_eq!(sums, (1..=1600).collect::<Vec<_>>());
        every_key_expires(&server);
    }
}

/// The first call sets the TTL; no later one extends, shortens or removes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ttl_is_that_of_the_first_call() {
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        let redis = Arc::clone(patient(&server.url()).await.store());
        let life = || server.command(&["PTTL", "tallygate:{n}:counter:n"]).int();
        let end = || server.command(&["PEXPIRETIME", "tallygate:{n}:counter:n"]).int();
        let plain = Counter::new(Arc::clone(&redis), "n").unwrap();
        let mortal = |ttl| Counter::new(Arc::clone(&redis), "n").unwrap().expires_after(ttl).unwrap();
        // The TTL is read from a clock that may have stepped back since it was set.
        let hour = i64::try_from((HOUR + SERVER_STEP_BACK).as_millis()).unwrap();
        for first in [Call::Incr, Call::Float(0.5), Call::Float(2.0)] {
            first.ask(&mortal(HOUR)).await.unwrap();
            let (set, left) = (end(), life());
            assert!(left > 0 && left <= hour, "{left} ms left");
            for call in
                [Call::IncrBy(5), Call::Float(0.25), Call::Decr, Call::Get, Call::IncrBy(i64::MAX), Call::Float(1e300)]
            {
                for counter in [&plain, &mortal(Duration::from_secs(7200)), &mortal(Duration::from_millis(5))] {
                    let _ = call.ask(counter).await;
                    assert_eq!(end(), set, "{first:?}, {call:?}");
                }
            }
            plain.delete().await.unwrap();
            assert_eq!(life(), -2);
        }
        // Without a TTL it lives until it is deleted, even if a later call has one.
        plain.incr().await.unwrap();
        mortal(HOUR).incr().await.unwrap();
        assert_eq!(life(), -1);
        plain.delete().await.unwrap();
        // A short TTL really ends.
        mortal(Duration::from_millis(1)).incr().await.unwrap();
        tallygate_testkit::wait::until("the counter to expire", HOUR, || (life() == -2).then_some(()));
        assert_eq!(plain.get().await.unwrap(), CounterValue::Integer(0));
    }
}

/// A value that others wrote under our name is read if it is a number, and otherwise reported and left alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_values() {
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        let redis = Arc::clone(patient(&server.url()).await.store());
        let counter = Counter::new(Arc::clone(&redis), "n").unwrap();
        let key = "tallygate:{n}:counter:n";
        for text in ["abc", "", "1,5", "--1", "1 2", "nan", "12x", "\u{661}", "1e999", "-1e999", "0x10", " 5"] {
            server.command(&["SET", key, text]).ok();
            for call in [Call::Incr, Call::Float(0.5), Call::Get] {
                let answer = call.ask(&counter).await;
                let reported =
                    matches!(answer, Err(CounterError::NotANumber { .. } | CounterError::NotAnInteger { .. }));
                assert!(reported, "{call:?} on {text:?}: {answer:?}");
                assert_eq!(server.command(&["GET", key]).text(), text);
            }
        }
        for (text, value) in
            [("41", CounterValue::Integer(41)), ("41.5", CounterValue::Float(41.5)), ("1e3", CounterValue::Float(1e3))]
        {
            server.command(&["SET", key, text]).ok();
            assert_eq!(counter.get().await.unwrap(), value);
            assert!((counter.incr_by_float(1.0).await.unwrap() - value.as_f64() - 1.0).abs() < 1e-9);
        }
        server.command(&["DEL", key]);
        server.command(&["LPUSH", key, "x"]).ok();
        for call in [Call::Incr, Call::Float(0.5), Call::Get] {
            let answer = call.ask(&counter).await;
            let corrupt = matches!(&answer, Err(CounterError::Store(error)) if error.kind() == StoreErrorKind::Corrupt);
            assert!(corrupt, "{call:?} on a list: {answer:?}");
        }
        assert_eq!(server.command(&["LLEN", key]).int(), 1);
        // Whatever it holds, it can be deleted.
        assert_eq!(counter.delete().await.unwrap(), CounterValue::Integer(0));
        assert_eq!(server.command(&["EXISTS", key]).int(), 0);
    }
}
