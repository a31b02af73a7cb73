//! The layouts of stored states, as docs/algorithms.md has them in section 12. Stores of two versions share them.

use std::time::Duration;

use tallygate::algorithm::EncodedState;
use tallygate::call::{Call, Verb};
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::{Check, Cost, Decision, Key, Limit, MemoryStore};

const START: u64 = 1_700_000_000_250_000;

struct Scene {
    clock: ManualClock,
    store: MemoryStore,
    limit: Limit,
}

impl Scene {
    fn new(limit: &str) -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(START));
        let store = MemoryStore::builder().clock(clock.clone()).without_sweep().build();
        Self { store, clock, limit: limit.parse().unwrap() }
    }

    fn check(&self, cost: u64) -> Check<'_> {
        Check::new(Key::new("p", "s").unwrap(), &self.limit).cost(Cost::new(cost).unwrap())
    }

    fn call(&self, verb: Verb, cost: u64) -> Decision {
        Call::new(verb, &[self.check(cost)]).unwrap().ask_now(&self.store).unwrap().unwrap()
    }

    /// After calls of these costs, each so many milliseconds after the last.
    fn after(self, calls: &[(u64, u64)]) -> Self {
        for &(millis, cost) in calls {
            self.clock.advance(Duration::from_millis(millis));
            assert!(self.call(Verb::Check, cost).allowed());
        }
        self
    }

    fn packed(&self) -> Vec<u8> {
        match self.store.encoded_state(&self.check(1)) {
            Some(EncodedState::Packed(bytes)) => bytes,
            other => panic!("{other:?}"),
        }
    }
}

fn doubles(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|&number| (number as f64).to_le_bytes()).collect()
}

fn state(numbers: &[u64]) -> Vec<u8> {
    [&[1], &doubles(numbers)[..]].concat()
}

#[test]
fn token_bucket() {
    // A unit has 200,000 parts, of which one is regained in a microsecond.
    let scene = Scene::new("5/s burst 7").after(&[(0, 2), (100, 3)]);
    assert_eq!(scene.packed(), state(&[START + 100_000, 900_000, 1, 1, 200_000]));
}

#[test]
fn fixed_window() {
    let aligned = Scene::new("9/s fixed_window").after(&[(0, 2), (100, 3)]);
    assert_eq!(aligned.packed(), state(&[START - 250_000, 5, 1_000_000]));
    let from_first = Scene::new("9/s fixed_window_from_first_call").after(&[(0, 2), (100, 3)]);
    assert_eq!(from_first.packed(), state(&[START, 5, 1_000_000]));
}

#[test]
fn calendar_window() {
    // November in New York, from midnight to midnight: an hour longer than thirty days.
    let scene = Scene::new("9/month in America/New_York").after(&[(0, 2), (100, 3)]);
    let (start, end) = (1_698_811_200_000_000, 1_701_406_800_000_000);
    assert_eq!(end - start, (30 * 24 + 1) * 3_600_000_000);
    // The first six bytes of the SHA-256 of `month in America/New_York`.
    assert_eq!(scene.packed(), state(&[start, end, 5, 251_623_838_619_928]));
    let plain = Scene::new("9/s calendar_window").after(&[(0, 2), (100, 3)]);
    assert_eq!(plain.packed(), state(&[START - 250_000, START + 750_000, 5, 114_703_223_556_515]));
}

#[test]
fn sliding_counter() {
    let scene = Scene::new("9/s sliding_counter").after(&[(0, 2), (1000, 3), (100, 1)]);
    assert_eq!(scene.packed(), state(&[START + 750_000, 2, 4, 1_000_000, 1]));
}

#[test]
fn sliding_window() {
    // Ten sub-windows of 100 ms.
    let scene = Scene::new("9/s sliding_window").after(&[(0, 2), (0, 1), (100, 3)]);
    let index = START / 100_000;
    let head = |newest| [&[1], &doubles(&[1_000_000])[..], &[10], &doubles(&[newest])].concat();
    let cell = |index: u64, units: u8| vec![(index % 256) as u8, units, 0, 0, 0];
    assert_eq!(scene.packed(), [head(index + 1), cell(index, 3), cell(index + 1, 3)].concat());
    // What no longer counts is left out by the next charge.
    let later = scene.after(&[(1000, 1)]);
    assert_eq!(later.packed(), [head(index + 11), cell(index + 1, 3), cell(index + 11, 1)].concat());
    // A state without units that is converted to another window.
    later.call(Verb::Refund, 4);
    let converted = Scene { limit: "9/2s sliding_window".parse().unwrap(), ..later };
    assert_eq!(converted.call(Verb::Refund, 1).statuses()[0].units(), 0);
    assert_eq!(converted.packed(), [&[1], &doubles(&[2_000_000])[..], &[10], &doubles(&[0])].concat());
}

#[test]
fn sliding_log() {
    let scene = Scene::new("500/2s sliding_log").after(&[(0, 300), (100, 7)]);
    let member = |at: u64, before: u64, units: u64| {
        let part = |number: u64, bytes: usize| number.to_be_bytes()[8 - bytes..].to_vec();
        (at, [part(at, 7), part(before, 7), part(units, 4), part(2000, 5), vec![1]].concat())
    };
    let expected = vec![member(START, 0, 300), member(START + 100_000, 300, 7)];
    assert_eq!(scene.store.encoded_state(&scene.check(1)), Some(EncodedState::SortedSet(expected)));
}
