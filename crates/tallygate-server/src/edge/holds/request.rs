//! What is asked about a hold.

use std::time::Duration;

use tallygate::Cost;
use tallygate::hold::{Hold, Resolve, Turn, Units};
use tallygate_http::Problem;

use crate::answer::one_of;
use crate::edge::json::{Fields, Json, invalid};
use crate::edge::v1::reservation::{ttl, whole};
use crate::loaded::Loaded;

/// A hold, and what to do with it.
pub(super) struct Ask {
    pub(super) hold: Hold,
    pub(super) resolve: Resolve,
}

/// What is asked to be renewed.
pub(super) enum Renewals {
    One(Ask),
    Several(Vec<Ask>),
}

pub(super) fn settle(body: &[u8], loaded: &Loaded) -> Result<Ask, Problem> {
    let mut fields = Fields::read(body, r#"{"hold":"01…","units":12}"#)?;
    fields.only(&["hold", "units", "partial"])?;
    let hold = hold(&mut fields)?;
    let (units, partial) = (units(&mut fields, &hold, loaded)?, fields.flag("partial")?);
    let resolve = match (units, partial) {
        (Units::AsReserved, true) => {
            return Err(invalid("A partial settlement needs `units`: how many were used since the last one."));
        }
        (units, true) => Resolve::SettlePart(units),
        (units, false) => Resolve::Settle(units),
    };
    Ok(Ask { hold, resolve })
}

pub(super) fn cancel(body: &[u8], _: &Loaded) -> Result<Ask, Problem> {
    let mut fields = Fields::read(body, r#"{"hold":"01…"}"#)?;
    fields.only(&["hold"])?;
    Ok(Ask { hold: hold(&mut fields)?, resolve: Resolve::Cancel })
}

pub(super) fn extend(body: &[u8], _: &Loaded) -> Result<Ask, Problem> {
    let mut fields = Fields::read(body, r#"{"hold":"01…","ttl_ms":60000}"#)?;
    fields.only(&["hold", "ttl_ms"])?;
    let hold = hold(&mut fields)?;
    let ttl: Option<Duration> = ttl(&mut fields)?;
    let ttl =
        ttl.ok_or_else(|| invalid("missing field `ttl_ms`: for how long from now, for example \"ttl_ms\":60000."))?;
    Ok(Ask { hold, resolve: Resolve::Extend(ttl) })
}

/// The most holds that one call renews.
const MOST_RENEWED: usize = 256;

/// A hold, or several: each with the name of its next renewal.
pub(super) fn renew(body: &[u8]) -> Result<Renewals, Problem> {
    let mut fields = Fields::read(body, r#"{"hold":"01…","next":"2","ttl_ms":10000}"#)?;
    fields.only(&["hold", "next", "holds", "ttl_ms"])?;
    let missing = || invalid("missing field `ttl_ms`: for how long from now, for example \"ttl_ms\":10000.");
    let ttl: Duration = ttl(&mut fields)?.ok_or_else(missing)?;
    if !fields.has("holds") {
        return Ok(Renewals::One(renewal(&mut fields, ttl)?));
    }
    if fields.has("hold") || fields.has("next") {
        return Err(invalid("`holds` and `hold` exclude each other: renew one, or a list of {\"hold\":…,\"next\":…}."));
    }
    let Some(Json::List(written)) = fields.take("holds") else {
        return Err(invalid("`holds` must be a list of {\"hold\":…,\"next\":…}."));
    };
    if written.is_empty() || written.len() > MOST_RENEWED {
        let count = written.len();
        return Err(invalid(format!("`holds` has {count} entries: renew from 1 to {MOST_RENEWED} holds at once.")));
    }
    let read = |(at, entry): (usize, Json)| {
        let Json::Object(members) = entry else {
            return Err(invalid(format!("`holds[{at}]` must be an object: {{\"hold\":…,\"next\":…}}.")));
        };
        let mut fields = Fields::of(members);
        fields.only(&["hold", "next"])?;
        renewal(&mut fields, ttl)
    };
    Ok(Renewals::Several(written.into_iter().enumerate().map(read).collect::<Result<_, _>>()?))
}

fn renewal(fields: &mut Fields, ttl: Duration) -> Result<Ask, Problem> {
    let hold = hold(fields)?;
    let next = fields.string("next")?.filter(|name| !name.is_empty() && name.len() <= 128);
    let next = next.ok_or_else(|| {
        invalid(
            "`next` names this renewal, in 1 to 128 bytes: choose another one for each renewal of a hold, and repeat it if no \
             answer came.",
        )
    })?;
    Ok(Ask { hold, resolve: Resolve::Renew { ttl, next: Turn::named(&next) } })
}

fn hold(fields: &mut Fields) -> Result<Hold, Problem> {
    let token = fields.string("hold")?;
    let token = token.ok_or_else(|| invalid("missing field `hold`: the `hold` that /v1/reserve answered."))?;
    // The token is secret: the answer does not repeat it.
    token.parse().map_err(|error: tallygate::hold::InvalidHold| invalid(format!("`hold` is invalid: {error}.")))
}

/// A number for all policies, or one for each that is named.
fn units(fields: &mut Fields, hold: &Hold, loaded: &Loaded) -> Result<Units, Problem> {
    match fields.take("units") {
        None => Ok(Units::AsReserved),
        Some(Json::Object(named)) if named.is_empty() => {
            Err(invalid("`units` names no policy: write \"units\":12, or \"units\":{\"tokens\":12}."))
        }
        Some(Json::Object(named)) => {
            let mut each = Vec::with_capacity(named.len());
            for (policy, units) in named {
                let units = used(&format!("units.{}", policy.escape_debug()), &units)?;
                let known = each.len();
                let keys = hold.places().map(|(key, _)| key.policy());
                each.extend(keys.filter(|key| loaded.name_of(key) == policy).map(|key| (key.to_owned(), units)));
                if each.len() == known && !hold.is_empty() {
                    return Err(unknown(&policy, hold, loaded));
                }
            }
            Ok(Units::Each(each))
        }
        Some(other) => Ok(Units::Same(used("units", &other)?)),
    }
}

fn unknown(policy: &str, hold: &Hold, loaded: &Loaded) -> Problem {
    let mut known: Vec<&str> = hold.places().map(|(key, _)| loaded.name_of(key.policy())).collect();
    known.dedup();
    let hint = one_of(policy, &known, "it holds nothing.");
    invalid(format!("The hold is not of a policy `{}`: {hint}", policy.escape_debug()))
}

/// What was used may be zero, and more than what was reserved.
fn used(field: &str, value: &Json) -> Result<u64, Problem> {
    let (units, most) = (whole(field, value)?, Cost::MAX.get());
    if units > most {
        return Err(invalid(format!("`{field}` is {units}: no limit holds more than {most}.")));
    }
    Ok(units)
}
