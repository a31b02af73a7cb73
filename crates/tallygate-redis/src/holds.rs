//! How a hold ends: one run of `resolve.lua` for its states, or one for each if they are in several slots.

mod listing;
mod record;

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tallygate::Algorithm;
use tallygate::call::Effect;
use tallygate::clock::Timestamp;
use tallygate::decision::Status;
use tallygate::hold::{Hold, HoldId, HoldPart, HoldState, Holds, Refused, Resolution, Resolve, Resolved, Turn, Work};
use tallygate::store::{StoreError, StoreErrorKind};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout_at;

use crate::connection::{Calls, Deadline};
use crate::split::insist;
use crate::store::{Engine, RedisStore, naming};
use crate::wire::{self, Asked, Reader, corrupt};

pub(crate) use listing::{records, time};
pub(crate) use record::OpenRecord;

/// The key of the record of a hold, next to its first state.
pub(crate) fn record(state: &str, id: HoldId) -> String {
    format!("{state}-{}", id.to_hex())
}

/// What is asked about states that have one record. Owned, so that it can outlive its caller.
#[derive(Debug, Clone)]
pub(crate) struct Ending {
    id: HoldId,
    turn: Turn,
    attempt: u64,
    /// The key of each state, and its kind.
    states: Vec<(String, &'static str)>,
    /// `None` confirms it.
    resolve: Option<Resolve>,
    /// For each state the units used; `None` for all that is left.
    used: Vec<Option<u64>>,
}

impl Ending {
    /// Cancels what one state has of a hold.
    pub(crate) fn cancel(id: HoldId, asked: &Asked) -> Self {
        Self { resolve: Some(Resolve::Cancel), ..Self::confirm(id, asked) }
    }

    /// Confirms what one state has of a hold: every other state of the call has allowed it.
    pub(crate) fn confirm(id: HoldId, asked: &Asked) -> Self {
        Self {
            id,
            turn: Turn::FIRST,
            attempt: 1,
            states: vec![(asked.key.clone(), asked.kind)],
            resolve: None,
            used: vec![Some(0)],
        }
    }

    fn verb(&self) -> &'static str {
        match &self.resolve {
            None => "confirm",
            Some(Resolve::SettlePart(_)) => "settle_part",
            Some(Resolve::Cancel) => "cancel",
            Some(Resolve::Extend(_)) => "extend",
            Some(Resolve::Renew { .. }) => "renew",
            Some(_) => "settle",
        }
    }

    fn args(&self) -> [Vec<u8>; 3] {
        let ttl = self.resolve.as_ref().map_or(0, Resolve::extend_micros);
        let mut hold = self.id.as_bytes().to_vec();
        hold.extend([self.attempt, ttl].into_iter().flat_map(wire::double));
        let next = self.resolve.as_ref().and_then(Resolve::next);
        hold.extend([self.turn, next.unwrap_or(self.turn)].iter().flat_map(Turn::as_bytes));
        let units = |used: &Option<u64>| used.map_or((-1.0_f64).to_le_bytes(), wire::double);
        let mut used: Vec<u8> = self.used.iter().flat_map(units).collect();
        used.push(if self.resolve.as_ref().is_some_and(Resolve::takes_same) { b'1' } else { b'0' });
        [self.verb().as_bytes().to_vec(), hold, used]
    }
}

impl Holds for RedisStore {
    async fn resolve(&self, resolution: &Resolution<'_>) -> Result<Resolved, StoreError> {
        let engine = Arc::clone(&self.engine);
        let deadline = engine.client.default_deadline();
        let deadline = resolution.deadline.map_or(deadline, |until| Deadline::until(until).earlier(deadline));
        let places: Vec<(String, &'static str)> = resolution
            .hold
            .places()
            .map(|(key, algorithm): (_, Algorithm)| (key.encode(&engine.prefix, algorithm.kind()), algorithm.kind()))
            .collect();
        if places.is_empty() {
            return Ok(Resolved::of_nothing(&resolution.resolve, Timestamp::from_micros(0)));
        }
        let together = places.iter().all(|(key, _)| engine.client.same_slot(places[0].0.as_bytes(), key.as_bytes()));
        let groups: Vec<Vec<usize>> = match together {
            true => vec![(0..places.len()).collect()],
            false => (0..places.len()).map(|place| vec![place]).collect(),
        };
        let used = resolution.used();
        let ending = |group: &Vec<usize>| Ending {
            id: resolution.hold.id(),
            turn: resolution.hold.turn(),
            attempt: resolution.attempt,
            states: group.iter().map(|&place| places[place].clone()).collect(),
            resolve: Some(resolution.resolve.clone()),
            used: group.iter().map(|&place| used[place]).collect(),
        };
        let endings: Vec<Ending> = groups.iter().map(ending).collect();
        // Once begun it is finished, even if the caller is gone.
        let (sender, answer) = oneshot::channel();
        tokio::spawn(async move {
            let ended = match look_at_units(&engine, &endings).await {
                Ok(None) => end_all(engine, endings).await,
                Ok(Some(refused)) => Ok(refused),
                Err(error) => Err(error),
            };
            let _ = sender.send(ended);
        });
        match timeout_at(deadline.answer_by, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(StoreError::ambiguous("the runtime is shutting down".to_owned())),
            Err(_) => Err(StoreError::ambiguous("the deadline passed before the hold was resolved").late()),
        }
    }

    fn cancel_soon(&self, hold: Hold) {
        let store = self.clone();
        // Without a runtime the hold expires at its deadline.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { drop(store.resolve(&Resolution::new(&hold, Resolve::Cancel)).await) });
        }
    }

    fn finish(&self, work: Work) {
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(work);
        }
    }
}

/// The answer if one number of units is meant for each of several slots, and different numbers were reserved there: no slot knows of the
/// others, so all of them are asked before any settles.
async fn look_at_units(engine: &Arc<Engine>, endings: &[Ending]) -> Result<Option<Resolved>, StoreError> {
    let same = endings[0].resolve.as_ref().is_some_and(Resolve::takes_same);
    if endings.len() == 1 || !same {
        return Ok(None);
    }
    // An extension by nothing only looks.
    let look = |ending: &Ending| Ending { resolve: Some(Resolve::Extend(Duration::ZERO)), ..ending.clone() };
    let seen = end_all(Arc::clone(engine), endings.iter().map(look).collect()).await?;
    let kinds = endings.iter().flat_map(|ending| &ending.states).map(|(_, kind)| *kind);
    let counted = seen.parts.iter().zip(kinds).filter(|(_, kind)| *kind != Algorithm::Concurrency.kind());
    let reserved: Vec<u64> = counted.map(|(part, _)| part.reserved).filter(|units| *units > 0).collect();
    let differ = seen.done && reserved.iter().any(|units| *units != reserved[0]);
    Ok(differ.then(|| seen.refused(Refused::DifferentUnits)))
}

/// Ends a hold in each of its slots, at once.
async fn end_all(engine: Arc<Engine>, endings: Vec<Ending>) -> Result<Resolved, StoreError> {
    let mut runs = JoinSet::new();
    let count = endings.len();
    let extends = endings.iter().any(|ending| ending.resolve.as_ref().is_some_and(Resolve::extends));
    for (place, ending) in endings.into_iter().enumerate() {
        let engine = Arc::clone(&engine);
        runs.spawn(async move { (place, engine.end_hold_surely(&ending).await) });
    }
    let mut ended: Vec<Option<Resolved>> = vec![None; count];
    let mut failure = None;
    while let Some(run) = runs.join_next().await {
        match run {
            Ok((place, Ok(mut resolved))) => {
                // Alone in its group, a part is the first of it.
                if let Some(Refused::Overrun(at)) = &mut resolved.refused {
                    *at += place;
                }
                if count > 1 && resolved.parts.is_empty() {
                    resolved.parts.push(HoldPart::new(0, 0, 0, 0, 0, Status::of_capacity(0, "", 0, 0)));
                }
                ended[place] = Some(resolved);
            }
            Ok((_, Err(error))) => failure = Some(error),
            Err(_) => failure = Some(StoreError::ambiguous("the runtime is shutting down".to_owned())),
        }
    }
    match failure {
        Some(error) => Err(error),
        None => {
            let with_rest = if extends { Resolved::with_rest_extended } else { Resolved::with_rest };
            ended.into_iter().flatten().reduce(with_rest).ok_or_else(|| corrupt("a hold of no state"))
        }
    }
}

impl Engine {
    /// Asks about the states of one record until an answer comes, or a second has passed.
    pub(crate) async fn end_hold_surely(&self, ending: &Ending) -> Result<Resolved, StoreError> {
        let once = || self.end_hold(ending, self.client.default_deadline());
        let ended = insist(once).await;
        // It may have been done, and then doing it again changes nothing.
        if ended.as_ref().is_err_and(StoreError::may_have_charged) { insist(once).await } else { ended }
    }

    /// Asks about the states of one record.
    async fn end_hold(&self, ending: &Ending, deadline: Deadline) -> Result<Resolved, StoreError> {
        let states = || ending.states.iter().map(|(key, _)| key.clone());
        let opens = states().map(|key| format!("{key}-open"));
        let first = &ending.states[0].0;
        let keys: Vec<String> = states().chain(opens).chain([record(first, ending.id)]).collect();
        let args = self.with_time(ending.args());
        let script = self.scripts.resolve(ending.states.iter().map(|(_, kind)| *kind));
        let reply = self.client.run_of(Calls::one(Effect::GivesBack), script, &keys, &args, deadline).await;
        let read = reply.and_then(|reply| read_ending(&reply, &ending.states));
        read.map_err(|error| match error.kind() {
            StoreErrorKind::Corrupt => naming(error, &keys[..ending.states.len()]),
            _ => error,
        })
    }
}

/// Decodes the reply of `resolve.lua`.
fn read_ending(reply: &Value, states: &[(String, &'static str)]) -> Result<Resolved, StoreError> {
    let mut reader = Reader::new(reply)?;
    let &[state, flag] = reader.take(2)? else { return Err(corrupt("the reply is too short")) };
    let (deadline, now) = (Timestamp::from_micros(reader.number()?), Timestamp::from_micros(reader.number()?));
    let state = match state {
        b'o' => HoldState::Open,
        b's' => HoldState::Settled,
        b'c' => HoldState::Cancelled,
        b'x' => HoldState::Expired,
        b'u' => return Ok(Resolved::unknown(now)),
        _ => return Err(corrupt("the reply has an invalid state")),
    };
    let mut parts = Vec::with_capacity(states.len());
    for (_, kind) in states {
        let mut numbers = [0; 10];
        for number in &mut numbers {
            *number = reader.number()?;
        }
        let [capacity, reserved, left, settled, refunded, unpaid, remaining, reset_after, held, debt] = numbers;
        let status = Status::of_capacity(capacity, kind, remaining, reset_after).with_holds(held, debt);
        parts.push(HoldPart::new(reserved, left, settled, refunded, unpaid, status));
    }
    reader.end()?;
    let resolved = Resolved::done(state, deadline, now, parts);
    Ok(match flag {
        0 => resolved.unchanged(),
        1 => resolved,
        2 => resolved.refused(Refused::DifferentUnits),
        255 => resolved.refused(Refused::Renewed),
        place => resolved.refused(Refused::Overrun(usize::from(place) - 3)),
    })
}
