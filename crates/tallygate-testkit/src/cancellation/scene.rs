//! The calls that are dropped: their limits, and the right states before and after.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tallygate::call::{Call, Verb};
use tallygate::policy::{
    Action, Ask, Descriptor, Domain, Excess, Mode, OnError, Policy, PolicySet, Rule, Subject, Want,
};
use tallygate::{Algorithm, Check, Cost, Key, Limit};

use crate::random::Random;

/// The cost of every call, for each of its limits.
const COST: u64 = 3;
/// Each entry of a descriptor is a separate subject, and in a cluster most likely a separate slot.
const ENTRIES: [&str; 4] = ["user", "tenant", "address", "plan"];
/// An entry that selects policies of a scene: all of them, or one by its name.
const ONLY: &str = "only";

/// The limits of a call.
#[derive(Debug)]
pub struct Scene {
    domain: String,
    parts: Vec<Part>,
}

/// One of the limits.
struct Part {
    policy: Policy,
    entry: &'static str,
    room: Room,
}

/// How much of a limit is left before the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// As much as the cost.
    Enough,
    /// Less.
    TooLittle,
    /// Less, because the capacity is less.
    NeverEnough,
    /// The limit is zero.
    Zero,
}

const ROOMS: [Room; 4] = [Room::Enough, Room::TooLittle, Room::NeverEnough, Room::Zero];

impl Room {
    /// The limit, and the units used before the call.
    fn numbers(self) -> (u64, u64) {
        match self {
            Self::Enough => (10, 2),
            Self::TooLittle => (10, 8),
            Self::NeverEnough => (COST - 1, 1),
            Self::Zero => (0, 0),
        }
    }
}

/// What a part is made of.
type Words = (Mode, Room, Excess, &'static str);

impl Scene {
    /// The most important shapes, then single limits of every kind, then `more` random sets of limits from `seed`.
    pub fn generate(seed: u64, more: usize) -> Vec<Arc<Self>> {
        use Excess::{Drain, Refuse};
        use Mode::{Enforce, Quota, Shadow};
        use Room::{Enough, TooLittle};
        let [user, tenant, address, plan] = ENTRIES;
        let mut scenes: Vec<Vec<Words>> = vec![
            // A caller over its own limit, but under that of its tenant.
            vec![(Enforce, TooLittle, Refuse, user), (Enforce, Enough, Refuse, tenant)],
            vec![(Enforce, Enough, Refuse, user), (Enforce, TooLittle, Refuse, user), (Enforce, Enough, Refuse, user)],
            vec![(Enforce, Enough, Refuse, user), (Enforce, Enough, Refuse, tenant), (Enforce, Enough, Refuse, plan)],
            vec![(Enforce, TooLittle, Refuse, user), (Quota, Enough, Refuse, tenant), (Shadow, Enough, Refuse, plan)],
            vec![(Enforce, TooLittle, Drain, user), (Enforce, Enough, Drain, tenant), (Quota, TooLittle, Drain, plan)],
            vec![(Quota, TooLittle, Refuse, user), (Quota, TooLittle, Refuse, plan), (Enforce, Enough, Refuse, tenant)],
            vec![(Quota, Enough, Refuse, user), (Quota, TooLittle, Drain, tenant), (Shadow, TooLittle, Drain, address)],
        ];
        for &mode in Mode::ALL {
            for room in ROOMS {
                scenes.extend(Excess::ALL.iter().map(|&excess| vec![(mode, room, excess, user)]));
            }
        }
        let mut random = Random::new(seed);
        for _ in 0..more {
            let count = random.between(2, 7);
            let part = |random: &mut Random| {
                let room = if random.chance(70) { Enough } else { random.pick(&ROOMS) };
                (random.pick(Mode::ALL), room, random.pick(Excess::ALL), random.pick(&ENTRIES))
            };
            scenes.push((0..count).map(|_| part(&mut random)).collect());
        }
        scenes.into_iter().enumerate().map(|(at, parts)| Arc::new(Self::new(at, parts))).collect()
    }

    /// A call with more limits than fit into one call to a store: the rest are shadows.
    pub fn large() -> Arc<Self> {
        let part = |place: usize| {
            let mode = if place < Call::MAX_CHECKS { Mode::Enforce } else { Mode::Shadow };
            (mode, Room::Enough, Excess::Refuse, ENTRIES[place % ENTRIES.len()])
        };
        Arc::new(Self::new(usize::MAX / 2, (0..Call::MAX_CHECKS + 8).map(part).collect()))
    }

    fn new(at: usize, parts: Vec<Words>) -> Self {
        let domain = format!("scene-{at}");
        let part = |(place, (mode, room, excess, entry)): (usize, Words)| {
            // Nothing is regained while a test runs.
            let year = Duration::from_secs(365 * 86_400);
            let algorithm = Algorithm::OVER_TIME[(at + place) % Algorithm::OVER_TIME.len()];
            let limit = Limit::builder(room.numbers().0, year).algorithm(algorithm).build().expect("a limit");
            let policy = Policy::new(format!("p{place}"), &domain, limit).expect("it has a name");
            // A failing store must not look like one that was not asked.
            let policy = policy.with_mode(mode).with_excess(excess).with_on_error(OnError::Deny);
            Part { policy, entry, room }
        };
        let parts = parts.into_iter().enumerate().map(part).collect();
        Self { domain, parts }
    }

    /// The domain of its policies.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The number of limits.
    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// Whether the limits have more than one subject.
    pub fn has_several_subjects(&self) -> bool {
        self.parts.iter().any(|part| part.entry != self.parts[0].entry)
    }

    /// Whether a check may proceed.
    pub fn allows(&self) -> bool {
        self.enforced() && self.has_quota()
    }

    /// Whether the enforcing limits let the call pass.
    fn enforced(&self) -> bool {
        self.parts.iter().all(|part| part.policy.mode() != Mode::Enforce || part.room == Room::Enough)
    }

    fn has_quota(&self) -> bool {
        let mut quotas = self.parts.iter().filter(|part| part.policy.mode() == Mode::Quota).peekable();
        quotas.peek().is_none() || quotas.any(|part| part.room == Room::Enough)
    }

    fn domain_of_rules(&self) -> Domain {
        let rule = |part: &Part| {
            let only = Want::one_of(["all", part.policy.name()]);
            (part.policy.clone(), Rule::new().when(ONLY, only).partition(part.entry))
        };
        Domain::new(&self.domain, self.parts.iter().map(rule)).expect("the policies are of this domain")
    }
}

/// The policies of all scenes.
pub fn policies(scenes: &[Arc<Scene>]) -> PolicySet {
    PolicySet::new(scenes.iter().map(|scene| scene.domain_of_rules()).collect()).expect("the names are distinct")
}

/// The same as a policy file.
pub fn yaml(scenes: &[Arc<Scene>]) -> String {
    let mut text = "policies:\n".to_owned();
    for part in scenes.iter().flat_map(|scene| &scene.parts) {
        let policy = &part.policy;
        let limit = policy.limit().expect("each has a limit");
        text.push_str(&format!(
            "- {{name: {name}, domain: {domain}, match: {{{ONLY}: [all, {name}]}}, partition: [{entry}], limit: {limit}, \
             mode: {mode}, excess: {excess}, on_error: {on_error}}}\n",
            name = policy.name(),
            domain = policy.domain(),
            entry = part.entry,
            mode = policy.mode(),
            excess = policy.excess(),
            on_error = policy.on_error(),
        ));
    }
    text
}

/// One call to a scene, with callers that no other call uses.
#[derive(Clone)]
pub struct Case {
    scene: Arc<Scene>,
    verb: Verb,
    /// The value of all entries of its descriptor.
    caller: String,
    subjects: Vec<Subject>,
}

impl Case {
    pub(super) fn new(scene: &Arc<Scene>, verb: Verb, number: usize) -> Self {
        let caller = format!("caller-{number}");
        let subjects = scene.parts.iter().map(|part| Subject::new([(part.entry, caller.as_str())])).collect();
        Self { scene: Arc::clone(scene), verb, caller, subjects }
    }

    /// Its limits.
    pub fn scene(&self) -> &Scene {
        &self.scene
    }

    /// Its verb.
    pub fn verb(&self) -> Verb {
        self.verb
    }

    /// Its cost.
    pub fn cost(&self) -> Cost {
        Cost::new(COST).expect("a cost")
    }

    /// A separate check of one of its states.
    pub fn state(&self, place: usize) -> Check<'_> {
        let policy = &self.scene.parts[place].policy;
        let key = Key::new(policy.key_name(), &self.subjects[place]).expect("a key");
        Check::new(key, policy.limit().expect("each has a limit"))
    }

    /// The checks for a store.
    pub fn checks(&self) -> Vec<Check<'_>> {
        let check = |(place, part): (usize, &Part)| {
            let check = self.state(place).cost(self.cost()).with_mode(part.policy.mode());
            let check = check.with_excess(part.policy.excess());
            if self.verb == Verb::Refund { check } else { check.within_capacity() }
        };
        self.scene.parts.iter().enumerate().map(check).collect()
    }

    /// The descriptor that matches all policies of the scene.
    pub fn descriptor(&self) -> Descriptor {
        ENTRIES.iter().fold(Descriptor::new().with(ONLY, "all"), |known, entry| known.with(*entry, &self.caller))
    }

    /// The descriptor that matches only the policy at `place`.
    pub fn descriptor_of(&self, place: usize) -> Descriptor {
        let part = &self.scene.parts[place];
        Descriptor::new().with(ONLY, part.policy.name()).with(part.entry, &self.caller)
    }

    /// The question to policies.
    pub fn ask(&self) -> Ask {
        Ask::new(self.descriptor(), Action::new(self.verb, self.cost()))
    }

    /// Whether the call may proceed, once it is answered.
    pub fn allowed(&self) -> bool {
        matches!(self.verb, Verb::Refund | Verb::Reset) || self.scene.allows()
    }

    /// The capacity of each limit.
    pub fn capacities(&self) -> Vec<u64> {
        self.scene.parts.iter().map(|part| part.room.numbers().0).collect()
    }

    /// The used units of each limit before the call.
    pub fn before(&self) -> Vec<u64> {
        self.scene.parts.iter().map(|part| part.room.numbers().1).collect()
    }

    /// The used units of each limit after a reservation was cancelled: what was drained was not held.
    pub(super) fn cancelled(&self) -> Vec<u64> {
        let used = self.scene.parts.iter().zip(self.before().into_iter().zip(self.after()));
        used.map(|(part, (before, after))| if part.room == Room::Enough { before } else { after }).collect()
    }

    /// The used units of each limit after the complete call.
    pub fn after(&self) -> Vec<u64> {
        let (enforced, allowed) = (self.scene.enforced(), self.scene.allows());
        let after = |part: &Part| {
            let (amount, used) = part.room.numbers();
            match self.verb {
                Verb::Check | Verb::Reserve => {
                    let asked = match part.policy.mode() {
                        // A cost that does not fit is drained, whatever the others answer.
                        Mode::Enforce => allowed || part.room != Room::Enough,
                        Mode::Quota => enforced,
                        _ => allowed,
                    };
                    match part.policy.excess() {
                        _ if !asked => used,
                        _ if part.room == Room::Enough => used + COST,
                        Excess::Drain => amount,
                        _ => used,
                    }
                }
                Verb::Refund => used.saturating_sub(COST),
                Verb::Reset => 0,
                _ => used,
            }
        };
        self.scene.parts.iter().map(after).collect()
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, entry, room } = self;
        let algorithm = policy.limit().map(Limit::algorithm);
        write!(f, "{} {room:?} {} per {entry} ({algorithm:?})", policy.mode(), policy.excess())
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} in {} {:?}", self.verb.name(), self.caller, self.scene.domain, self.scene.parts)
    }
}
