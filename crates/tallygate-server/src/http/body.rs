//! What callers write: first as JSON, then as meant. Everything is bounded before it becomes a key.

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Number, Value};
use tallygate::{Algorithm, Ask, Charge, Check, Cost, Descriptor, Key, Limit, LimitBuilder, Timestamp};
use tallygate_http::Problem;

/// The most descriptors of a call.
pub(crate) const MAX_DESCRIPTORS: usize = 32;
/// The most entries of a descriptor.
pub(crate) const MAX_ENTRIES: usize = 16;
/// The longest key of an entry, in bytes.
pub(crate) const MAX_KEY: usize = 128;
/// The longest value of an entry, in bytes.
pub(crate) const MAX_VALUE: usize = 1024;

/// The policy of ad hoc questions that name none.
const AD_HOC: &str = "ad-hoc";

/// A question: about a limit that it brings along, or about the policies of a domain.
#[derive(Debug)]
pub(crate) enum Question {
    AdHoc(AdHoc),
    Policies(Policies),
}

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

/// A key and a limit.
#[derive(Debug)]
pub(crate) struct AdHoc {
    key: String,
    policy: String,
    limit: Limit,
    cost: Cost,
    charged_at: Option<Timestamp>,
}

/// A domain and what is known of the request.
#[derive(Debug)]
pub(crate) struct Policies {
    pub(crate) domain: String,
    descriptors: Vec<Descriptor>,
    cost: Cost,
    charged_at: Option<Timestamp>,
}

impl Question {
    /// Reads a body.
    pub(crate) fn read(body: &[u8]) -> Result<Self, Problem> {
        let object: Map<String, Value> = read_json(body)?;
        if object.contains_key("key") {
            return AdHoc::read(meant(object)?).map(Self::AdHoc);
        }
        if object.contains_key("domain") {
            return Policies::read(meant(object)?).map(Self::Policies);
        }
        Err(Problem::bad_request(
            "The body names neither a `domain` nor a `key`: write {\"domain\":…,\"descriptors\":[{…}]} to ask by policy, \
             or {\"key\":…,\"limit\":\"100/min\"} to bring the limit along.",
        ))
    }
}

impl AdHoc {
    fn read(written: WrittenAdHoc) -> Result<Self, Problem> {
        let limit = limit(&written.limit, written.algorithm.as_deref())?;
        let policy = written.policy.unwrap_or_else(|| AD_HOC.to_owned());
        // So are the states of policies named: whoever could name them here could empty them without the token.
        if policy.contains('/') || policy.starts_with('#') {
            return Err(Problem::bad_request("A `policy` cannot contain `/` or begin with `#`."));
        }
        Key::new(&policy, &written.key).map_err(|error| Problem::bad_request(error.to_string()))?;
        Ok(Self {
            key: written.key,
            policy,
            limit,
            cost: cost(written.cost)?,
            charged_at: written.charged_at_us.map(Timestamp::from_micros),
        })
    }

    pub(crate) fn check(&self) -> Check<'_> {
        let key = Key::new(&self.policy, &self.key).expect("it was tried when it was read");
        Check::new(key, &self.limit).cost(self.cost)
    }

    pub(crate) fn policy(&self) -> &str {
        &self.policy
    }

    pub(crate) fn limit(&self) -> &Limit {
        &self.limit
    }

    pub(crate) fn charged_at(&self) -> Option<Timestamp> {
        self.charged_at
    }
}

impl Policies {
    fn read(written: WrittenPolicies) -> Result<Self, Problem> {
        if written.domain.is_empty() {
            return Err(Problem::bad_request("The `domain` is empty: name one of your policy files."));
        }
        let count = written.descriptors.len();
        if count == 0 || count > MAX_DESCRIPTORS {
            return Err(Problem::bad_request(format!(
                "A call has 1 to {MAX_DESCRIPTORS} descriptors; this one has {count}."
            )));
        }
        Ok(Self {
            domain: written.domain,
            descriptors: written.descriptors.into_iter().map(descriptor).collect::<Result<_, _>>()?,
            cost: cost(written.cost)?,
            charged_at: written.charged_at_us.map(Timestamp::from_micros),
        })
    }

    pub(crate) fn take(self) -> Vec<Ask> {
        let charge = Charge::Take(self.cost);
        self.asks(charge)
    }

    pub(crate) fn look(self) -> Vec<Ask> {
        self.asks(Charge::Look)
    }

    pub(crate) fn give_back(self) -> Vec<Ask> {
        let charge = Charge::GiveBack(self.cost, self.charged_at);
        self.asks(charge)
    }

    fn asks(self, charge: Charge) -> Vec<Ask> {
        self.descriptors.into_iter().map(|descriptor| Ask { descriptor, charge, limit: None }).collect()
    }
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

/// Whether an entry is of a size that may become part of a key.
pub(crate) fn check_entry(key: &str, value: &str) -> Result<(), Problem> {
    let complain = |what: &str, bytes: usize, most: usize| {
        Err(Problem::bad_request(format!("{what} of an entry has {bytes} bytes: 1 to {most} are allowed.")))
    };
    match (key.len(), value.len()) {
        (0, _) => complain("The key", 0, MAX_KEY),
        (bytes, _) if bytes > MAX_KEY => complain("The key", bytes, MAX_KEY),
        (_, bytes) if bytes > MAX_VALUE => complain("The value", bytes, MAX_VALUE),
        _ => Ok(()),
    }
}

fn limit(text: &str, algorithm: Option<&str>) -> Result<Limit, Problem> {
    let one_line = |error: &dyn std::fmt::Display| {
        let text = error.to_string();
        Problem::bad_request(text.lines().next().unwrap_or_default())
    };
    let builder: LimitBuilder = text.parse().map_err(|error| one_line(&error))?;
    let builder = match algorithm {
        None => builder,
        Some(name) => {
            let asked: Algorithm = name.parse().map_err(|error| one_line(&error))?;
            if builder.chosen_algorithm().is_some_and(|written| written != asked) {
                return Err(Problem::bad_request("`limit` and `algorithm` name different algorithms: leave one out."));
            }
            builder.algorithm(asked)
        }
    };
    builder.build().map_err(|error| one_line(&error))
}

fn cost(written: Option<u64>) -> Result<Cost, Problem> {
    Cost::new(written.unwrap_or(1)).map_err(|error| Problem::bad_request(error.to_string()))
}

/// Reads JSON; what is wrong with it is said without repeating it.
pub(crate) fn read_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| Problem::bad_request(format!("The body cannot be read: {error}.")))
}

/// A whole number, if there is one. `5.0` is one, to JSON Schema and to languages that know no other numbers.
pub(crate) fn whole<'de, D: Deserializer<'de>, T: TryFrom<i128>>(from: D) -> Result<Option<T>, D::Error> {
    let Some(number) = Option::<Number>::deserialize(from)? else { return Ok(None) };
    let exact = number.as_i128().or_else(|| {
        // Whole numbers that are too long for 64 bits are read as floats, too, and rounded: none of them is below this.
        const TOO_LONG: f64 = (1_u64 << 63) as f64;
        let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < TOO_LONG)?;
        #[expect(clippy::cast_possible_truncation, reason = "it has no fraction, and fits")]
        Some(float as i128)
    });
    let fitting = exact.and_then(|exact| T::try_from(exact).ok());
    fitting.map(Some).ok_or_else(|| D::Error::custom(format!("`{number}` is not a whole number that fits here")))
}

/// Reads an object. Serde alone would take the fields of a struct from a list, too.
pub(crate) fn read_object<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    meant(read_json(body)?)
}

fn meant<T: DeserializeOwned>(object: Map<String, Value>) -> Result<T, Problem> {
    let read = serde_json::from_value(Value::Object(object));
    read.map_err(|error| Problem::bad_request(format!("The body cannot be read: {error}.")))
}
