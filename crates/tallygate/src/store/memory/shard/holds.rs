//! The holds of a shard: for each state what is held of it, and for each hold what was reserved.
//!
//! Twin: `tallygate-redis/lua/holds.lua`, with the same names and the same order. The contract is section 10 of `docs/algorithms.md`.

mod in_flight;
mod listing;
mod saved;
mod states;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::{Mode, Print, Shard, Step, Table, decide_known, no_room};
use crate::algorithm::{Algorithm, State, double};
use crate::check::Check;
use crate::decision::Status;
use crate::hold::{HoldId, HoldPart, HoldState, HoldTerms, OnAbandon, Overrun, RETENTION, Resolve, Turn};
use crate::limit::Limit;
use crate::store::memory::recorded::Recorded;
use states::{Look, charge, found, lasts_until, look, refund, remark};

/// A state: where it is, and the kind of its algorithm.
type Place = (Print, &'static str);

/// All holds of a shard. A hold is kept in the shard of its first state, and what is held of a state next to that state.
#[derive(Debug, Clone, Default)]
pub(in crate::store::memory) struct Holds {
    ledgers: Recorded<Place, Ledger>,
    records: Recorded<HoldId, Record>,
    /// Those of open holds by age, for lists: when they were charged, and a number of their own.
    by_age: BTreeMap<(u64, u64), HoldId>,
    /// How many records there were.
    numbers: u64,
    /// For each ledger and each record, once, when to look whether it can be dropped. A ledger stays until then, even if it is empty.
    ends: BinaryHeap<Reverse<(u64, End)>>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Ledger(Place, Algorithm),
    Record(HoldId),
}

/// What is held of one state.
#[derive(Debug, Clone, Default)]
pub(in crate::store::memory) struct Ledger {
    head: Head,
    /// By deadline.
    open: BTreeMap<(u64, HoldId), Entry>,
    /// Whether its end is in the queue.
    ends: bool,
}

/// The sums of a ledger.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::store::memory) struct Head {
    /// Units of open holds. Where windows end, those charged in the window in force.
    held: u64,
    count: u64,
    /// No deadline is earlier.
    due: u64,
    /// Until when the open holds are kept.
    last: u64,
    /// How far what is counted may be above the capacity.
    debt: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    left: u64,
    charged_at: u64,
    on_abandon: OnAbandon,
}

/// One hold.
#[derive(Debug, Clone)]
pub(in crate::store::memory) struct Record {
    pub(in crate::store::memory) state: HoldState,
    pub(in crate::store::memory) charged_at: u64,
    pub(in crate::store::memory) deadline: u64,
    pub(in crate::store::memory) forget_at: u64,
    /// The last call that changed it, other than an extension.
    pub(in crate::store::memory) attempt: u64,
    /// Of its last renewal.
    pub(in crate::store::memory) turn: Turn,
    /// No extension lasts longer.
    pub(in crate::store::memory) ends_at: u64,
    /// A number that no other record of the shard has.
    pub(in crate::store::memory) number: u64,
    pub(in crate::store::memory) parts: Vec<Part>,
}

/// What a hold reserved of one state.
#[derive(Debug, Clone)]
pub(in crate::store::memory) struct Part {
    /// Names, because open holds can be listed.
    pub(in crate::store::memory) policy: String,
    pub(in crate::store::memory) subject: String,
    pub(in crate::store::memory) print: Print,
    pub(in crate::store::memory) limit: Limit,
    pub(in crate::store::memory) terms: HoldTerms,
    pub(in crate::store::memory) reserved: u64,
    pub(in crate::store::memory) left: u64,
    pub(in crate::store::memory) settled: u64,
    pub(in crate::store::memory) refunded: u64,
    pub(in crate::store::memory) unpaid: u64,
}

impl Head {
    /// Whether the state is marked: plain calls do not find it.
    fn marks(&self) -> bool {
        self.count > 0 || self.debt > 0
    }

    fn encoded(self) -> impl Iterator<Item = u8> {
        let Self { held, count, due, last, debt } = self;
        [held, count, due, last, debt].into_iter().flat_map(double)
    }

    /// The open holds are kept until the last of them can give nothing back, and up to an hour longer, so that this is seldom
    /// prolonged.
    fn keep_until(&mut self, now: u64, at: u64) {
        if at > self.last {
            self.last = at + (at - now).min(3_600_000_000);
        }
    }
}

fn place(print: Print, limit: &Limit) -> Place {
    (print, limit.algorithm().kind())
}

impl Holds {
    /// The number of entries that take the place of keys.
    pub(in crate::store::memory) fn len(&self) -> usize {
        self.ledgers.len() + self.records.len()
    }

    /// The head of a state as a shared store keeps it.
    pub(in crate::store::memory) fn encoded_head(&self, print: Print, algorithm: Algorithm) -> Vec<u8> {
        let ledger = self.ledgers.get(&(print, algorithm.kind()));
        ledger.map_or(Head::default(), |ledger| ledger.head).encoded().collect()
    }

    /// A hold that is still known.
    pub(in crate::store::memory) fn record(&self, id: HoldId, now: u64) -> Option<&Record> {
        self.records.get(&id).filter(|record| record.is_known(now))
    }
}

impl Shard {
    /// Whether the state of a check is marked.
    pub(in crate::store::memory) fn is_marked(&mut self, print: Print, algorithm: Algorithm) -> bool {
        with_table!(self, algorithm, |table| table.get(print.marked()).is_some())
    }

    fn head(&self, print: Print, limit: &Limit) -> Option<Head> {
        self.holds.ledgers.get(&place(print, limit)).map(|ledger| ledger.head)
    }

    fn head_mut(&mut self, print: Print, limit: &Limit) -> Option<&mut Head> {
        self.holds.ledgers.get_mut(&place(print, limit)).map(|ledger| &mut ledger.head)
    }

    fn look(&mut self, print: Print, limit: &Limit, now: u64) -> Look {
        let owed = self.owed(print, limit);
        with_table!(self, limit.algorithm(), |table| look(table, print, limit, now, owed))
    }

    fn owed(&self, print: Print, limit: &Limit) -> u64 {
        self.head(print, limit).map_or(0, |head| head.debt.min(limit.capacity()))
    }

    /// After a state or its head was changed.
    fn keep(&mut self, print: Print, limit: &Limit, now: u64) {
        let excess = self.look(print, limit, now).excess;
        let place = place(print, limit);
        let Some(Ledger { head, .. }) = self.holds.ledgers.get_mut(&place) else { return };
        head.debt = head.debt.min(excess);
        if head.count == 0 {
            *head = Head { debt: head.debt, ..Head::default() };
        }
        let marks = head.marks();
        with_table!(self, limit.algorithm(), |table| remark(table, print, marks));
    }

    /// Units of a hold are no longer held. Those of a window that has ended were not counted any more.
    fn release(&mut self, print: Print, limit: &Limit, now: u64, charged_at: u64, units: u64) {
        if limit.algorithm().ends_windows() {
            let Look { fits, reset_at, window_start, .. } = self.look(print, limit, now);
            if !fits || reset_at == now || charged_at < window_start {
                return;
            }
        }
        if let Some(head) = self.head_mut(print, limit) {
            head.held = head.held.saturating_sub(units);
        }
    }

    fn give_back(&mut self, print: Print, limit: &Limit, now: u64, charged_at: u64, units: u64) -> u64 {
        if units == 0 {
            return 0;
        }
        let owed = self.owed(print, limit);
        with_table!(self, limit.algorithm(), |table| refund(table, print, limit, now, owed, (charged_at, units)).0)
    }

    /// What was held stays used, and can no longer be given back.
    fn close(&mut self, print: Print, limit: &Limit) {
        if let Some(ledger) = self.holds.ledgers.get_mut(&place(print, limit)) {
            ledger.open.clear();
            ledger.head = Head { debt: ledger.head.debt, ..Head::default() };
        }
    }

    /// Prepares a state for a decision: resolves the holds whose deadline has passed, each as of its deadline. If the limit has
    /// other numbers than the state, its holds are closed, unless the call only looks.
    /// Those whose deadline lies before the windows that a script is sent have nothing that still counts.
    pub(in crate::store::memory) fn open(&mut self, print: Print, limit: &Limit, around: u64, now: u64, looks: bool) {
        let Some(head) = self.head(print, limit) else { return };
        if !self.look(print, limit, now).fits {
            if !looks {
                self.close(print, limit);
            }
            return;
        }
        if head.count == 0 || head.due > now {
            return;
        }
        let place = place(print, limit);
        let from = limit.numbers().calendar.as_ref().map_or(0, |calendar| calendar.boundaries(around)[0]);
        while let Some(Ledger { head, open, .. }) = self.holds.ledgers.get_mut(&place) {
            let Some((&(deadline, id), &entry)) = open.first_key_value() else { break };
            head.due = deadline;
            if deadline > now {
                break;
            }
            open.remove(&(deadline, id));
            head.count -= 1;
            if deadline < from {
                continue;
            }
            self.release(print, limit, deadline, entry.charged_at, entry.left);
            if entry.on_abandon == OnAbandon::Refund {
                self.give_back(print, limit, deadline, entry.charged_at, entry.left);
            }
        }
        self.keep(print, limit, now);
    }

    /// Before units are charged to a state: what was held of a window that has ended no longer counts.
    fn before_charge(&mut self, print: Print, limit: &Limit, now: u64) {
        if limit.algorithm().ends_windows()
            && self.look(print, limit, now).remaining == limit.capacity()
            && let Some(head) = self.head_mut(print, limit)
        {
            head.held = 0;
        }
    }

    /// Holds units that were just charged.
    fn hold_units(&mut self, print: Print, check: &Check<'_>, now: u64, deadline: u64, id: HoldId) {
        let (limit, place, units) = (check.limit, place(print, check.limit), check.cost.get());
        let on_abandon = check.terms().on_abandon();
        with_table!(self, limit.algorithm(), |table| lasts_until(table, print, deadline));
        let reset_at = self.look(print, limit, now).reset_at;
        let ledger = self.holds.ledgers.entry(place).or_default();
        let head = &mut ledger.head;
        if head.count == 0 || deadline < head.due {
            head.due = deadline;
        }
        (head.count, head.held) = (head.count + 1, head.held + units);
        ledger.open.insert((deadline, id), Entry { left: units, charged_at: now, on_abandon });
        head.keep_until(now, deadline.max(reset_at));
        if !std::mem::replace(&mut ledger.ends, true) {
            self.holds.ends.push(Reverse((head.last, End::Ledger(place, limit.algorithm()))));
        }
        with_table!(self, limit.algorithm(), |table| remark(table, print, true));
    }

    /// A status with what is held of the state.
    fn with_holds(&mut self, print: Print, limit: &Limit, now: u64, status: Status) -> Status {
        let Look { fits, remaining, debt, .. } = self.look(print, limit, now);
        let used = limit.capacity() - remaining + debt;
        let head = self.head(print, limit).unwrap_or_default();
        let held = if fits { head.held.min(used) } else { 0 };
        // A state that is not marked owes nothing, even if more was used than its limit now allows.
        status.with_holds(held, if head.marks() { debt } else { 0 })
    }

    /// Decides one check of a call that looks at holds. Like [`step`](Self::step).
    pub(in crate::store::memory) fn step_held(
        &mut self,
        print: Print,
        check: &Check<'_>,
        now: u64,
        mode: Mode,
        earlier: usize,
    ) -> Step {
        let (limit, owed) = (check.limit, self.owed(print, check.limit));
        if matches!(mode, Mode::Take | Mode::Drain) {
            self.before_charge(print, limit, now);
        }
        let fitted = mode != Mode::Look && !self.look(print, limit, now).fits;
        let known = with_table!(self, limit.algorithm(), |table| {
            let at = found(table, print);
            table.get_mut(at).map(|state| decide_known(state, check, now, mode, owed))
        });
        let mut step = match known {
            Some(status) => Step::of(status),
            None => self.step_new(print, check, now, mode, earlier),
        };
        if step.overflowed {
            return step;
        }
        if fitted || step.status.units() > 0 {
            self.keep(print, limit, now);
        }
        step.status = self.with_holds(print, limit, now, step.status);
        if limit.is_concurrency() && !step.status.allowed() {
            step.status = self.with_next_end(print, check, now, step.status);
        }
        step
    }

    /// Whether a check that fits may also hold its units.
    pub(in crate::store::memory) fn judge_hold(&self, print: Print, check: &Check<'_>, now: u64, step: &mut Step) {
        let terms = check.terms();
        let head = self.head(print, check.limit).unwrap_or_default();
        if step.overflowed {
            // A shared state could not give back what one of its keys holds.
            step.status = no_room(check.limit);
            return;
        }
        let most = terms.most_units(check.limit.capacity());
        let full = head.count >= u64::from(terms.most_open()) || step.status.held() + check.cost.get() > most;
        if step.status.allowed() && full {
            step.status = step.status.into_holds_full(head.due.saturating_sub(now));
        }
    }

    /// Whether there is room for another hold over so many states.
    pub(in crate::store::memory) fn has_room_for_a_hold(&mut self, now: u64, states: usize) -> bool {
        self.drop_ended(now);
        // The record, and for each state a key and a ledger.
        self.own() + 1 + 2 * states <= self.bounds.keys
    }

    /// Charges a check and holds its units.
    pub(in crate::store::memory) fn hold(
        &mut self,
        print: Print,
        check: &Check<'_>,
        now: u64,
        deadline: u64,
        id: HoldId,
    ) -> Step {
        let step = self.step_held(print, check, now, Mode::Take, 0);
        self.hold_units(print, check, now, deadline, id);
        let mut status = self.with_holds(print, check.limit, now, step.status);
        if check.limit.is_concurrency() {
            status = status.with_reset_after(self.look(print, check.limit, now).reset_at - now);
        }
        Step { status, ..step }
    }

    /// Drops the state of a key, and closes its holds.
    pub(in crate::store::memory) fn reset_held(&mut self, print: Print, algorithm: Algorithm) -> bool {
        if let Some(ledger) = self.holds.ledgers.get_mut(&(print, algorithm.kind())) {
            ledger.open.clear();
            ledger.head = Head::default();
        }
        let marked = self.reset(print.marked(), algorithm);
        self.reset(print, algorithm) || marked
    }

    /// Gives back what was charged, without a hold: when, and how many units.
    pub(in crate::store::memory) fn refund_held(
        &mut self,
        print: Print,
        check: &Check<'_>,
        now: u64,
        part: (u64, u64),
    ) -> u64 {
        let (limit, owed) = (check.limit, self.owed(print, check.limit));
        let (given, changed) =
            with_table!(self, limit.algorithm(), |table| refund(table, print, limit, now, owed, part));
        if changed {
            self.keep(print, limit, now);
        }
        given
    }

    /// Resolves one part of an open hold. `used` is what was used of it; all of it if that is not said.
    pub(in crate::store::memory) fn resolve_part(
        &mut self,
        (id, record): (HoldId, &Record),
        part: &mut Part,
        now: u64,
        resolve: &Resolve,
        used: Option<u64>,
        deadline: u64,
    ) {
        let (print, limit) = (part.print, part.limit.clone());
        let (left, charged_at) = (part.left, record.charged_at);
        let ledger = self.holds.ledgers.get_mut(&place(print, &limit));
        let known = ledger.and_then(|ledger| ledger.open.remove(&(record.deadline, id)).map(|entry| (ledger, entry)));
        let concurrency = limit.is_concurrency();
        if resolve.extends() {
            if let Some((ledger, entry)) = known {
                ledger.open.insert((deadline, id), entry);
                ledger.head.keep_until(now, deadline);
                if concurrency {
                    ledger.knows_when_due();
                    with_table!(self, limit.algorithm(), |table| lasts_until(table, print, deadline));
                }
            }
            return;
        }
        let ends = !matches!(resolve, Resolve::SettlePart(_));
        // What is in flight is held until the hold ends, and then all of it comes back.
        let used = if concurrency { 0 } else { used.unwrap_or(left) };
        let (taken, beyond) = (used.min(left), used.saturating_sub(left));
        (part.settled, part.left) = (part.settled + taken, if ends { 0 } else { left - taken });
        let Some((ledger, entry)) = known else {
            part.unpaid += beyond;
            return;
        };
        if ends {
            ledger.head.count -= 1;
        } else {
            ledger.open.insert((record.deadline, id), Entry { left: part.left, ..entry });
        }
        if concurrency {
            ledger.knows_when_due();
        }
        let fits = self.look(print, &limit, now).fits;
        self.release(print, &limit, now, charged_at, if ends { left } else { taken });
        if !fits {
            part.unpaid += beyond;
        } else if beyond > 0 {
            let charged = self.charge_beyond(part, now, beyond);
            (part.settled, part.unpaid) = (part.settled + charged, part.unpaid + beyond - charged);
        } else if ends && taken < left {
            part.refunded += self.give_back(print, &limit, now, charged_at, left - taken);
        }
        self.keep(print, &limit, now);
    }

    /// Charges what a hold did not cover, as far as its limit allows that. Returns how much.
    fn charge_beyond(&mut self, part: &Part, now: u64, units: u64) -> u64 {
        let (print, limit) = (part.print, &part.limit);
        let Look { remaining, debt, .. } = self.look(print, limit, now);
        let room = match part.terms.overrun() {
            Overrun::Debt => remaining + limit.capacity().saturating_sub(debt),
            _ => remaining,
        };
        let units = units.min(room);
        if units == 0 {
            return 0;
        }
        self.before_charge(print, limit, now);
        with_table!(self, limit.algorithm(), |table| charge(table, print, limit, now, units));
        if units > remaining {
            let excess = with_table!(self, limit.algorithm(), |table| {
                table.get(found(table, print)).map_or(0, |state| state.excess(limit, now))
            });
            if let Some(head) = self.head_mut(print, limit) {
                head.debt = excess;
            }
        }
        units
    }

    /// What a part of a hold looks like to callers.
    pub(in crate::store::memory) fn report(&mut self, part: &Part, state: HoldState, now: u64) -> HoldPart {
        let Part { reserved, mut left, mut settled, mut refunded, unpaid, .. } = *part;
        let limit = &part.limit;
        if state == HoldState::Expired {
            match part.terms.on_abandon() {
                OnAbandon::Charge => settled += left,
                OnAbandon::Refund => refunded += left,
            }
            left = 0;
        }
        let Look { remaining, reset_at, .. } = self.look(part.print, limit, now);
        let status = Status::from_parts(limit, true, remaining, 0, reset_at - now);
        let status = self.with_holds(part.print, limit, now, status);
        HoldPart::new(reserved, left, settled, refunded, unpaid, status)
    }

    /// Drops ledgers and records that have ended, a few at a time.
    pub(in crate::store::memory) fn drop_ended(&mut self, now: u64) {
        if !self.bounds.sweep {
            return;
        }
        for _ in 0..4 {
            let Some(Reverse((_, end))) = self.holds.ends.peek().filter(|Reverse((at, _))| *at <= now) else { return };
            let end = end.clone();
            self.holds.ends.pop();
            let later = match &end {
                End::Record(id) => self.holds.records.get(id).map(|record| record.forget_at),
                End::Ledger(place, algorithm) => self.counts_until(*place, *algorithm, now),
            };
            match (later, end) {
                (Some(later), end) if later > now => self.holds.ends.push(Reverse((later, end))),
                (_, End::Record(id)) => self.holds.forget(id),
                (_, End::Ledger(place, algorithm)) => {
                    self.holds.ledgers.remove(&place);
                    with_table!(self, algorithm, |table| remark(table, place.0, false));
                }
            }
        }
    }

    /// Until when a ledger says something: its holds could give something back, or its debt is not paid.
    fn counts_until(&mut self, place: Place, algorithm: Algorithm, now: u64) -> Option<u64> {
        let head = self.holds.ledgers.get(&place)?.head;
        let reset_at = with_table!(self, algorithm, |table| {
            table.get(place.0.marked()).map_or(now, |state| state.reset_at(state.limit(), now))
        });
        Some(if head.count > 0 { head.last.max(reset_at) } else { reset_at })
    }

    /// The open holds of a state with their deadlines, as a shared store keeps them.
    pub(in crate::store::memory) fn encoded_holds(&self, print: Print, algorithm: Algorithm) -> Vec<(u64, Vec<u8>)> {
        let member = |(&(deadline, id), entry): (&(u64, HoldId), &Entry)| {
            let numbers = [entry.left, entry.charged_at].into_iter().flat_map(double);
            let on_abandon = entry.on_abandon.name().as_bytes()[0];
            (deadline, id.as_bytes().iter().copied().chain(numbers).chain([on_abandon]).collect())
        };
        let ledger = self.holds.ledgers.get(&(print, algorithm.kind()));
        ledger.map_or(Vec::new(), |ledger| ledger.open.iter().map(member).collect())
    }
}

impl Record {
    /// Whether it can still be resolved: it is remembered, and the windows of its calendars are known.
    fn is_known(&self, now: u64) -> bool {
        let known = |part: &Part| {
            let boundaries =
                part.limit.numbers().calendar.as_ref().map(|calendar| calendar.boundaries(self.charged_at));
            boundaries.is_none_or(|known| known[0] <= now && now < known[known.len() - 1])
        };
        now < self.forget_at && self.parts.iter().all(known)
    }

    /// What has become of the hold as of `now`.
    pub(in crate::store::memory) fn state_at(&self, now: u64) -> HoldState {
        if self.state == HoldState::Open && now >= self.deadline { HoldState::Expired } else { self.state }
    }

    pub(in crate::store::memory) fn forget_after(&mut self, at: u64) {
        self.forget_at = at.saturating_add(u64::try_from(RETENTION.as_micros()).unwrap_or(u64::MAX));
    }
}

impl Part {
    pub(in crate::store::memory) fn refuses_overruns(&self) -> bool {
        self.terms.overrun() == Overrun::Refuse && !self.limit.is_concurrency()
    }
}
