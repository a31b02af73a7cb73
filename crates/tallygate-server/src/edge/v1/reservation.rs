//! What a reservation asks for beyond a check, and what it answers.

use std::fmt;
use std::time::Duration;

use tallygate::Cost;
use tallygate::hold::HoldTerms;
use tallygate_http::{Problem, ProblemCode, millis_up};

use crate::edge::json::{Fields, Json, exact, invalid};
use crate::question::{Estimated, Reserving};

/// A number of units, and those of single policies.
type UnitsOf = (Cost, Vec<(String, Cost)>);

/// Units, and how long they are held. `by_policy` may name policies.
pub(super) fn read(fields: &mut Fields, by_policy: bool) -> Result<(Cost, Reserving), Problem> {
    // One number is for all policies; an object for those that it names.
    let estimated = match fields.get("units") {
        Some(Json::Object(_)) | None => Estimated::All,
        Some(_) => Estimated::Only(Vec::new()),
    };
    let (cost, units) = units(fields, by_policy)?;
    Ok((cost, Reserving { ttl: ttl(fields)?.unwrap_or(Reserving::TTL), units, estimated, at_most: false }))
}

/// How long units are held, if that is said. A policy may grant less.
pub(crate) fn ttl(fields: &mut Fields) -> Result<Option<Duration>, Problem> {
    let longest = millis_up(HoldTerms::LONGEST);
    match fields.whole::<u64>("ttl_ms")? {
        Some(ttl) if ttl == 0 || ttl > longest => Err(invalid(format!(
            "`ttl_ms` must be from 1 to {longest}, which is a day, not {ttl}: a hold can be extended with /v1/extend."
        ))),
        ttl => Ok(ttl.map(Duration::from_millis)),
    }
}

fn units(fields: &mut Fields, by_policy: bool) -> Result<UnitsOf, Problem> {
    if fields.has("cost") {
        return Err(invalid("`cost` is for checks: a reservation says \"units\"."));
    }
    match fields.get("units") {
        Some(Json::Object(_)) if !by_policy => {
            Err(invalid("`units` names policies, but the limit comes along with the call: write \"units\":1."))
        }
        Some(Json::Object(_)) => {
            let Some(Json::Object(named)) = fields.take("units") else { return Ok((Cost::ONE, Vec::new())) };
            if named.is_empty() {
                return Err(invalid("`units` names no policy: write \"units\":1, or \"units\":{\"tokens\":900}."));
            }
            let of_policy = |(policy, units): (String, Json)| {
                let field = format!("units.{}", policy.escape_debug());
                Ok((policy, cost(&field, whole(&field, &units)?)?))
            };
            Ok((Cost::ONE, named.into_iter().map(of_policy).collect::<Result<_, Problem>>()?))
        }
        _ => Ok((cost("units", fields.whole::<u64>("units")?.unwrap_or(1))?, Vec::new())),
    }
}

/// The whole number of a member.
pub(crate) fn whole(field: &str, value: &Json) -> Result<u64, Problem> {
    let refuse = |found: &dyn fmt::Display| {
        invalid(format!("`{field}` must be a whole number of units, not {found}: for example 1."))
    };
    match value {
        Json::Number(number) => exact(number).and_then(|exact| u64::try_from(exact).ok()).ok_or_else(|| refuse(number)),
        other => Err(refuse(&other.kind())),
    }
}

fn cost(field: &str, units: u64) -> Result<Cost, Problem> {
    Cost::new(units).map_err(|_| match units {
        0 => invalid(format!("`{field}` is 0, which holds nothing: reserve at least 1, and settle with \"units\":0.")),
        _ => {
            let most = Cost::MAX;
            Problem::new(ProblemCode::CostTooLarge, format!("`{field}` is {units}: no limit holds more than {most}."))
        }
    })
}
