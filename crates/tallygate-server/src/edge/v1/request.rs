//! The questions of `/v1`.

use tallygate::call::{UpTo, Verb};
use tallygate::check::CostError;
use tallygate::clock::Timestamp;
use tallygate::policy::Descriptor;
use tallygate::request::RequestId;
use tallygate::{Algorithm, Cost, Limit};
use tallygate_http::{Problem, ProblemCode};

use crate::edge::bounds::{MAX_DESCRIPTORS, MAX_ENTRIES, check_entry};
use crate::edge::json::{Fields, Json, invalid, sentence};
use crate::edge::v1::reservation;
use crate::question::{About, AdHoc, Question, Reserving};

/// The policy of ad hoc questions that name none.
const AD_HOC: &str = "ad-hoc";

/// What a question looks like, for messages.
const BY_POLICY: &str = r#"{"domain":"api","descriptors":[{"user":"42"}]}"#;

/// The fields of a reservation.
const AD_HOC_HOLD: [&str; 7] = ["key", "limit", "algorithm", "policy", "units", "ttl_ms", "request_id"];
const BY_POLICY_HOLD: [&str; 5] = ["domain", "descriptors", "units", "ttl_ms", "request_id"];

const AD_HOC_FIELDS: [&str; 9] =
    ["key", "limit", "algorithm", "policy", "cost", "charged_at_us", "up_to", "at_least", "request_id"];
const BY_POLICY_FIELDS: [&str; 7] =
    ["domain", "descriptors", "cost", "charged_at_us", "up_to", "at_least", "request_id"];

pub(super) fn read(verb: Verb, body: &[u8]) -> Result<Question, Problem> {
    let mut fields = Fields::read(body, BY_POLICY)?;
    match (fields.has("key"), fields.has("domain")) {
        (true, false) => {
            let (about, reserving) = ad_hoc(verb, &mut fields)?;
            let up_to = up_to(verb, about.cost, &mut fields)?;
            let request_id = request_id(verb, &mut fields)?;
            Ok(Question { verb, up_to, reserving, request_id, about: About::AdHoc(about) })
        }
        (false, true) => by_policy(verb, fields),
        (true, true) => Err(invalid(
            "The body has a `domain` and a `key`: `domain` asks by policy, `key` with `limit` asks ad hoc; leave one out.",
        )),
        (false, false) => Err(nameless(&fields)),
    }
}

/// The body has neither a `domain` nor a `key`.
fn nameless(fields: &Fields) -> Problem {
    let known = [&AD_HOC_FIELDS[..], &BY_POLICY_FIELDS].concat();
    let misspelled = ["domain", "key"].into_iter().find_map(|near| Some((fields.misspelled(near, &known)?, near)));
    match misspelled {
        Some((name, near)) => invalid(format!("unknown field `{}`: did you mean `{near}`?", name.escape_debug())),
        None => invalid(
            "The body names neither a `domain` nor a `key`: write {\"domain\":…,\"descriptors\":[{…}]} to ask by policy, \
             or {\"key\":…,\"limit\":\"100/min\"} to bring the limit along.",
        ),
    }
}

fn ad_hoc(verb: Verb, fields: &mut Fields) -> Result<(AdHoc, Option<Reserving>), Problem> {
    if let Some(Json::Number(burst)) = fields.get("burst") {
        let limit = match fields.get("limit") {
            Some(Json::String(limit)) => limit,
            _ => "100/min",
        };
        let limit = limit.escape_debug();
        return Err(invalid(format!(
            "unknown field `burst`: the burst is part of the limit: write \"limit\":\"{limit} burst {burst}\"."
        )));
    }
    fields.only(if verb == Verb::Reserve { &AD_HOC_HOLD } else { &AD_HOC_FIELDS })?;
    let key = fields.string("key")?.unwrap_or_default();
    let Some(text) = fields.string("limit")? else {
        return Err(invalid("missing field `limit`: write {\"key\":…,\"limit\":\"100/min\"}."));
    };
    let limit = limit(&text, fields.string("algorithm")?.as_deref())?;
    let policy = fields.string("policy")?.unwrap_or_else(|| AD_HOC.to_owned());
    // The states of policies have such names: accepting them here would let callers reset them without the token.
    if policy.contains('/') || policy.starts_with('#') {
        return Err(invalid("`policy` cannot contain `/` or begin with `#`."));
    }
    let (cost, reserving) = cost(verb, fields, false)?;
    let about = AdHoc::new(policy, key, limit, cost, charged_at(fields)?).map_err(invalid)?;
    Ok((about, reserving))
}

fn by_policy(verb: Verb, mut fields: Fields) -> Result<Question, Problem> {
    if fields.has("limit") {
        return Err(invalid(
            "`limit` cannot be used with `domain`, whose limits are in the policy files: leave `limit` out, or ask ad hoc \
             with {\"key\":…,\"limit\":…}.",
        ));
    }
    fields.only(if verb == Verb::Reserve { &BY_POLICY_HOLD } else { &BY_POLICY_FIELDS })?;
    let domain = fields.string("domain")?.unwrap_or_default();
    if domain.is_empty() {
        return Err(invalid("`domain` is empty: name a domain of your policy files."));
    }
    let list = match fields.take("descriptors") {
        Some(Json::List(list)) => list,
        None => return Err(invalid(format!("missing field `descriptors`: write {BY_POLICY}."))),
        Some(other) => {
            let kind = other.kind();
            let example = r#""descriptors":[{"user":"42"}]"#;
            return Err(invalid(format!("`descriptors` must be a list of objects, not {kind}: write {example}.")));
        }
    };
    let count = list.len();
    if count == 0 || count > MAX_DESCRIPTORS {
        return Err(invalid(format!("A call has 1 to {MAX_DESCRIPTORS} descriptors; this one has {count}.")));
    }
    let descriptors = list.into_iter().enumerate().map(|(at, written)| descriptor("descriptors", at, written));
    let descriptors: Vec<Descriptor> = descriptors.collect::<Result<_, _>>()?;
    let (cost, reserving) = cost(verb, &mut fields, true)?;
    let charged_at = charged_at(&mut fields)?;
    let up_to = up_to(verb, cost, &mut fields)?;
    let request_id = request_id(verb, &mut fields)?;
    Ok(Question { up_to, reserving, request_id, ..Question::by_policy(verb, domain, descriptors, cost, charged_at) })
}

pub(in crate::edge) fn descriptor(field: &str, at: usize, written: Json) -> Result<Descriptor, Problem> {
    const ENVOY: &str = r#"write {"user":"42"} here, or send Envoy's form to /json."#;
    let entries = match written {
        Json::Object(entries) => entries,
        other => {
            let kind = other.kind();
            return Err(invalid(format!("`{field}[{at}]` must be an object, not {kind}: write {{\"user\":\"42\"}}.")));
        }
    };
    let count = entries.len();
    if count == 0 || count > MAX_ENTRIES {
        return Err(invalid(format!("`{field}[{at}]` has {count} entries: 1 to {MAX_ENTRIES} are allowed.")));
    }
    // Envoy's form of an entry, which would count nobody.
    if count == 2 && ["key", "value"].iter().all(|name| entries.iter().any(|(key, _)| key == name)) {
        return Err(invalid(format!("`{field}[{at}]` has the entries `key` and `value`: {ENVOY}")));
    }
    let mut descriptor = Descriptor::new();
    for (key, value) in entries {
        let value = match value {
            Json::String(text) => text,
            Json::Number(number) => number.to_string(),
            Json::Bool(flag) => flag.to_string(),
            other => {
                let (key, kind) = (key.escape_debug(), other.kind());
                return Err(invalid(format!(
                    "`{key}` in `{field}[{at}]` must be a string, a number or a boolean, not {kind}: {ENVOY}"
                )));
            }
        };
        check_entry(&key, &value).map_err(|reason| invalid(format!("`{field}[{at}]`: {reason}")))?;
        descriptor.push(key, value);
    }
    Ok(descriptor)
}

fn limit(text: &str, algorithm: Option<&str>) -> Result<Limit, Problem> {
    let asked = algorithm.map(str::parse::<Algorithm>).transpose().map_err(invalid)?;
    let limit = Limit::parse_with(text, asked).map_err(invalid)?;
    match asked.filter(|asked| *asked != limit.algorithm()) {
        Some(_) => Err(invalid("`limit` and `algorithm` name different algorithms: leave one out.")),
        None => Ok(limit),
    }
}

/// What a check that takes what is left may be granted: at most its cost.
fn up_to(verb: Verb, cost: Cost, fields: &mut Fields) -> Result<Option<UpTo>, Problem> {
    let given = ["up_to", "at_least"].into_iter().find(|name| fields.has(name));
    if let Some(name) = given.filter(|_| verb != Verb::Check) {
        return Err(invalid(format!("`{name}` is for /v1/check, not for /v1/{}: leave it out.", verb.name())));
    }
    match (fields.flag("up_to")?, fields.whole::<u64>("at_least")?) {
        (false, None) => Ok(None),
        (false, Some(_)) => Err(invalid("`at_least` is for checks that take what is left: add \"up_to\":true.")),
        (true, None) => Ok(Some(UpTo::new(cost))),
        (true, Some(at_least)) => {
            let up_to = Cost::new(at_least).ok().and_then(|at_least| UpTo::new(cost).at_least(at_least).ok());
            let detail = format!("`at_least` must be from 1 to `cost`, which is {cost}, not {at_least}.");
            up_to.map(Some).ok_or_else(|| invalid(detail))
        }
    }
}

/// What a call is remembered by, so that it can be repeated.
fn request_id(verb: Verb, fields: &mut Fields) -> Result<Option<RequestId>, Problem> {
    let Some(id) = fields.string("request_id")? else { return Ok(None) };
    if !matches!(verb, Verb::Check | Verb::Reserve) {
        let verb = verb.name();
        let detail = format!("`request_id` is for /v1/check and /v1/reserve, not for /v1/{verb}: leave it out.");
        return Err(invalid(detail));
    }
    RequestId::new(id).map(Some).map_err(invalid)
}

/// The cost, and what a reservation asks for.
fn cost(verb: Verb, fields: &mut Fields, by_policy: bool) -> Result<(Cost, Option<Reserving>), Problem> {
    if verb == Verb::Reserve {
        return reservation::read(fields, by_policy).map(|(cost, reserving)| (cost, Some(reserving)));
    }
    let cost = Cost::new(fields.whole("cost")?.unwrap_or(1)).map_err(|error| {
        let too_large = matches!(error, CostError::TooLarge { .. });
        let code = if too_large { ProblemCode::CostTooLarge } else { ProblemCode::InvalidField };
        Problem::new(code, sentence(&error.to_string()))
    })?;
    Ok((cost, None))
}

fn charged_at(fields: &mut Fields) -> Result<Option<Timestamp>, Problem> {
    Ok(fields.whole("charged_at_us")?.map(Timestamp::from_micros))
}
