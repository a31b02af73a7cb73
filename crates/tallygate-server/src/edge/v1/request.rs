//! The questions of `/v1`: first as written in JSON, then as meant.

use std::fmt::Display;

use serde::Deserialize;
use serde_json::{Map, Value};
use tallygate::{Algorithm, Cost, Descriptor, Limit, Timestamp, Verb};
use tallygate_http::Problem;

use crate::edge::bounds::{MAX_DESCRIPTORS, MAX_ENTRIES, check_entry};
use crate::edge::json::{from_object, read_json, whole};
use crate::question::{About, AdHoc, Question};

/// The policy of ad hoc questions that name none.
const AD_HOC: &str = "ad-hoc";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenAdHoc {
    key: String,
    limit: String,
    algorithm: Option<String>,
    policy: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    cost: Option<u64>,
    #[serde(default, deserialize_with = "whole")]
    charged_at_us: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenPolicies {
    domain: String,
    descriptors: Vec<Map<String, Value>>,
    #[serde(default, deserialize_with = "whole")]
    cost: Option<u64>,
    #[serde(default, deserialize_with = "whole")]
    charged_at_us: Option<u64>,
}

pub(super) fn read(verb: Verb, body: &[u8]) -> Result<Question, Problem> {
    let object: Map<String, Value> = read_json(body)?;
    if object.contains_key("key") {
        let about = About::AdHoc(ad_hoc(from_object(object)?)?);
        return Ok(Question { verb, about });
    }
    if object.contains_key("domain") {
        return by_policy(verb, from_object(object)?);
    }
    Err(Problem::bad_request(
        "The body names neither a `domain` nor a `key`: write {\"domain\":…,\"descriptors\":[{…}]} to ask by policy, \
         or {\"key\":…,\"limit\":\"100/min\"} to bring the limit along.",
    ))
}

fn ad_hoc(written: WrittenAdHoc) -> Result<AdHoc, Problem> {
    let limit = limit(&written.limit, written.algorithm.as_deref())?;
    let policy = written.policy.unwrap_or_else(|| AD_HOC.to_owned());
    // The states of policies have such names: accepting them here would let callers reset them without the token.
    if policy.contains('/') || policy.starts_with('#') {
        return Err(Problem::bad_request("A `policy` cannot contain `/` or begin with `#`."));
    }
    let charged_at = written.charged_at_us.map(Timestamp::from_micros);
    let asked = AdHoc::new(policy, written.key, limit, cost(written.cost)?, charged_at);
    asked.map_err(|error| Problem::bad_request(error.to_string()))
}

fn by_policy(verb: Verb, written: WrittenPolicies) -> Result<Question, Problem> {
    if written.domain.is_empty() {
        return Err(Problem::bad_request("The `domain` is empty: name one of your policy files."));
    }
    let count = written.descriptors.len();
    if count == 0 || count > MAX_DESCRIPTORS {
        return Err(Problem::bad_request(format!(
            "A call has 1 to {MAX_DESCRIPTORS} descriptors; this one has {count}."
        )));
    }
    let descriptors: Vec<Descriptor> = written.descriptors.into_iter().map(descriptor).collect::<Result<_, _>>()?;
    let charged_at = written.charged_at_us.map(Timestamp::from_micros);
    Ok(Question::by_policy(verb, written.domain, descriptors, cost(written.cost)?, charged_at))
}

fn descriptor(written: Map<String, Value>) -> Result<Descriptor, Problem> {
    if written.is_empty() || written.len() > MAX_ENTRIES {
        let count = written.len();
        return Err(Problem::bad_request(format!("A descriptor has 1 to {MAX_ENTRIES} entries; one has {count}.")));
    }
    let mut descriptor = Descriptor::new();
    for (key, value) in written {
        let value = match value {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            _ => {
                let key = key.escape_debug();
                return Err(Problem::bad_request(format!(
                    "The value of `{key}` must be a text, a number or a boolean."
                )));
            }
        };
        check_entry(&key, &value)?;
        descriptor.push(key, value);
    }
    Ok(descriptor)
}

fn limit(text: &str, algorithm: Option<&str>) -> Result<Limit, Problem> {
    let one_line = |error: &dyn Display| {
        let text = error.to_string();
        Problem::bad_request(text.lines().next().unwrap_or_default())
    };
    let asked = algorithm.map(str::parse::<Algorithm>).transpose().map_err(|error| one_line(&error))?;
    let limit = Limit::parse_with(text, asked).map_err(|error| one_line(&error))?;
    match asked.filter(|asked| *asked != limit.algorithm()) {
        Some(_) => Err(Problem::bad_request("`limit` and `algorithm` name different algorithms: leave one out.")),
        None => Ok(limit),
    }
}

fn cost(written: Option<u64>) -> Result<Cost, Problem> {
    Cost::new(written.unwrap_or(1)).map_err(|error| Problem::bad_request(error.to_string()))
}
