//! A call whose states are in different slots of a cluster. No script can use them all, so they are charged separately,
//! and given back if the call is denied.

use std::sync::Arc;
use std::time::Duration;

use tallygate::call::{Effect, Settlement, Taking, Verb};
use tallygate::clock::Timestamp;
use tallygate::decision::Source;
use tallygate::policy::Mode;
use tallygate::store::StoreErrorKind;
use tallygate::{Decision, Status, StoreError};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::coalesce::Questions;
use crate::connection::{Deadline, LOOK};
use crate::store::Engine;
use crate::wire::Asked;

/// For how long it is tried to give back what a denied call was charged, and the pause between two attempts.
const INSISTENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

/// A call that outlives its caller: once begun, it is finished.
pub(crate) struct Split {
    pub(crate) engine: Arc<Engine>,
    pub(crate) verb: Verb,
    pub(crate) denied: bool,
    /// Whether what could be decided is an answer.
    pub(crate) partial: bool,
    pub(crate) asked: Vec<Asked>,
    /// Whether all states share a slot: then the call only has to be finished.
    pub(crate) together: bool,
    pub(crate) deadline: Deadline,
}

/// The result of one check.
#[derive(Debug, Clone)]
struct Part {
    answer: Result<Status, StoreError>,
    decided_at: Timestamp,
}

type Answer = Result<Decision, StoreError>;

/// An answer on its way. Only a caller that receives it has it: a caller may leave between the sending and the receiving.
pub(crate) struct Delivery {
    answer: Answer,
    receipt: oneshot::Sender<()>,
}

impl Delivery {
    pub(crate) fn receive(self) -> Answer {
        let _ = self.receipt.send(());
        self.answer
    }

    /// Sends an answer. The receipt comes when the caller has it, or an error when the caller is gone.
    fn send(answer: Answer, to: oneshot::Sender<Self>) -> oneshot::Receiver<()> {
        let (receipt, received) = oneshot::channel();
        let _ = to.send(Self { answer, receipt });
        received
    }
}

/// Runs in progress, one for each slot: the positions of its checks, and their result.
type Runs = JoinSet<(Vec<usize>, Answer)>;

impl Split {
    /// Runs as a separate task. The answer is sent by the deadline. Runs that are still in progress then are awaited,
    /// so that nothing that was charged too late stays charged.
    pub(crate) async fn run(self, caller: oneshot::Sender<Delivery>) {
        let mut parts = vec![None; self.asked.len()];
        if self.verb.effect() != Effect::Charges {
            let mut runs = match self.verb.effect() {
                // It has begun, so it is finished in every slot, however little is left of the caller's time. If each slot checked the
                // clock, some could be left out.
                Effect::GivesBack => {
                    let places: Vec<usize> = (0..self.asked.len()).collect();
                    let deadline = self.engine.client.default_deadline();
                    self.spawn(self.verb, self.denied, &self.asked, &places, deadline)
                }
                _ => self.start(self.verb, self.denied, |_| true),
            };
            self.collect_in_time(&mut runs, &mut parts).await;
            drop(Delivery::send(self.decision(&parts), caller));
            return collect(&mut runs, &mut parts).await;
        }
        let mut runs = self.start(self.verb, self.denied, |mode| mode == Mode::Enforce);
        // A quota that fits is charged, whatever the others in its slot answer.
        let quota_verb = if self.denied { Verb::Peek } else { self.verb };
        let mut quotas = self.start(quota_verb, false, |mode| mode == Mode::Quota);
        self.collect_in_time(&mut runs, &mut parts).await;
        self.collect_in_time(&mut quotas, &mut parts).await;
        if let Some(error) = self.fatal(&parts) {
            drop(Delivery::send(Err(error), caller));
            collect(&mut runs, &mut parts).await;
            collect(&mut quotas, &mut parts).await;
            return finish(self.give_back(&charged(&parts))).await;
        }
        let decided: Vec<bool> =
            (0..parts.len()).map(|at| self.is_shadow(at) || status(&parts, at).is_some()).collect();
        let settlement = self.settle(&parts);
        let mut too_much = charged(&parts);
        too_much.retain(|&(place, ..)| self.is_too_much(settlement, &parts, place));
        let mut undo = self.give_back(&too_much);
        let shadow_verb = if settlement.allowed() { self.verb } else { Verb::Peek };
        // A deadline of their own: the outcome is known, and they are charged even if the answer does not wait for them.
        let places: Vec<usize> = (0..self.asked.len()).filter(|&place| self.is_shadow(place)).collect();
        let mut shadows = self.spawn(shadow_verb, false, &self.asked, &places, self.engine.client.default_deadline());
        self.collect_in_time(&mut shadows, &mut parts).await;
        let undone = async { while undo.join_next().await.is_some() {} };
        let _ = timeout_at(self.deadline.answer_by, undone).await;
        for (place, units, _) in &too_much {
            if let Some(Part { answer: Ok(status), .. }) = &mut parts[*place] {
                *status = status.with_refund(*units);
            }
        }
        let decision = self.decision(&parts).map(|decision| decision.with_allowed(settlement.allowed()));
        let received = Delivery::send(decision, caller);
        finish(shadows).await;
        finish(undo).await;
        collect(&mut runs, &mut parts).await;
        collect(&mut quotas, &mut parts).await;
        // A caller that is gone cannot say what its policies answer for what could not be decided.
        let delivered = !decided.contains(&false) || received.await.is_ok();
        let in_vain = |place: usize| match (delivered, decided[place]) {
            (false, _) => !too_much.iter().any(|(other, ..)| *other == place),
            (true, false) => !settlement.allowed(),
            (true, true) => false,
        };
        let mut charged = charged(&parts);
        charged.retain(|&(place, ..)| in_vain(place));
        finish(self.give_back(&charged)).await;
    }

    fn is_shadow(&self, place: usize) -> bool {
        self.asked[place].mode == Mode::Shadow
    }

    /// Why what is known is no answer, if it is not: nothing is known, the caller needs all of it, or a check is only late. The
    /// store may be healthy then, and the call is taken back as a whole.
    fn fatal(&self, parts: &[Option<Part>]) -> Option<StoreError> {
        let decides = |place: usize| !self.is_shadow(place);
        let mut undecided = (0..parts.len()).filter(|&place| decides(place) && status(parts, place).is_none());
        let first = undecided.next()?;
        let nothing = !(0..parts.len()).any(|place| decides(place) && status(parts, place).is_some());
        let late = std::iter::once(first).chain(undecided).map(|place| failure(parts, place)).find(StoreError::is_late);
        late.or_else(|| (nothing || !self.partial).then(|| failure(parts, first)))
    }

    /// What was decided, and what counts as fitting because nobody can say.
    fn settle(&self, parts: &[Option<Part>]) -> Settlement {
        let fits = |(place, asked): (usize, &Asked)| match status(parts, place) {
            Some(status) => (asked.mode, status.allowed()),
            None => (asked.mode, !asked.fails_closed),
        };
        Settlement::of(self.denied, self.asked.iter().enumerate().map(fits))
    }

    /// Whether what a check was charged must be given back.
    fn is_too_much(&self, settlement: Settlement, parts: &[Option<Part>], place: usize) -> bool {
        let (asked, fits) = (&self.asked[place], status(parts, place).is_some_and(Status::allowed));
        settlement.taking(asked.mode, asked.drains, fits) == Taking::Nothing
    }

    /// Nothing is sent after the caller's deadline, but what was sent is awaited for twice the store's deadline.
    fn patient(&self) -> Deadline {
        let usual = self.engine.client.default_deadline().answer_by;
        let answer_by = usual + usual.saturating_duration_since(Instant::now());
        Deadline { answer_by, ..self.deadline }
    }

    async fn collect_in_time(&self, runs: &mut Runs, parts: &mut [Option<Part>]) {
        let mut done = timeout_at(self.deadline.answer_by, collect(runs, parts)).await.is_ok();
        // What has arrived by then, and was only not read by a busy process, still counts.
        let mut read_all = false;
        while !done && !read_all {
            let slot = |asked: &Asked| self.engine.client.slot(&asked.key);
            read_all = self.asked.iter().all(|asked| self.engine.client.has_read_all(slot(asked)));
            done = timeout(LOOK, collect(runs, parts)).await.is_ok();
        }
    }

    /// Asks about the checks of some modes: one run for each slot, all slots at once.
    fn start(&self, verb: Verb, denied: bool, chosen: impl Fn(Mode) -> bool) -> Runs {
        let places: Vec<usize> = (0..self.asked.len()).filter(|&place| chosen(self.asked[place].mode)).collect();
        self.spawn(verb, denied, &self.asked, &places, self.patient())
    }

    /// Gives units back. What cannot be given back stays charged until it stops counting.
    fn give_back(&self, charged: &[(usize, u64, Timestamp)]) -> Runs {
        let mut asked = self.asked.clone();
        for &(place, units, at) in charged {
            (asked[place].cost, asked[place].charged_at) = (units, Some(at));
        }
        let places: Vec<usize> = charged.iter().map(|(place, ..)| *place).collect();
        let mut runs = JoinSet::new();
        for group in self.engine.by_slot(&asked, &places) {
            let engine = Arc::clone(&self.engine);
            let asked = group.iter().map(|&place| asked[place].clone()).collect();
            let refund = Questions { verb: Verb::Refund, denied: false, asked };
            runs.spawn(async move { (group, insist(&engine, &refund).await) });
        }
        runs
    }

    fn spawn(&self, verb: Verb, denied: bool, asked: &[Asked], places: &[usize], deadline: Deadline) -> Runs {
        let mut runs = JoinSet::new();
        for group in self.engine.by_slot(asked, places) {
            let engine = Arc::clone(&self.engine);
            let asked: Vec<Asked> = group.iter().map(|&place| asked[place].clone()).collect();
            let call = Questions { verb, denied, asked };
            runs.spawn(async move { (group, engine.coalesced(call, deadline).await) });
        }
        runs
    }

    /// The answer to the call. A shadow that could not be asked about does not prevent the answer, and neither does one
    /// failed refund of several.
    fn decision(&self, parts: &[Option<Part>]) -> Answer {
        let (mut statuses, mut failures) = (Vec::new(), Vec::new());
        // Each slot has the clock of its own server. The earliest is used, from which no refund can profit.
        let mut decided_at: Option<Timestamp> = None;
        for (place, asked) in self.asked.iter().enumerate() {
            match status(parts, place) {
                Some(known) => {
                    statuses.push(*known);
                    let at = parts[place].as_ref().map(|part| part.decided_at);
                    decided_at = decided_at.map_or(at, |earliest| at.map(|at| at.min(earliest)));
                }
                None => {
                    statuses.push(Status::untouched(&asked.limit));
                    failures.push((place, failure(parts, place)));
                }
            }
        }
        let decides = |place: usize| self.verb.effect() == Effect::Reads && !self.is_shadow(place);
        let fatal = |place: usize| decides(place) && !self.partial;
        if failures.len() == self.asked.len() || failures.iter().any(|(place, _)| fatal(*place)) {
            return Err(failures.swap_remove(0).1);
        }
        let allowed = self.settle(parts).allowed();
        let decided_at = decided_at.unwrap_or(Timestamp::from_micros(0));
        let decision = Decision::new(allowed, statuses, Source::Store, decided_at).with_failures(failures);
        Ok(if self.together { decision } else { decision.into_split() })
    }
}

/// Tries a call again while it could not be sent, or was refused by a server that is not ready: nobody waits for it, and this process
/// may only have had no time.
async fn insist(engine: &Engine, call: &Questions) -> Answer {
    let until = Instant::now() + INSISTENCE;
    loop {
        let answer = engine.run(call, engine.client.default_deadline()).await;
        let passing = |error: &StoreError| {
            let kind = matches!(error.kind(), StoreErrorKind::Unavailable | StoreErrorKind::Overloaded);
            kind && !error.may_have_charged()
        };
        if Instant::now() >= until || !answer.as_ref().is_err_and(passing) {
            return answer;
        }
        sleep(PAUSE).await;
    }
}

/// The status of a check, if it was decided.
fn status(parts: &[Option<Part>], place: usize) -> Option<&Status> {
    parts[place].as_ref().and_then(|part| part.answer.as_ref().ok())
}

/// Why a check was not decided.
fn failure(parts: &[Option<Part>], place: usize) -> StoreError {
    let known = parts[place].as_ref().and_then(|part| part.answer.as_ref().err()).cloned();
    known.unwrap_or_else(|| StoreError::ambiguous("the deadline passed before the slot had answered").late())
}

/// Awaits runs whose answers are not needed.
async fn finish<T: 'static>(mut runs: JoinSet<T>) {
    while runs.join_next().await.is_some() {}
}

async fn collect(runs: &mut Runs, parts: &mut [Option<Part>]) {
    while let Some(done) = runs.join_next().await {
        let Ok((group, answer)) = done else { continue };
        for (at, place) in group.into_iter().enumerate() {
            parts[place] = Some(match &answer {
                Ok(decision) => Part {
                    answer: decision.failure(at).map_or(Ok(decision.statuses()[at]), |error| Err(error.clone())),
                    decided_at: decision.decided_at().unwrap_or(Timestamp::from_micros(0)),
                },
                Err(error) => Part { answer: Err(error.clone()), decided_at: Timestamp::from_micros(0) },
            });
        }
    }
}

/// What was charged: the position of the check, the units, and the instant.
fn charged(parts: &[Option<Part>]) -> Vec<(usize, u64, Timestamp)> {
    let units = |(place, part): (usize, &Option<Part>)| {
        let part = part.as_ref()?;
        let units = part.answer.as_ref().ok()?.units();
        (units > 0).then_some((place, units, part.decided_at))
    };
    parts.iter().enumerate().filter_map(units).collect()
}

#[cfg(test)]
mod tests {
    use tallygate::call::Call;
    use tallygate::{Check, Key, Limit, Store};
    use tallygate_testkit::wait::PATIENCE;
    use tallygate_testkit::{Cluster, Flavour};

    use super::*;
    use crate::RedisStore;

    /// On a busy machine the refund ran out of its one deadline before it was sent, and a denied call stayed charged in a healthy slot.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_a_denied_call_was_charged_is_given_back_although_there_was_no_time_at_first() {
        let cluster = Cluster::start(Flavour::Redis, 3, 0);
        let store = RedisStore::builder(&cluster.url()).deadline(Duration::from_millis(100)).connect().await.unwrap();
        let (free, spent): (Limit, Limit) = ("9/h".parse().unwrap(), "1/h".parse().unwrap());
        let checks = [("free", "a", &free), ("spent", "b", &spent)];
        let checks = checks.map(|(policy, subject, limit)| Check::new(Key::new(policy, subject).unwrap(), limit));
        let ask = async |verb: Verb, checks: &[Check<'_>]| {
            let start = Instant::now();
            loop {
                match store.call(&Call::new(verb, checks).unwrap()).await {
                    Ok(decision) => return decision,
                    Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
                }
            }
        };
        while ask(Verb::Check, &checks[1..]).await.allowed() {}
        let servers = store.engine.client.servers();
        let taken: Vec<_> = servers
            .iter()
            .map(|(node, _)| Arc::clone(node.places(Effect::GivesBack)).try_acquire_many_owned(1024).unwrap())
            .collect();
        let denied = ask(Verb::Check, &checks).await;
        assert!(!denied.allowed() && denied.split());
        sleep(Duration::from_millis(300)).await;
        drop(taken);
        let start = Instant::now();
        while ask(Verb::Peek, &checks[..1]).await.binding().remaining() < 9 {
            assert!(start.elapsed() < PATIENCE, "it stays charged");
        }
    }
}
