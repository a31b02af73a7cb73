//! Hot keys: concurrent calls about one key share the runs of a script.
//!
//! The first call about a key runs at once. Those that come while it is in flight wait in its lane, and go out together as
//! the next run, which decides them one after the other. So a key has one run in flight, whatever the number of callers, and
//! a call that meets no other costs what it did before.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tallygate::call::{Effect, Verb};
use tallygate::hold::Reservation;
use tallygate::request::Request;
use tallygate::{Decision, StoreError};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use crate::connection::{Deadline, LOOK};
use crate::store::Engine;
use crate::wire::Asked;

/// The most calls in one run: a fraction of a millisecond of the server's time.
const MAX_CALLS: usize = 128;
/// The most calls that wait in one lane. Those beyond run by themselves.
const MAX_WAITING: usize = 4096;

/// One call of a run.
#[derive(Debug, Clone)]
pub(crate) struct Questions {
    pub(crate) verb: Verb,
    pub(crate) denied: bool,
    /// The most units of a call that takes what is left.
    pub(crate) at_most: Option<u64>,
    /// What a call asks for that reserves. Boxed, as it is rare.
    pub(crate) reservation: Option<Box<Reservation>>,
    /// What its answer is remembered by, if it has an id.
    pub(crate) request: Option<Box<Request>>,
    /// Whether it looks at holds because a state turned out to be marked.
    pub(crate) marked: bool,
    pub(crate) asked: Vec<Asked>,
}

impl Questions {
    /// A call that takes or gives back the costs of its checks.
    pub(crate) fn new(verb: Verb, asked: Vec<Asked>) -> Self {
        Self { verb, denied: false, at_most: None, reservation: None, request: None, marked: false, asked }
    }

    /// What its answer is remembered by. A call that is denied in any case has none.
    pub(crate) fn request(&self) -> Option<&Request> {
        self.request.as_deref().filter(|_| !self.denied)
    }

    /// Whether it may be sent again although it may have taken effect. What is drained by a denied call is not remembered, nor is what
    /// is given back.
    pub(crate) fn is_repeatable(&self) -> bool {
        let gives_back = self.verb.effect() == Effect::GivesBack;
        self.request().is_some() && !gives_back && !self.asked.iter().any(|asked| asked.drains)
    }

    /// Whether it looks at what is held of its states. The script says so if a plain call has to.
    pub(crate) fn looks_at_holds(&self) -> bool {
        let usual = matches!(self.verb, Verb::Check | Verb::Peek);
        self.marked || !usual || self.asked.iter().any(|asked| asked.terms.is_some())
    }
}

/// The keys that have a run in flight.
#[derive(Debug, Default)]
pub(crate) struct Lanes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The lane of a key.
    by_key: HashMap<String, u64>,
    lanes: HashMap<u64, Lane>,
    next: u64,
}

#[derive(Debug, Default)]
struct Lane {
    keys: Vec<String>,
    waiting: Vec<Waiting>,
}

/// A call that waits for the run in flight to end.
#[derive(Debug)]
struct Waiting {
    call: Questions,
    ticket: Arc<Ticket>,
    caller: Caller,
}

/// Who waits for the answer to a call, and for how long.
#[derive(Debug)]
struct Caller {
    deadline: Deadline,
    answer: oneshot::Sender<Answer>,
}

type Answer = Result<Decision, StoreError>;

/// Whether a call still waits: [`WAITING`], [`TAKEN`] for the next run, or [`LEFT`] because its time is up.
#[derive(Debug)]
struct Ticket(AtomicU8);

const WAITING: u8 = 0;
const TAKEN: u8 = 1;
const LEFT: u8 = 2;

impl Ticket {
    fn turn(&self, to: u8) -> bool {
        self.0.compare_exchange(WAITING, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// What to do with a call.
pub(crate) enum Turn {
    /// Run it now. Others wait for the guard to be dropped.
    Run(Option<LaneGuard>),
    /// Wait for the run in flight: the lane to wait in.
    Wait(u64),
}

/// The run in flight of a lane, by the call that opened it. When it ends, even because its caller is gone, those that wait
/// are served by a task of their own.
pub(crate) struct LaneGuard {
    engine: Arc<Engine>,
    lane: u64,
    /// That of the call, which need not be the current one when the call is dropped.
    runtime: Option<Handle>,
}

impl Drop for LaneGuard {
    fn drop(&mut self) {
        if self.engine.lanes.close_if_empty(self.lane) {
            return;
        }
        let open = OpenLane { engine: Arc::clone(&self.engine), lane: self.lane };
        if let Some(runtime) = &self.runtime {
            runtime.spawn(serve(open));
        }
    }
}

/// Closes the lane when those that wait have been served, or when the runtime that should serve them is gone.
struct OpenLane {
    engine: Arc<Engine>,
    lane: u64,
}

impl Drop for OpenLane {
    fn drop(&mut self) {
        self.engine.lanes.close(self.lane);
    }
}

impl Lanes {
    /// Decides whether a call about these keys runs now or waits.
    pub(crate) fn enter<'k>(engine: &Arc<Engine>, keys: impl Iterator<Item = &'k str> + Clone) -> Turn {
        let mut state = engine.lanes.state();
        if let Some(&lane) = keys.clone().find_map(|key| state.by_key.get(key)) {
            let full = state.lanes.get(&lane).is_none_or(|lane| lane.waiting.len() >= MAX_WAITING);
            return if full { Turn::Run(None) } else { Turn::Wait(lane) };
        }
        let lane = state.next;
        state.next += 1;
        let keys: Vec<String> = keys.map(str::to_owned).collect();
        for key in &keys {
            state.by_key.insert(key.clone(), lane);
        }
        state.lanes.insert(lane, Lane { keys, waiting: Vec::new() });
        drop(state);
        Turn::Run(Some(LaneGuard { engine: Arc::clone(engine), lane, runtime: Handle::try_current().ok() }))
    }

    /// Puts a call into a lane. Returns the question if the lane has closed in the meantime.
    fn push(&self, lane: u64, waiting: Waiting) -> Result<(), Questions> {
        match self.state().lanes.get_mut(&lane) {
            Some(lane) => {
                lane.waiting.push(waiting);
                Ok(())
            }
            None => Err(waiting.call),
        }
    }

    /// The calls of the next run, all of which may be repeated, or none; closes the lane if there are none.
    fn next_run(&self, lane: u64, most: usize) -> Vec<Waiting> {
        let mut state = self.state();
        let Some(open) = state.lanes.get_mut(&lane) else { return Vec::new() };
        let mut run: Vec<Waiting> = Vec::new();
        let mut rest = Vec::new();
        for waiting in open.waiting.drain(..) {
            let alike = |first: &Waiting| first.call.is_repeatable() == waiting.call.is_repeatable();
            if run.len() == most || !run.first().is_none_or(alike) {
                rest.push(waiting);
            } else if !waiting.caller.answer.is_closed() && waiting.ticket.turn(TAKEN) {
                run.push(waiting);
            }
        }
        open.waiting = rest;
        if run.is_empty() {
            state.close(lane);
        }
        run
    }

    fn close_if_empty(&self, lane: u64) -> bool {
        let mut state = self.state();
        let empty = state.lanes.get(&lane).is_none_or(|lane| lane.waiting.is_empty());
        if empty {
            state.close(lane);
        }
        empty
    }

    fn close(&self, lane: u64) {
        self.state().close(lane);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn close(&mut self, lane: u64) {
        for key in self.lanes.remove(&lane).iter().flat_map(|lane| &lane.keys) {
            self.by_key.remove(key);
        }
    }
}

/// Runs those that wait until there are none.
async fn serve(open: OpenLane) {
    let OpenLane { engine, lane } = &open;
    loop {
        let run = engine.lanes.next_run(*lane, engine.client.most_calls_of_a_run().min(MAX_CALLS));
        if run.is_empty() {
            return;
        }
        engine.run_together(run).await;
    }
}

/// When the run of several calls must be sent and answered. It is sent while each of them may be, and awaited as long as any of them
/// wants.
fn deadline_of(run: &[Waiting]) -> Option<Deadline> {
    run.iter()
        .map(|waiting| waiting.caller.deadline)
        .reduce(|one, other| Deadline { answer_by: one.answer_by.max(other.answer_by), ..one.earlier(other) })
}

impl Engine {
    /// Waits in a lane for the next run.
    pub(crate) async fn wait_in(self: &Arc<Self>, lane: u64, call: Questions, deadline: Deadline) -> Answer {
        let (sender, mut answer) = oneshot::channel();
        let slot = self.slot_of(&call);
        let ticket = Arc::new(Ticket(AtomicU8::new(WAITING)));
        let caller = Caller { deadline, answer: sender };
        let waiting = Waiting { call, ticket: Arc::clone(&ticket), caller };
        if let Err(alone) = self.lanes.push(lane, waiting) {
            return self.run(&alone, deadline).await;
        }
        let lost = |_| StoreError::ambiguous("the runtime is shutting down".to_owned());
        match timeout_at(deadline.send_by, &mut answer).await {
            Ok(answered) => answered.map_err(lost)?,
            // Not sent, and never will be.
            Err(_) if ticket.turn(LEFT) => Err(self.client.not_sent_in_time(slot, deadline)),
            // Part of a run, which knows when its time is up.
            Err(_) => answer.await.map_err(lost)?,
        }
    }

    /// Answers several calls by one run. Nobody is refused because another had less time: if the script did not run in the time of
    /// the most hurried, those that have more are tried again.
    async fn run_together(&self, mut run: Vec<Waiting>) {
        loop {
            let (in_time, late): (Vec<_>, Vec<_>) =
                run.into_iter().partition(|waiting| Instant::now() < waiting.caller.deadline.send_by);
            for Waiting { call, caller, .. } in late {
                let _ = caller.answer.send(Err(self.client.not_sent_in_time(self.slot_of(&call), caller.deadline)));
            }
            let Some(deadline) = deadline_of(&in_time) else { return };
            let (calls, mut callers): (Vec<_>, Vec<_>) =
                in_time.into_iter().map(|Waiting { call, ticket, caller }| ((call, ticket), Some(caller))).unzip();
            let asked: Vec<&Questions> = calls.iter().map(|(call, _)| call).collect();
            let answers = self.await_run(&asked, deadline, &mut callers).await;
            let did_not_run = |answer: &Answer| answer.as_ref().err().is_some_and(|error| !error.may_have_charged());
            let now = Instant::now();
            let ran_out = now >= deadline.send_by && answers.iter().all(did_not_run);
            if ran_out && callers.iter().flatten().any(|caller| now < caller.deadline.send_by) {
                let waiting = |((call, ticket), caller)| Some(Waiting { call, ticket, caller: caller? });
                run = calls.into_iter().zip(callers).filter_map(waiting).collect();
                continue;
            }
            for (caller, answer) in callers.into_iter().zip(answers) {
                // A caller that is gone has been charged, as if its own run had been in flight.
                if caller.is_some_and(|caller| caller.answer.send(answer).is_err()) {
                    self.client.count_abandoned();
                }
            }
            return;
        }
    }

    /// Awaits a run, and lets callers go when their time is up, unless the reply has arrived and was only not read yet.
    async fn await_run(&self, calls: &[&Questions], deadline: Deadline, callers: &mut [Option<Caller>]) -> Vec<Answer> {
        let slot = calls.first().map_or(0, |call| self.slot_of(call));
        let mut running = pin!(self.run_all(calls, deadline));
        loop {
            let next = callers.iter().flatten().map(|caller| caller.deadline.answer_by).min();
            // The run itself ends in the time of the most patient.
            let Some(next) = next.filter(|next| *next < deadline.answer_by) else { return running.await };
            if let Ok(answers) = timeout_at(next, &mut running).await {
                return answers;
            }
            let mut read_all = false;
            while !read_all {
                read_all = self.client.has_read_all(slot);
                let pause = if read_all { Duration::ZERO } else { LOOK };
                if let Ok(answers) = timeout(pause, &mut running).await {
                    return answers;
                }
            }
            let is_late = |caller: &mut Caller| caller.deadline.answer_by <= next;
            for caller in callers.iter_mut().filter_map(|caller| caller.take_if(is_late)) {
                let _ = caller.answer.send(Err(StoreError::ambiguous("the server did not answer in time").late()));
            }
        }
    }

    fn slot_of(&self, call: &Questions) -> u16 {
        call.asked.first().map_or(0, |asked| self.client.slot(&asked.key))
    }
}

#[cfg(test)]
mod tests;
