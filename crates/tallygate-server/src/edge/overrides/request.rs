//! What is asked about overrides.

use std::time::Duration;

use tallygate::Limit;
use tallygate::live::{Override, OverrideSet, Target};
use tallygate::policy::{Descriptor, PolicySet};
use tallygate_http::Problem;

use super::problem;
use crate::edge::json::{Fields, Json, invalid};
use crate::edge::v1::request::descriptor;

pub(super) const UNLIMITED: &str = "unlimited";
/// The most callers of one preview.
const MOST_CALLERS: usize = 100;

const SET: &str = r#"{"domain":"api","policy":"per-user","match":{"user":"42"},"limit":"1000/min","reason":"…"}"#;
const REMOVE: &str = r#"{"domain":"api","policy":"per-user","match":{"user":"42"}}"#;
const PREVIEW: &str = r#"{"domain":"api","policy":"per-user","match":{"plan":"pro"},"limit":"9/min","callers":[{"user":"42","plan":"pro"}]}"#;

/// An override to be set.
pub(super) struct Asked {
    pub(super) new: Override,
    pub(super) lasts: Option<Duration>,
    /// Of the set that the caller has seen.
    pub(super) revision: Option<u64>,
}

pub(super) fn set(body: &[u8], files: &PolicySet, operator: &str) -> Result<Asked, Problem> {
    let mut fields = Fields::read(body, SET)?;
    let known = ["domain", "policy", "match", "limit", "reason", "author", "expires_after_ms", "revision"];
    fields.only(&known)?;
    let new = override_of(&mut fields, files)?;
    let Some(reason) = fields.string("reason")? else {
        return Err(invalid("missing field `reason`: say why, for those who find the override later."));
    };
    let author = fields.string("author")?.unwrap_or_else(|| operator.to_owned());
    let lasts = fields.whole::<u64>("expires_after_ms")?.map(Duration::from_millis);
    let revision = fields.whole("revision")?;
    Ok(Asked { new: new.because(reason).by(author), lasts, revision })
}

pub(super) fn remove(body: &[u8]) -> Result<(Target, Option<u64>), Problem> {
    let mut fields = Fields::read(body, REMOVE)?;
    fields.only(&["domain", "policy", "match", "revision"])?;
    Ok((target(&mut fields)?, fields.whole("revision")?))
}

/// The override and the callers that somebody asks about.
pub(super) fn preview(body: &[u8], files: &PolicySet) -> Result<(Override, Vec<Descriptor>), Problem> {
    let mut fields = Fields::read(body, PREVIEW)?;
    fields.only(&["domain", "policy", "match", "limit", "callers"])?;
    let callers = match fields.take("callers") {
        Some(Json::List(list)) => list,
        Some(other) => {
            return Err(invalid(format!(
                "`callers` must be a list of objects, not {}: write {PREVIEW}.",
                other.kind()
            )));
        }
        None => {
            return Err(invalid(format!(
                "missing field `callers`: states do not say who is on a plan, so name the callers to look at: {PREVIEW}."
            )));
        }
    };
    let count = callers.len();
    if count == 0 || count > MOST_CALLERS {
        return Err(invalid(format!("A preview has 1 to {MOST_CALLERS} callers; this one has {count}.")));
    }
    let callers = callers.into_iter().enumerate().map(|(at, written)| descriptor("callers", at, written));
    let callers = callers.collect::<Result<_, _>>()?;
    Ok((override_of(&mut fields, files)?, callers))
}

fn target(fields: &mut Fields) -> Result<Target, Problem> {
    let mut name = |name: &str| -> Result<String, Problem> {
        let text = fields.string(name)?;
        text.ok_or_else(|| invalid(format!("missing field `{name}`: name the policy whose limit is meant: {REMOVE}.")))
    };
    let (domain, policy) = (name("domain")?, name("policy")?);
    let entries = match fields.take("match") {
        Some(Json::Object(entries)) if entries.is_empty() => Vec::new(),
        Some(entries @ Json::Object(_)) => descriptor("match", 0, entries)?.entries().to_vec(),
        _ => {
            return Err(invalid(format!(
                "`match` must be an object of entries: {REMOVE}, or {{}} for every caller of the policy."
            )));
        }
    };
    let target = Target::new(domain, policy, entries);
    target.validate().map_err(|error| problem(error.into()))?;
    Ok(target)
}

fn override_of(fields: &mut Fields, files: &PolicySet) -> Result<Override, Problem> {
    let target = target(fields)?;
    let Some(text) = fields.string("limit")? else {
        return Err(invalid("missing field `limit`: write for example \"limit\":\"1000/min\", or \"unlimited\"."));
    };
    let bare = Override::new(target, None);
    // Before the limit, which takes its algorithm from the policy.
    OverrideSet::check(&bare, files).map_err(|error| problem(error.into()))?;
    let policies = files.domain(&bare.target.domain).map(|domain| domain.policies()).unwrap_or_default();
    let own = policies.iter().find(|policy| policy.name() == bare.target.policy).and_then(|policy| policy.limit());
    let limit = match text.trim() {
        UNLIMITED => None,
        text => Some(Limit::parse_with(text, own.map(Limit::algorithm)).map_err(invalid)?),
    };
    let new = bare.with_limit(limit);
    OverrideSet::check(&new, files).map_err(|error| problem(error.into()))?;
    Ok(new)
}
