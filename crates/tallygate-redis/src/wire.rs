//! Encodes checks for the scripts, and decodes their replies.

use std::borrow::Cow;

use redis::Value;
use tallygate::call::{Effect, Settlement, Verb, fund};
use tallygate::clock::Timestamp;
use tallygate::decision::Source;
use tallygate::hold::{HoldId, HoldTerms, OnAbandon};
use tallygate::limit::Changes;
use tallygate::policy::Mode;
use tallygate::{Check, Decision, Limit, Status, StoreError};

use crate::coalesce::Questions;
use crate::connection::Failure;

/// The newest format of states that the scripts read and write: that of states of which units are held or owed.
const VERSION: u8 = 2;
/// The formats of future versions. Text written by others does not begin with any of them.
const NEWER: std::ops::Range<u8> = VERSION + 1..b' ';

/// One check as the scripts take it. Owned, so that a call can outlive its caller.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) key: String,
    pub(crate) kind: &'static str,
    pub(crate) limit: Limit,
    pub(crate) cost: u64,
    pub(crate) mode: Mode,
    pub(crate) drains: bool,
    pub(crate) hopeless: bool,
    /// Whether it is a further payer of the cost of the check before it.
    pub(crate) pays_rest: bool,
    pub(crate) fails_closed: bool,
    pub(crate) charged_at: Option<Timestamp>,
    /// What the limit grants to holds, if that is known.
    pub(crate) terms: Option<HoldTerms>,
    /// Whether what it reserves is given back if it is abandoned before it is confirmed.
    pub(crate) unconfirmed: bool,
    /// The limits that the server's time picks from, if there are several.
    pub(crate) changes: Option<Changes>,
}

impl Asked {
    pub(crate) fn new(check: &Check<'_>, prefix: &str) -> Self {
        Self::with_key(check, check.key.encode(prefix, check.limit.algorithm().kind()))
    }

    /// With the key already encoded.
    pub(crate) fn with_key(check: &Check<'_>, key: String) -> Self {
        Self {
            key,
            kind: check.limit.algorithm().kind(),
            limit: check.limit.clone(),
            cost: check.cost.get(),
            mode: check.mode(),
            drains: check.drains(),
            hopeless: check.is_hopeless(),
            pays_rest: check.pays_rest(),
            fails_closed: check.fails_closed(),
            charged_at: check.charged_at(),
            terms: check.holds().copied(),
            unconfirmed: false,
            changes: check.changes().cloned(),
        }
    }

    /// The same question under the limit that is in force at this instant. What can never be allowed is known only then.
    pub(crate) fn at(&self, now: Timestamp, verb: Verb) -> Cow<'_, Self> {
        let Some(changes) = &self.changes else { return Cow::Borrowed(self) };
        let limit = changes.limit_at(now).clone();
        let most_held = || self.terms.unwrap_or(HoldTerms::DEFAULT).most_units(limit.capacity());
        let most = match verb {
            Verb::Reserve => Some(most_held()).filter(|&most| most > 0).unwrap_or(limit.capacity()),
            verb if verb.effect() == Effect::GivesBack => u64::MAX,
            _ => limit.capacity(),
        };
        let (cost, hopeless) = (self.cost.min(most), self.hopeless || self.cost > most);
        Cow::Owned(Self { limit, cost, hopeless, ..self.clone() })
    }

    /// What `call.lua` needs to know in addition to the numbers.
    pub(crate) fn head(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(self.kind.as_bytes());
        let mode = match self.mode {
            Mode::Quota => b'q',
            Mode::Shadow => b's',
            // A mode that this version does not know must not let calls pass.
            _ => b'e',
        };
        into.push(if self.pays_rest { mode.to_ascii_uppercase() } else { mode });
        into.push(if self.drains { b'd' } else { b'-' });
        into.push(if self.hopeless { b'h' } else { b'-' });
        into.extend_from_slice(&double(self.charged_at.map_or(0, Timestamp::as_micros)));
    }

    /// What it grants to holds, as `call.lua` takes it.
    pub(crate) fn grants(&self, into: &mut Vec<u8>) {
        let terms = self.granted();
        let on_abandon = if self.awaits_confirmation() { "t" } else { terms.on_abandon().name() };
        into.extend([on_abandon, terms.overrun().name()].map(|name| name.as_bytes()[0]));
        into.extend_from_slice(&double(u64::from(terms.most_open())));
        into.extend_from_slice(&double(terms.most_units(self.limit.capacity())));
    }

    fn granted(&self) -> HoldTerms {
        self.terms.unwrap_or(HoldTerms::DEFAULT).under(&self.limit)
    }

    /// Whether the hold has to be confirmed once the call is allowed.
    pub(crate) fn awaits_confirmation(&self) -> bool {
        self.unconfirmed && self.granted().on_abandon() == OnAbandon::Charge
    }

    /// The key of the open holds of the state.
    pub(crate) fn opens(&self) -> String {
        format!("{}-open", self.key)
    }
}

/// The same questions under the limits that are in force at this instant.
pub(crate) fn all_at(asked: &[Asked], now: Timestamp, verb: Verb) -> Vec<Cow<'_, Asked>> {
    let mut all: Vec<_> = asked.iter().map(|asked| asked.at(now, verb)).collect();
    let changes = |payers: &[Asked]| payers.len() > 1 && payers.iter().any(|asked| asked.changes.is_some());
    for range in fund::each(asked, |asked| asked.pays_rest).filter(|range| changes(&asked[range.clone()])) {
        let capacity: u64 = all[range.clone()].iter().map(|asked| asked.limit.capacity()).sum();
        let (cost, gives_back) = (asked[range.start].cost, verb.effect() == Effect::GivesBack);
        for place in range {
            // Together they may hold what none of them does.
            let above = cost > capacity && !gives_back;
            let hopeless = asked[place].hopeless || above;
            let cost = if above { capacity } else { cost };
            *all[place].to_mut() = Asked { cost, hopeless, ..all[place].as_ref().clone() };
        }
    }
    all
}

/// A cost and the numbers of a limit, as its twin reads them. For a calendar the windows around `about` follow.
pub(crate) fn pack(cost: u64, limit: &Limit, about: impl Fn() -> u64) -> Vec<u8> {
    let numbers = limit.numbers();
    let boundaries = numbers.calendar.as_ref().map(|calendar| calendar.boundaries(about()));
    let mut packed = Vec::with_capacity(8 + numbers.packed.len() + boundaries.as_ref().map_or(0, size_of_val));
    packed.extend_from_slice(&double(cost));
    packed.extend_from_slice(&numbers.packed);
    packed.extend(boundaries.into_iter().flatten().flat_map(double));
    packed
}

/// From when until when what is sent with these checks holds: the windows of calendars, and the limits that change. `None` without
/// either.
pub(crate) fn valid(asked: &[Cow<'_, Asked>], about: impl Fn() -> u64) -> Option<[u64; 2]> {
    let calendars = asked.iter().filter_map(|asked| asked.limit.numbers().calendar.as_ref());
    let reach = calendars.map(|calendar| {
        let boundaries = calendar.boundaries(about());
        [boundaries[0], boundaries[boundaries.len() - 1]]
    });
    let changes = asked.iter().filter_map(|asked| asked.changes.as_ref());
    let reach = reach.chain(changes.map(|changes| changes.reach(Timestamp::from_micros(about()))));
    reach.reduce(|[from, until], other| [from.max(other[0]), until.min(other[1])])
}

/// The server's time, if a script has answered that it lies outside what it was sent the numbers for. It has written nothing then.
pub(crate) fn outside(reply: &Value) -> Option<Timestamp> {
    let Value::BulkString(text) = reply else { return None };
    let mut reader = Reader { rest: text.strip_prefix(b"@")? };
    let now = reader.number().ok()?;
    reader.end().ok().map(|()| Timestamp::from_micros(now))
}

/// Decodes the reply of `check.lua`.
pub(crate) fn read_check(reply: &Value, check: &Check<'_>) -> Result<Decision, StoreError> {
    let mut reader = Reader::new(reply)?;
    let allowed = reader.byte()? == 1;
    let now = Timestamp::from_micros(reader.number()?);
    let status = reader.status(check.limit, allowed)?;
    reader.end()?;
    let units = if allowed { check.cost.get() } else { 0 };
    Ok(Decision::of_one(status.with_units(units), Source::Store, now))
}

/// Decodes the reply of `call.lua`.
pub(crate) fn read_call(reply: &Value, call: &Questions) -> Result<Decision, StoreError> {
    let Questions { verb, asked, .. } = call;
    let mut reader = Reader::new(reply)?;
    let mut first = reader.byte()?;
    if first == 3 {
        let now = Timestamp::from_micros(reader.number()?);
        reader.end()?;
        let asked = all_at(asked, now, *verb);
        let conflict = Decision::of_conflict_over(asked.iter().map(|asked| &asked.limit), now);
        return Ok(conflict.with_granted(call.at_most.map(|_| 0)));
    }
    let mut before = None;
    if first == 2 {
        before = Some(Before::read(&mut reader, call)?);
        first = reader.byte()?;
    }
    let allowed = first == 1;
    let looks = before.as_ref().map_or(call.looks_at_holds(), |before| before.looked);
    let now = Timestamp::from_micros(reader.number()?);
    let (mut statuses, mut failures) = (Vec::with_capacity(asked.len()), Vec::new());
    for (place, asked) in all_at(asked, now, *verb).iter().enumerate() {
        statuses.push(match reader.byte()? {
            fits @ (0 | 1 | 3) => {
                let status = reader.status(&asked.limit, fits == 1)?;
                let status = before.as_ref().map_or(status, |before| status.with_limit(before.capacities[place]));
                let status = match verb {
                    Verb::Reset => Status::untouched(&asked.limit).seen_by(asked.pays_rest, false),
                    _ => status.seen_by(asked.pays_rest, asked.hopeless),
                };
                let status = status.with_units(reader.number()?);
                let status = if looks { status.with_holds(reader.number()?, reader.number()?) } else { status };
                if fits == 3 { status.into_holds_full(0) } else { status }
            }
            _ => {
                failures.push((place, unreadable(reader.text()?)));
                Status::untouched(&asked.limit).seen_by(asked.pays_rest, false)
            }
        });
    }
    reader.end()?;
    if failures.len() == asked.len() {
        return Err(failures.swap_remove(0).1);
    }
    let left = asked.iter().zip(&statuses).map(|(asked, status)| (asked.mode, asked.pays_rest, status.units()));
    let granted = call.at_most.map(|most| if allowed { Settlement::granted(most, fund::sums(left)) } else { 0 });
    let decision = Decision::new(allowed, statuses, Source::Store, now).with_failures(failures).with_granted(granted);
    Ok(match before {
        Some(before) => decision.with_first_hold(before.hold).replay(),
        None => decision,
    })
}

/// What is remembered of an answer besides the reply.
struct Before {
    looked: bool,
    hold: Option<HoldId>,
    /// Of the limits as they were.
    capacities: Vec<u64>,
}

impl Before {
    fn read(reader: &mut Reader<'_>, call: &Questions) -> Result<Self, StoreError> {
        let looked = reader.take(1)? == b"h";
        let id: [u8; 16] = reader.take(16)?.try_into().unwrap_or_default();
        let hold = (id != [0; 16]).then(|| HoldId::from_bytes(id));
        let capacities = call.asked.iter().map(|_| reader.number()).collect::<Result<_, _>>()?;
        Ok(Self { looked, hold, capacities })
    }
}

/// The reply of a twin that cannot read a state: `!` and the version of the state, or `?` and an error. Or `@` and the server's
/// time.
fn unreadable(text: &[u8]) -> StoreError {
    match text {
        [b'!', version] if NEWER.contains(version) => {
            StoreError::newer_format(format!("its format version is {version}, but this version reads only {VERSION}"))
        }
        // Asked again, it answered that once more.
        [b'@', ..] => StoreError::unavailable("the server's clock changed while the call was decided".to_owned()),
        [b'?', error @ ..] => Failure::of_error(&String::from_utf8_lossy(error)).at(&"the server"),
        _ => corrupt("the state has an unknown format"),
    }
}

/// Whether a call was not decided because units of a state are held or owed, and it did not look at holds.
pub(crate) fn is_marked(reply: &Value) -> bool {
    matches!(reply, Value::BulkString(text) if text == &[b'!', VERSION])
}

pub(crate) struct Reader<'r> {
    rest: &'r [u8],
}

impl<'r> Reader<'r> {
    /// Of what is stored, and is no reply of a script.
    pub(crate) fn of_stored(value: &'r Value) -> Option<Self> {
        match value {
            Value::BulkString(rest) => Some(Self { rest }),
            _ => None,
        }
    }

    pub(crate) fn new(reply: &'r Value) -> Result<Self, StoreError> {
        match reply {
            // A valid reply begins with a flag.
            Value::BulkString(text) if matches!(text[..], [b'!' | b'?' | b'@', ..]) => Err(unreadable(text)),
            Value::BulkString(rest) => Ok(Self { rest }),
            other => Err(corrupt(&format!("it answered {other:?}"))),
        }
    }

    /// Of bytes that are no answer to a call.
    pub(crate) fn bare(rest: &'r [u8]) -> Self {
        Self { rest }
    }

    pub(crate) fn take(&mut self, bytes: usize) -> Result<&'r [u8], StoreError> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or_else(|| corrupt("the reply is too short"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, StoreError> {
        match self.take(1)? {
            [byte @ 0..=3] => Ok(*byte),
            _ => Err(corrupt("the reply has an invalid flag")),
        }
    }

    /// A length and that many bytes.
    fn text(&mut self) -> Result<&'r [u8], StoreError> {
        let length = self.take(4)?.iter().rev().fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
        self.take(length)
    }

    fn status(&mut self, limit: &Limit, allowed: bool) -> Result<Status, StoreError> {
        let (remaining, retry_after, reset_after) = (self.number()?, self.number()?, self.number()?);
        Ok(Status::from_parts(limit, allowed, remaining, retry_after, reset_after))
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be a whole number in range"
    )]
    pub(crate) fn number(&mut self) -> Result<u64, StoreError> {
        let bytes = self.take(8)?.try_into().unwrap_or_default();
        let number = f64::from_le_bytes(bytes);
        if number.fract() != 0.0 || !(0.0..=MAX_EXACT).contains(&number) {
            return Err(corrupt(&format!("the reply has the invalid number {number}")));
        }
        Ok(number as u64)
    }

    pub(crate) fn end(self) -> Result<(), StoreError> {
        if self.rest.is_empty() { Ok(()) } else { Err(corrupt("the reply is too long")) }
    }
}

/// 2^53: all whole numbers up to this are exact in a double.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

#[expect(clippy::cast_precision_loss, reason = "no cost and no instant is above 2^53")]
pub(crate) fn double(number: u64) -> [u8; 8] {
    (number as f64).to_le_bytes()
}

pub(crate) fn corrupt(reason: &str) -> StoreError {
    StoreError::corrupt(reason.to_owned())
}

#[cfg(test)]
mod tests {
    use tallygate::Key;

    use tallygate::store::StoreErrorKind;

    use super::*;

    #[test]
    fn an_answer_that_is_not_ours_is_refused() {
        let limit: Limit = "5/min".parse().unwrap();
        let check = Check::new(Key::new("p", "s").unwrap(), &limit);
        let call = Questions::new(Verb::Check, vec![Asked::new(&check, "t")]);
        let read = |reply: &Value| [read_check(reply, &check), read_call(reply, &call)];
        for reply in [
            Value::Nil,
            Value::Int(1),
            Value::BulkString(vec![]),
            Value::BulkString(vec![0; 32]),
            Value::BulkString(vec![0; 35]),
            Value::BulkString(f64::NAN.to_le_bytes().to_vec()),
            Value::BulkString([&[1], f64::MAX.to_le_bytes().as_slice(), &[0; 24]].concat()),
            Value::BulkString(b"!".to_vec()),
            Value::BulkString(b"!\x01".to_vec()),
        ] {
            for answer in read(&reply) {
                assert!(
                    answer.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Corrupt),
                    "{reply:?}: {answer:?}"
                );
            }
        }
        // The second time that the server's clock lies outside what it was sent the numbers for.
        let outside = Value::BulkString([b"@".as_slice(), &7.0_f64.to_le_bytes()].concat());
        assert_eq!(super::outside(&outside), Some(Timestamp::from_micros(7)));
        for answer in read(&outside) {
            assert!(
                answer.is_err_and(|error| error.kind() == StoreErrorKind::Unavailable && !error.may_have_charged())
            );
        }
        for other in [&b"@"[..], b"@1234567", b"@123456789", b"!12345678", b"@\xff\xff\xff\xff\xff\xff\xff\xff"] {
            assert_eq!(super::outside(&Value::BulkString(other.to_vec())), None, "{other:?}");
        }
        let [newer, also] = read(&Value::BulkString(b"!\x03".to_vec()));
        assert!(newer.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::NewerFormat) && newer == also);
        let whole = [&[1], 1.0_f64.to_le_bytes().as_slice(), &[0; 24]].concat();
        assert!(read_check(&Value::BulkString(whole), &check).unwrap().allowed());
    }
}
