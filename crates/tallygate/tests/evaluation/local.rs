//! `on_error: local`: a share of the limit, less what the store has charged already.

use proptest::prelude::*;
use tallygate::live::{Override, OverrideSet, Target};
use tallygate::policy::{CallerLimit, Instances, Share};
use tallygate::{Algorithm, Limit};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A few processes that share a store and a clock, each with its own local store.
struct Fleet {
    clock: ManualClock,
    shared: Arc<FaultyStore>,
    stores: Vec<Stores<Cut>>,
    set: PolicySet,
}

/// The way from one process to the store, which can be cut on its own. It has to be waited for, as a network has.
struct Cut(Arc<FaultyStore>, FaultyStore<Nothing>);

/// Answers nothing: only the switch of its wrapper is used.
struct Nothing;

impl tallygate::Store for Nothing {
    async fn call(&self, _: &Call<'_>) -> Result<tallygate::Decision, tallygate::StoreError> {
        Err(tallygate::StoreError::corrupt("the way is open"))
    }
}

impl tallygate::Store for Cut {
    async fn call(&self, call: &Call<'_>) -> Result<tallygate::Decision, tallygate::StoreError> {
        match self.1.call(call).await {
            Err(error) if error.kind() == tallygate::store::StoreErrorKind::Corrupt => self.0.call(call).await,
            other => other,
        }
    }
}

impl Fleet {
    fn new(size: u32, policy: Policy) -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(1_000_000_000_000));
        let store = || MemoryStore::builder().clock(clock.clone()).build();
        let shared = Arc::new(FaultyStore::new(store()));
        let stores = (0..size).map(|_| {
            let way = Cut(Arc::clone(&shared), FaultyStore::new(Nothing));
            Stores::new(way).with_local(Arc::new(store())).with_instances(Instances::new(size))
        });
        let stores = stores.collect();
        let domain = Domain::new("d", [(policy, Rule::new())]).unwrap();
        Self { clock, shared, stores, set: PolicySet::new(vec![domain]).unwrap() }
    }

    fn ask(&self, process: usize, verb: Verb, cost: u64) -> Verdict {
        let ask = Ask::new(Descriptor::new(), Action::new(verb, Cost::new(cost).unwrap()));
        ready(self.set.domain("d").unwrap().evaluate(&[ask]).decide(&self.stores[process], None))
    }

    /// The number of `calls` that are admitted.
    fn take(&self, process: usize, calls: u64) -> u64 {
        (0..calls).map(|_| u64::from(self.ask(process, Verb::Check, 1).allowed())).sum()
    }

    fn cut(&self, process: usize) {
        self.stores[process].shared().1.switch().off();
    }

    fn mend(&self, process: usize) {
        self.stores[process].shared().1.switch().on();
    }
}

/// Two processes admitted 300 of 100 in one window: 100 from the store, and 100 each on their own.
#[test]
fn an_outage_gives_nobody_a_fresh_share() {
    for &algorithm in Algorithm::OVER_TIME {
        let limit = Limit::parse_with("100/h", Some(algorithm)).unwrap();
        let fleet = Fleet::new(2, policy("p", "1/h").with_on_error(OnError::Local)).limited(&limit);
        assert_eq!(fleet.take(0, 70) + fleet.take(1, 70), 100);
        fleet.shared.switch().off();
        // The one has used more than its share. The other has used less, but was denied a moment ago.
        assert_eq!((fleet.take(0, 200), fleet.take(1, 200)), (0, 0), "{algorithm}");
        fleet.clock.advance(3601 * SECOND * 2);
        // From then on, each has half of the limit.
        assert_eq!((fleet.take(0, 200), fleet.take(1, 200)), (50, 50), "{algorithm}");
    }
}

impl Fleet {
    fn limited(self, limit: &Limit) -> Self {
        Self::new(self.stores.len() as u32, Policy::new("p", "d", limit).unwrap())
    }
}

#[test]
fn a_process_that_was_not_told_keeps_its_share() {
    let fleet = Fleet::new(4, policy("p", "100/h fixed_window"));
    assert_eq!(fleet.take(0, 500), 100);
    fleet.shared.switch().off();
    let local: u64 = (0..4).map(|process| fleet.take(process, 500)).sum();
    // The worst case: N + (n - 1) N / n.
    assert_eq!(local, 75);
}

/// While an override was about to begin or to end, each process admitted the whole limit on its own.
#[test]
fn of_a_limit_that_changes_each_process_has_its_share() {
    let mut fleet = Fleet::new(4, policy("p", "40/h fixed_window"));
    let files = fleet.set.clone();
    let (mut overrides, every_caller) = (OverrideSet::default(), Target::new("d", "p", []));
    let limit = "80/h fixed_window".parse().unwrap();
    let new = Override::new(every_caller, Some(limit)).because("a test").by("ada");
    overrides.put(new, None, fleet.clock.now()).unwrap();
    fleet.shared.switch().off();
    // Before it begins, and a second after that: what was used stays used.
    for admitted in [10, 10] {
        fleet.set = files.with_overrides(&overrides, fleet.clock.now());
        let found = fleet.set.domain("d").unwrap().matcher().find(&[&Descriptor::new()]).remove(0);
        assert!(matches!(found.limit, CallerLimit::Changing(..)));
        for process in 0..4 {
            assert_eq!(fleet.take(process, 200), admitted);
        }
        fleet.clock.advance(SECOND);
    }
}

#[test]
fn a_refund_or_reset_in_the_store_is_followed() {
    let fleet = Fleet::new(1, policy("p", "5/h"));
    for _ in 0..20 {
        let verdict = fleet.ask(0, Verb::Check, 5);
        assert!(verdict.allowed());
        let refunded = ready(verdict.refund(&fleet.stores[0]));
        assert_eq!(refunded.rulings()[0].charged(), 0);
    }
    fleet.cut(0);
    assert_eq!(fleet.ask(0, Verb::Peek, 1).rulings()[0].status().remaining(), 5);
    fleet.mend(0);
    fleet.ask(0, Verb::Check, 5);
    assert_eq!(fleet.ask(0, Verb::Refund, 2).rulings()[0].refunded(), 2);
    fleet.cut(0);
    assert_eq!(fleet.take(0, 9), 2);
    fleet.mend(0);
    fleet.ask(0, Verb::Reset, 1);
    fleet.cut(0);
    assert_eq!(fleet.take(0, 9), 5);
}

/// Refunds and resets of several policies are sent together, and followed as any other.
#[test]
fn what_several_policies_give_back_is_followed() {
    let clock = ManualClock::new(Timestamp::from_micros(1_000_000_000_000));
    let store = || MemoryStore::builder().clock(clock.clone()).build();
    let stores = Stores::new(FaultyStore::new(store())).with_local(Arc::new(store()));
    let policies = [policy("p", "5/h"), policy("q", "5/h")].map(|policy| (policy, Rule::new()));
    let domain = Domain::new("d", policies).unwrap();
    let ask = |verb, cost| {
        let action = Action::new(verb, Cost::new(cost).unwrap());
        let verdict = ready(domain.evaluate(&[Ask::new(Descriptor::new(), action)]).decide(&stores, None));
        verdict.rulings().iter().map(|ruling| ruling.status().remaining()).collect::<Vec<_>>()
    };
    assert_eq!(ask(Verb::Check, 5), [0, 0]);
    for (verb, left) in [(Verb::Refund, [2, 2]), (Verb::Reset, [5, 5])] {
        ask(verb, 2);
        stores.shared().switch().off();
        assert_eq!(ask(Verb::Peek, 1), left, "{verb:?}");
        stores.shared().switch().on();
    }
}

#[test]
fn a_fixed_share_does_not_depend_on_the_number_of_processes() {
    let fleet = Fleet::new(2, policy("p", "1000/h").with_share(Share::percent(10)));
    fleet.shared.switch().off();
    assert_eq!((fleet.take(0, 500), fleet.take(1, 500)), (100, 100));
    let denied = fleet.ask(0, Verb::Check, 1);
    assert_eq!(denied.rulings()[0].limit().unwrap().to_string(), "100/h");
}

#[test]
fn a_small_limit_leaves_one_unit_to_each_and_a_limit_of_zero_none() {
    for (limit, each) in [("3/h", 1), ("0/h", 0)] {
        let fleet = Fleet::new(10, policy("p", limit));
        fleet.shared.switch().off();
        assert!((0..10).all(|process| fleet.take(process, 5) == each), "{limit}");
    }
}

#[test]
fn a_limit_of_zero_is_not_followed() {
    for &algorithm in Algorithm::OVER_TIME {
        let limit = Limit::parse_with("0/h", Some(algorithm)).unwrap();
        let fleet = Fleet::new(2, policy("p", "1/h")).limited(&limit);
        for &verb in Verb::ALL {
            fleet.ask(0, verb, 1);
        }
        assert!(fleet.stores[0].local().is_empty(), "{algorithm}");
    }
}

/// A cost that only the whole limit can hold must not be answered as one that never passes.
#[test]
fn a_cost_above_the_share_waits_for_the_store() {
    let fleet = Fleet::new(4, policy("p", "100/h"));
    fleet.shared.switch().off();
    for cost in [26, 50, 100] {
        let denied = fleet.ask(0, Verb::Check, cost);
        let ruling = &denied.rulings()[0];
        assert_eq!((denied.outcome(), ruling.source()), (Outcome::Denied, Source::OnErrorLocal));
        assert_eq!(ruling.status().retry_after(), Some(SECOND));
    }
    let never = fleet.ask(0, Verb::Check, 101);
    assert_eq!((never.rulings()[0].source(), never.rulings()[0].status().retry_after()), (Source::TooCostly, None));
    // What fits the share waits for the share.
    assert_eq!(fleet.take(0, 30), 25);
    let denied = fleet.ask(0, Verb::Check, 1);
    assert_eq!(denied.rulings()[0].status().retry_after(), Some(144 * SECOND));
    // The limit is the one that the cost is above.
    let limits = [&denied, &never].map(|verdict| verdict.rulings()[0].limit().unwrap().to_string());
    assert_eq!(limits, ["25/h", "100/h"]);
}

/// What was charged locally was given back under the whole limit.
#[test]
fn a_refund_of_a_local_charge_is_exact() {
    let fleet = Fleet::new(4, policy("p", "100/h fixed_window"));
    fleet.shared.switch().off();
    let verdict = fleet.ask(0, Verb::Check, 20);
    assert_eq!(verdict.rulings()[0].status().remaining(), 5);
    let refunded = ready(verdict.refund(&fleet.stores[0]));
    assert_eq!(refunded.rulings()[0].status().remaining(), 25);
    assert_eq!(fleet.take(0, 50), 25);
}

/// A refund in the store gave back what this process had admitted on its own, because the store's charge had found nothing left
/// to take here: each call that was refunded made room for another in the next outage.
#[test]
fn a_refund_in_the_store_gives_nothing_back_of_what_was_admitted_locally() {
    for &algorithm in Algorithm::OVER_TIME {
        let limit = Limit::parse_with("10/h", Some(algorithm)).unwrap();
        let fleet = Fleet::new(1, policy("p", "1/h")).limited(&limit);
        fleet.cut(0);
        assert_eq!(fleet.take(0, 20), 10);
        for round in 0..30 {
            fleet.mend(0);
            let verdict = fleet.ask(0, Verb::Check, 1);
            assert!(verdict.allowed());
            match round % 2 {
                0 => assert_eq!(ready(verdict.refund(&fleet.stores[0])).rulings()[0].charged(), 0),
                _ => assert_eq!(fleet.ask(0, Verb::Refund, 1).rulings()[0].refunded(), 1),
            }
            fleet.cut(0);
            assert_eq!(fleet.take(0, 1), 0, "{algorithm}, after {round} refunds");
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Calls(usize, u64),
    Cut(usize),
    Mend(usize),
    Off,
    On,
    Wait(u64),
}

fn events(processes: usize) -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => (0..processes, 1..30_u64).prop_map(|(process, calls)| Event::Calls(process, calls)),
        1 => (0..processes).prop_map(Event::Cut),
        1 => (0..processes).prop_map(Event::Mend),
        1 => Just(Event::Off),
        1 => Just(Event::On),
        1 => (1..4000_u64).prop_map(Event::Wait),
    ];
    prop::collection::vec(event, 1..60)
}

proptest! {
    /// docs/guarantees.md: whichever instances are cut off, and when, a window admits the limit from the store and the shares from the
    /// processes. A process that admitted its share through the store has none of it left.
    #[test]
    fn a_window_admits_the_limit_and_the_shares_and_no_more(
        size in 1..5_usize, amount in 1..60_u64, events in (1..5_usize).prop_flat_map(events),
    ) {
        let fleet = Fleet::new(size as u32, policy("p", &format!("{amount}/h fixed_window")));
        let share = (amount / size as u64).max(1);
        let (mut store, mut through, mut window) = (0, vec![0; size], 0);
        let mut local = vec![0; size];
        for event in events {
            match event {
                Event::Calls(process, calls) if process < size => {
                    for _ in 0..calls {
                        let verdict = fleet.ask(process, Verb::Check, 1);
                        let on_its_own = verdict.rulings()[0].source() == Source::OnErrorLocal;
                        if verdict.allowed() && on_its_own {
                            local[process] += 1;
                            prop_assert!(through[process] + local[process] <= share.max(through[process]));
                        } else if verdict.allowed() {
                            (store, through[process]) = (store + 1, through[process] + 1);
                        }
                    }
                }
                Event::Cut(process) if process < size => fleet.cut(process),
                Event::Mend(process) if process < size => fleet.mend(process),
                Event::Off => fleet.shared.switch().off(),
                Event::On => fleet.shared.switch().on(),
                Event::Wait(seconds) => fleet.clock.advance(Duration::from_secs(seconds)),
                _ => {}
            }
            let now = fleet.clock.now().as_micros() / 3_600_000_000;
            if now != window {
                (store, window) = (0, now);
                (through, local) = (vec![0; size], vec![0; size]);
            }
            prop_assert!(store <= amount && local.iter().all(|&units| units <= share));
        }
    }

    /// Every algorithm: a share is never more than the limit, nor nothing, and all shares of a limit that can be divided
    /// are no more than it.
    #[test]
    fn shares_of_any_limit_are_valid(
        amount in 1..=Limit::MAX_AMOUNT, burst in prop::option::of(1..=Limit::MAX_AMOUNT),
        millis in 1..=365 * 86_400_000_u64, algorithm in prop::sample::select(Algorithm::OVER_TIME), of in 1..2000_u32,
    ) {
        let limit = Limit::builder(amount, Duration::from_millis(millis)).algorithm(algorithm);
        let bucket = algorithm == Algorithm::TokenBucket;
        let limit = if let Some(burst) = burst.filter(|_| bucket) { limit.burst(burst) } else { limit };
        let Ok(limit) = limit.build() else { return Ok(()) };
        let share = limit.share(1, of);
        prop_assert!(share.amount() >= 1 && share.capacity() >= 1);
        prop_assert!(share.amount() * u64::from(of) <= amount.max(u64::from(of)));
        prop_assert!(share.capacity() * u64::from(of) <= limit.capacity().max(u64::from(of)));
        prop_assert_eq!(share.window(), limit.window());
        prop_assert_eq!(limit.share(1, of), share);
    }
}
