//! What is asked about a hold.

use std::time::Duration;

use tallygate::Cost;
use tallygate::hold::{Hold, Resolve, Units};
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
