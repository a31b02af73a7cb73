//! Common reservations: one or several of one state and one limit, each with nothing to be looked at besides.

use std::borrow::Cow;

use tallygate::algorithm::Algorithm;
use tallygate::call::Verb;
use tallygate::hold::Reservation;
use tallygate::policy::Mode;

use crate::coalesce::Questions;
use crate::holds::record;
use crate::wire::{self, Asked};

/// The calls of a run that `reserve.lua` decides. Whether their state is as it should be, the script finds out.
pub(crate) struct Common<'c> {
    calls: Vec<(&'c Asked, &'c Reservation)>,
}

impl<'c> Common<'c> {
    pub(crate) fn of(calls: &[&'c Questions]) -> Option<Self> {
        let calls: Vec<(&Asked, &Reservation)> = calls.iter().map(|call| common(call)).collect::<Option<_>>()?;
        let (first, _) = calls.first()?;
        let alike =
            |asked: &Asked| asked.key == first.key && asked.limit.numbers().packed == first.limit.numbers().packed;
        calls.iter().all(|(asked, _)| alike(asked)).then_some(Self { calls })
    }

    pub(crate) fn kind(&self) -> &'static str {
        self.calls[0].0.kind
    }

    /// The keys, as `reserve.lua` takes them.
    pub(crate) fn keys(&self) -> Vec<Cow<'c, str>> {
        let (first, _) = self.calls[0];
        let records = self.calls.iter().map(|(asked, reservation)| Cow::from(record(&asked.key, reservation.id())));
        [Cow::from(&first.key), Cow::from(first.opens())].into_iter().chain(records).collect()
    }

    /// The argument, as `reserve.lua` takes it.
    pub(crate) fn argument(&self, about: impl Fn() -> u64) -> Vec<u8> {
        let (first, _) = self.calls[0];
        let packed = wire::pack(first.cost, &first.limit, about);
        let size = u16::try_from(packed.len()).unwrap_or(u16::MAX);
        let mut argument = Vec::with_capacity(2 + packed.len() + 58 * self.calls.len());
        argument.extend(size.to_le_bytes());
        argument.extend(packed);
        for (asked, reservation) in &self.calls {
            argument.extend(wire::double(asked.cost));
            argument.extend(reservation.id().as_bytes());
            argument.extend([reservation.ttl_micros(), reservation.life_micros()].into_iter().flat_map(wire::double));
            asked.grants(&mut argument);
        }
        argument
    }
}

/// The check of a reservation that has one which enforces, unless a log decides it: that cannot be judged before it is written.
fn common(call: &Questions) -> Option<(&Asked, &Reservation)> {
    let ([asked], Verb::Reserve, Some(reservation)) = (&call.asked[..], call.verb, call.reservation.as_deref()) else {
        return None;
    };
    let plain = !call.denied && call.request.is_none() && call.at_most.is_none() && asked.charged_at.is_none();
    let usual = asked.mode == Mode::Enforce && !asked.drains && !asked.hopeless && !asked.pays_rest;
    // The state of what is in flight knows the deadlines of its holds.
    let packed = !matches!(asked.limit.algorithm(), Algorithm::SlidingLog | Algorithm::Concurrency);
    // A limit that is about to change is sent with the instants between which it holds.
    let stays = asked.changes.is_none();
    (plain && usual && packed && stays).then_some((asked, reservation))
}
