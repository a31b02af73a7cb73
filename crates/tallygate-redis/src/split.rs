//! A call whose states are in different slots of a cluster. No script can use them all, so they are charged separately,
//! and given back if the call is denied.

mod repeat;

use std::sync::Arc;
use std::time::Duration;

use tallygate::call::{Effect, Settlement, Taking, Verb, fund};
use tallygate::clock::Timestamp;
use tallygate::decision::Source;
use tallygate::hold::{HoldId, Resolved};
use tallygate::policy::Mode;
use tallygate::store::StoreErrorKind;
use tallygate::{Decision, Status, StoreError};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::coalesce::Questions;
use crate::connection::{Deadline, LOOK};
use crate::holds::Ending;
use crate::store::Engine;
use crate::wire::Asked;

/// For how long it is tried to give back what a denied call was charged, and the pause between two attempts.
const INSISTENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

/// A call that outlives its caller: once begun, it is finished.
pub(crate) struct Split {
    pub(crate) engine: Arc<Engine>,
    pub(crate) call: Questions,
    /// Whether what could be decided is an answer.
    pub(crate) partial: bool,
    /// Whether all states share a slot: then the call only has to be finished.
    pub(crate) together: bool,
    pub(crate) deadline: Deadline,
}

/// How some of the checks are asked about.
struct Terms {
    verb: Verb,
    denied: bool,
    at_most: Option<u64>,
}

impl Terms {
    fn of(call: &Questions) -> Self {
        Self { verb: call.verb, denied: call.denied, at_most: call.at_most }
    }
}

/// The result of one check.
#[derive(Debug, Clone)]
struct Part {
    answer: Result<Status, StoreError>,
    decided_at: Timestamp,
    /// Whether an earlier call with the same id was charged for it. Then this call gives nothing back: the other may have been allowed.
    replayed: bool,
    conflicts: bool,
    /// The hold of the earlier call.
    hold: Option<HoldId>,
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
    pub(crate) async fn run(mut self, caller: oneshot::Sender<Delivery>) {
        let mut parts = vec![None; self.call.asked.len()];
        if self.call.verb.effect() != Effect::Charges {
            let mut runs = match self.call.verb.effect() {
                // It has begun, so it is finished in every slot, however little is left of the caller's time. If each slot checked the
                // clock, some could be left out.
                Effect::GivesBack => {
                    let places: Vec<usize> = (0..self.call.asked.len()).collect();
                    let deadline = self.engine.client.default_deadline();
                    self.spawn(&places, Terms::of(&self.call), deadline)
                }
                _ => self.start(Terms::of(&self.call), |_| true),
            };
            self.collect_in_time(&mut runs, &mut parts).await;
            drop(Delivery::send(self.decision(&parts), caller));
            return collect(&mut runs, &mut parts).await;
        }
        self.look_for_a_hold().await;
        // If this process dies before all slots have answered, the call may be denied: what it holds then comes back.
        for asked in self.call.asked.iter_mut().filter(|asked| asked.mode != Mode::Shadow) {
            asked.unconfirmed = true;
        }
        if self.call.at_most.is_some() {
            // What one slot has not got must not be taken from the others, not even for a moment: look first.
            let terms = Terms { verb: Verb::Peek, denied: false, at_most: None };
            let mut looks = self.start(terms, |mode| mode != Mode::Shadow);
            self.collect_in_time(&mut looks, &mut parts).await;
            if let Some(conflict) = self.conflict(&parts) {
                return drop(Delivery::send(Ok(conflict), caller));
            }
            // If it is denied nevertheless, it takes the least, and gives it back.
            let least = self.call.asked.iter().map(|asked| asked.cost).max().unwrap_or(1);
            // What an earlier call with the same id was charged is no longer left.
            let left = |place: usize, status: &Status| match parts[place].as_ref().is_some_and(|part| part.replayed) {
                true => status.units(),
                false => status.remaining(),
            };
            self.call.at_most = self.granted(&parts, left).map(|left| left.max(least));
            let known = (0..parts.len()).all(|place| self.is_shadow(place) || status(&parts, place).is_some());
            if known && !self.settle(&parts).allowed() && !self.call.asked.iter().any(|asked| asked.drains) {
                let shadows = (0..parts.len()).filter(|&place| self.is_shadow(place)).collect::<Vec<_>>();
                let terms = Terms { verb: Verb::Peek, denied: false, at_most: None };
                self.collect_in_time(&mut self.spawn(&shadows, terms, self.patient()), &mut parts).await;
                let denied = self.decision(&parts).map(|decision| decision.with_allowed(false).with_granted(Some(0)));
                return drop(Delivery::send(denied, caller));
            }
            parts.fill(None);
        }
        let mut runs = self.start(Terms::of(&self.call), |mode| mode == Mode::Enforce);
        // A quota that fits is charged, whatever the others in its slot answer.
        let quota_verb = if self.call.denied { Verb::Peek } else { self.call.verb };
        let terms = Terms { verb: quota_verb, denied: false, ..Terms::of(&self.call) };
        let mut quotas = self.start(terms, |mode| mode == Mode::Quota);
        self.collect_in_time(&mut runs, &mut parts).await;
        self.collect_in_time(&mut quotas, &mut parts).await;
        if let Some(error) = self.fatal(&parts) {
            drop(Delivery::send(Err(error), caller));
            collect(&mut runs, &mut parts).await;
            collect(&mut quotas, &mut parts).await;
            return finish(self.give_back(&parts, &charged(&parts))).await;
        }
        if let Some(conflict) = self.conflict(&parts) {
            drop(Delivery::send(Ok(conflict), caller));
            collect(&mut runs, &mut parts).await;
            collect(&mut quotas, &mut parts).await;
            return finish(self.give_back(&parts, &charged(&parts))).await;
        }
        let decided: Vec<bool> =
            (0..parts.len()).map(|at| self.is_shadow(at) || status(&parts, at).is_some()).collect();
        let settlement = self.settle(&parts);
        let granted = self.granted(&parts, |_, status| status.units());
        let mut too_much = charged(&parts);
        too_much.retain_mut(|(place, units, _)| {
            *units -= self.kept(settlement, &parts, *place, granted);
            let kept = self.payers(*place).map(|payer| self.kept(settlement, &parts, payer, granted)).sum();
            *units > 0 && !self.keeps_all(kept)
        });
        let mut undo = self.give_back(&parts, &too_much);
        let given_back = |place: usize| too_much.iter().any(|(other, ..)| *other == place);
        let confirms = |place: &usize| settlement.allowed() && !given_back(*place);
        let mut confirm = self.confirm(&parts, (0..parts.len()).filter(confirms));
        let shadow_verb = if settlement.allowed() { self.call.verb } else { Verb::Peek };
        let terms = Terms { verb: shadow_verb, denied: false, at_most: granted };
        // A deadline of their own: the outcome is known, and they are charged even if the answer does not wait for them.
        let places: Vec<usize> = (0..self.call.asked.len()).filter(|&place| self.is_shadow(place)).collect();
        let mut shadows = self.spawn(&places, terms, self.engine.client.default_deadline());
        self.collect_in_time(&mut shadows, &mut parts).await;
        let done = async { while confirm.join_next().await.is_some() || undo.join_next().await.is_some() {} };
        let _ = timeout_at(self.deadline.answer_by, done).await;
        for (place, units, _) in &too_much {
            if let Some(Part { answer: Ok(status), .. }) = &mut parts[*place] {
                *status = status.with_refund(*units);
            }
        }
        let granted_in_all = granted.map(|granted| if settlement.allowed() { granted } else { 0 });
        let decision = self.decision(&parts).map(|decision| self.repeated(decision, &parts));
        let decision = decision.map(|it| it.with_allowed(settlement.allowed()).with_granted(granted_in_all));
        let received = Delivery::send(decision, caller);
        finish(shadows).await;
        finish(undo).await;
        finish(confirm).await;
        collect(&mut runs, &mut parts).await;
        collect(&mut quotas, &mut parts).await;
        // A caller that is gone cannot say what its policies answer for what could not be decided.
        let delivered = !decided.contains(&false) || received.await.is_ok();
        // Of what was decided, only what is kept still counts as charged.
        let kept = |place: usize| match (delivered, decided[place], settlement.allowed()) {
            (false, ..) | (true, false, false) => 0,
            (true, true, _) => u64::MAX,
            (true, false, true) => granted.unwrap_or(u64::MAX),
        };
        let mut in_vain = charged(&parts);
        in_vain.retain_mut(|(place, units, _)| {
            *units -= self.part_of(&parts, *place, kept(*place));
            *units > 0 && !self.keeps_all(kept(*place))
        });
        finish(self.give_back(&parts, &in_vain)).await;
        let late = |place: &usize| !decided[*place] && kept(*place) > 0;
        finish(self.confirm(&parts, (0..parts.len()).filter(late))).await;
    }

    fn is_shadow(&self, place: usize) -> bool {
        self.call.asked[place].mode == Mode::Shadow
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
        Settlement::of(self.call.denied, self.call.asked.iter().enumerate().map(fits))
    }

    /// How many units a call takes that takes what is left, by what each check has left or has taken. What nobody can say is
    /// no limit, unless it fails closed.
    fn granted(&self, parts: &[Option<Part>], units: impl Fn(usize, &Status) -> u64) -> Option<u64> {
        let most = self.call.at_most?;
        let left = |(place, asked): (usize, &Asked)| match status(parts, place) {
            Some(status) => (asked.mode, if status.allowed() { units(place, status) } else { 0 }),
            None => (asked.mode, if asked.fails_closed { 0 } else { most }),
        };
        let with_payers = |(place, asked): (usize, &Asked)| {
            let (mode, left) = left((place, asked));
            (mode, asked.pays_rest, left)
        };
        Some(Settlement::granted(most, fund::sums(self.call.asked.iter().enumerate().map(with_payers))))
    }

    /// The payers of the cost that a check pays: usually the check alone. They share a slot, because they share a subject.
    fn payers(&self, place: usize) -> std::ops::Range<usize> {
        let asked = &self.call.asked;
        let first = (0..=place).rev().find(|&at| !asked[at].pays_rest).unwrap_or(0);
        first..place + 1 + asked[place + 1..].iter().take_while(|asked| asked.pays_rest).count()
    }

    /// How many units of those that a check was charged stay charged, if all payers of its cost keep this many: the last payer is given
    /// back first.
    fn part_of(&self, parts: &[Option<Part>], place: usize, kept: u64) -> u64 {
        let units = |place| status(parts, place).map_or(0, Status::units);
        let before: u64 = (self.payers(place).start..place).map(units).sum();
        units(place).min(kept.saturating_sub(before))
    }

    /// How many of the units that a check was charged stay charged.
    fn kept(&self, settlement: Settlement, parts: &[Option<Part>], place: usize, granted: Option<u64>) -> u64 {
        let (asked, Some(status)) = (&self.call.asked[place], status(parts, place)) else { return 0 };
        match settlement.taking(asked.mode, asked.drains, status.allowed()) {
            Taking::Nothing => 0,
            Taking::Rest => status.units(),
            Taking::Cost => {
                let units = self.payers(place).filter_map(|payer| self::status(parts, payer)).map(Status::units).sum();
                let kept = |granted| Settlement::part_of_grant(asked.mode, granted, units);
                granted.map_or(status.units(), |granted| self.part_of(parts, place, kept(granted)))
            }
        }
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
            read_all = self.call.asked.iter().all(|asked| self.engine.client.has_read_all(slot(asked)));
            done = timeout(LOOK, collect(runs, parts)).await.is_ok();
        }
    }

    /// Asks about the checks of some modes: one run for each slot, all slots at once.
    fn start(&self, terms: Terms, chosen: impl Fn(Mode) -> bool) -> Runs {
        let places: Vec<usize> =
            (0..self.call.asked.len()).filter(|&place| chosen(self.call.asked[place].mode)).collect();
        self.spawn(&places, terms, self.patient())
    }

    /// Gives units back. What cannot be given back stays charged until it stops counting.
    fn give_back(&self, parts: &[Option<Part>], charged: &[(usize, u64, Timestamp)]) -> Runs {
        let held = |place: usize| self.call.reservation.is_some() && status(parts, place).is_some_and(Status::allowed);
        let mut runs = self.cancel(charged.iter().map(|(place, ..)| *place).filter(|&place| held(place)));
        // What does not fit was drained, and is not held.
        let charged: Vec<_> = charged.iter().copied().filter(|(place, ..)| !held(*place)).collect();
        let mut asked = self.call.asked.clone();
        for &(place, units, at) in &charged {
            let asked = &mut asked[place];
            (asked.cost, asked.charged_at, asked.pays_rest) = (units, Some(at), false);
        }
        let places: Vec<usize> = charged.iter().map(|(place, ..)| *place).collect();
        for group in self.groups(Verb::Refund, &places) {
            let engine = Arc::clone(&self.engine);
            let asked = group.iter().map(|&place| asked[place].clone()).collect();
            let refund = Questions { request: self.request_of(group[0]), ..Questions::new(Verb::Refund, asked) };
            runs.spawn(async move { (group, insist(|| engine.run(&refund, engine.client.default_deadline())).await) });
        }
        runs
    }

    /// Cancels what a call has reserved that is denied. What cannot be cancelled is held until its deadline.
    fn cancel(&self, places: impl Iterator<Item = usize>) -> Runs {
        let mut runs = JoinSet::new();
        let Some(id) = self.call.reservation.as_ref().map(|reservation| reservation.id()) else { return runs };
        for place in places {
            let (engine, asked) = (Arc::clone(&self.engine), &self.call.asked[place]);
            let (cancel, of_nothing) = (Ending::cancel(id, asked), Status::untouched(&asked.limit));
            let request = self.request_of(place);
            let nothing = vec![Asked { cost: 0, ..asked.clone() }];
            let forget =
                request.map(|request| Questions { request: Some(request), ..Questions::new(Verb::Refund, nothing) });
            runs.spawn(async move {
                // First, because an answer that is remembered must have been charged.
                if let Some(forget) = &forget {
                    let _ = insist(|| engine.run(forget, engine.client.default_deadline())).await;
                }
                let ended = engine.end_hold_surely(&cancel).await;
                let given = |ended: Resolved| {
                    let units = ended.parts.first().map_or(0, |part| part.refunded);
                    Decision::of_one(of_nothing.with_units(units), Source::Store, ended.decided_at)
                };
                (vec![place], ended.map(given))
            });
        }
        runs
    }

    /// Confirms what an allowed call has reserved. What cannot be confirmed is given back if nobody settles it by its deadline.
    fn confirm(&self, parts: &[Option<Part>], places: impl Iterator<Item = usize>) -> JoinSet<()> {
        let mut runs = JoinSet::new();
        let Some(id) = self.call.reservation.as_ref().map(|reservation| reservation.id()) else { return runs };
        for place in places {
            let asked = &self.call.asked[place];
            let holds = |status: &Status| status.allowed() && status.units() > 0;
            if asked.awaits_confirmation() && status(parts, place).is_some_and(holds) {
                let (engine, confirm) = (Arc::clone(&self.engine), Ending::confirm(id, asked));
                runs.spawn(async move { drop(engine.end_hold_surely(&confirm).await) });
            }
        }
        runs
    }

    /// The checks of each run.
    fn groups(&self, verb: Verb, places: &[usize]) -> Vec<Vec<usize>> {
        // A hold has a record for each state: which of the others share a slot is not known to those that resolve it.
        match verb == Verb::Reserve || self.call.request().is_some() {
            true => {
                let mut places = places.to_vec();
                places.sort_unstable();
                places.chunk_by(|&one, &next| self.payers(one).contains(&next)).map(<[usize]>::to_vec).collect()
            }
            false => self.engine.by_slot(&self.call.asked, places),
        }
    }

    fn spawn(&self, places: &[usize], terms: Terms, deadline: Deadline) -> Runs {
        let Terms { verb, denied, at_most } = terms;
        let mut runs = JoinSet::new();
        for group in self.groups(verb, places) {
            let engine = Arc::clone(&self.engine);
            // Of what is left, each quota takes what it can: which of them pays is not known before the other slots have answered.
            let as_shadow = |asked: Asked| match asked.mode {
                Mode::Quota if at_most.is_some() => Asked { mode: Mode::Shadow, ..asked },
                _ => asked,
            };
            let asked = group.iter().map(|&place| as_shadow(self.call.asked[place].clone())).collect();
            let reservation = self.call.reservation.clone().filter(|_| verb == Verb::Reserve);
            let request = self.request_of(group[0]);
            let call = Questions { denied, at_most, reservation, request, ..Questions::new(verb, asked) };
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
        for (place, asked) in self.call.asked.iter().enumerate() {
            match status(parts, place) {
                Some(known) => {
                    statuses.push(*known);
                    let at = parts[place].as_ref().map(|part| part.decided_at);
                    decided_at = decided_at.map_or(at, |earliest| at.map(|at| at.min(earliest)));
                }
                None => {
                    statuses.push(Status::untouched(&asked.limit).seen_by(asked.pays_rest, false));
                    failures.push((place, failure(parts, place)));
                }
            }
        }
        let decides = |place: usize| self.call.verb.effect() == Effect::Reads && !self.is_shadow(place);
        let fatal = |place: usize| decides(place) && !self.partial;
        if failures.len() == self.call.asked.len() || failures.iter().any(|(place, _)| fatal(*place)) {
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
pub(crate) async fn insist<T, F>(call: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let until = Instant::now() + INSISTENCE;
    loop {
        let answer = call().await;
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
                    replayed: decision.replayed(),
                    conflicts: decision.conflicts(),
                    hold: decision.first_hold(),
                },
                Err(error) => {
                    let (answer, decided_at) = (Err(error.clone()), Timestamp::from_micros(0));
                    Part { answer, decided_at, replayed: false, conflicts: false, hold: None }
                }
            });
        }
    }
}

/// What this call was charged: the position of the check, the units, and the instant.
fn charged(parts: &[Option<Part>]) -> Vec<(usize, u64, Timestamp)> {
    let units = |(place, part): (usize, &Option<Part>)| {
        let part = part.as_ref().filter(|part| !part.replayed)?;
        let units = part.answer.as_ref().ok()?.units();
        (units > 0).then_some((place, units, part.decided_at))
    };
    parts.iter().enumerate().filter_map(units).collect()
}

#[cfg(test)]
mod tests;
