//! `GET /v1/holds`: the open holds of the store, page by page.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use serde::Serialize;
use tallygate::hold::HoldQuery;
use tallygate_http::{ListedHold, Problem, ProblemCode};

use crate::app::App;
use crate::edge::access::Credentials;
use crate::edge::json::{ok, sentence};
use crate::edge::{Refused, store_problem};
use crate::token::Scope;

/// In milliseconds: a number that JSON has exactly.
const LONGEST_AGE: u64 = (1 << 53) - 1;

/// A page of the list.
#[derive(Serialize)]
struct Page<'a> {
    holds: Vec<ListedHold<'a>>,
    /// Where the next page begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// A list names subjects, so it is for operators.
pub(in crate::edge) async fn list(
    State(app): State<Arc<App>>,
    from: Credentials,
    RawQuery(query): RawQuery,
) -> Result<Response, Refused> {
    let token = app.access.authorize(&from, Scope::Operate)?;
    tracing::debug!(token, "a list of open holds requested");
    let query = read(query.as_deref().unwrap_or_default())?;
    let page = app.store().open_holds(&query).await.map_err(|error| store_problem(&error))?;
    let cursor = page.next.map(|cursor| cursor.to_string());
    Ok(ok(&Page { holds: page.holds.iter().map(ListedHold::from).collect(), cursor }))
}

fn read(text: &str) -> Result<HoldQuery, Problem> {
    let mut query = HoldQuery::new();
    let mut seen: Vec<String> = Vec::new();
    for (name, value) in form_urlencoded::parse(text.as_bytes()) {
        if seen.iter().any(|seen| *seen == name) {
            return Err(invalid(&format!("the parameter `{}` is there twice", name.escape_debug())));
        }
        let number = || {
            let plain = value.bytes().all(|digit| digit.is_ascii_digit());
            value
                .parse::<u64>()
                .ok()
                .filter(|_| plain)
                .ok_or_else(|| invalid(&format!("`{name}` must be a whole number, not `{}`", value.escape_debug())))
        };
        query = match &*name {
            "policy" => query.of_policy(&value).map_err(|error| invalid(&error.to_string()))?,
            "subject" => query.of_subject(&*value).map_err(|error| invalid(&error.to_string()))?,
            "older_than_ms" => match number()? {
                age @ 0..=LONGEST_AGE => query.older_than(Duration::from_millis(age)),
                _ => {
                    return Err(invalid(&format!(
                        "`older_than_ms` must be at most {LONGEST_AGE}: no hold is older than its longest time"
                    )));
                }
            },
            "limit" => match usize::try_from(number()?) {
                Ok(most @ 1..=HoldQuery::MOST) => query.at_most(most),
                _ => {
                    return Err(invalid(&format!(
                        "`limit` must be from 1 to {}: follow `cursor` for more",
                        HoldQuery::MOST
                    )));
                }
            },
            "cursor" => query.after(Some(value.parse().map_err(|_| {
                invalid("`cursor` is not one of a list: pass on that of the last page, or leave it out to begin again")
            })?)),
            other => return Err(unknown(other)),
        };
        seen.push(name.into_owned());
    }
    Ok(query)
}

fn unknown(name: &str) -> Problem {
    const KNOWN: [&str; 5] = ["policy", "subject", "older_than_ms", "limit", "cursor"];
    let hint = crate::answer::one_of(name, &KNOWN, "");
    invalid(&format!("unknown parameter `{}`: {hint}", name.escape_debug()))
}

fn invalid(reason: &str) -> Problem {
    Problem::new(ProblemCode::InvalidParameter, sentence(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_asked_for_by_what_is_known_and_nothing_else() {
        let query = read("policy=llm%2Ftokens&subject=a%20b&older_than_ms=5000&limit=7&cursor=1-2-3").unwrap();
        assert_eq!((query.most(), query.cursor().map(|cursor| cursor.place())), (7, Some([1, 2, 3])));
        assert_eq!(query.key().map(|key| (key.policy(), key.subject())), Some(("llm/tokens", &b"a b"[..])));
        assert!(!query.wants_age(Duration::from_millis(4999)) && query.wants_age(Duration::from_secs(5)));
        assert_eq!(read("").unwrap(), HoldQuery::new());
        for (text, says) in [
            ("limit=0", "`limit` must be from 1 to 1000"),
            ("limit=1001", "`limit` must be from 1 to 1000"),
            ("limit=+1", "`limit` must be a whole number"),
            ("limit=", "`limit` must be a whole number"),
            ("older_than_ms=-1", "`older_than_ms` must be a whole number"),
            ("older_than_ms=9007199254740992", "`older_than_ms` must be at most 9007199254740991"),
            ("cursor=1-2", "`cursor` is not one of a list"),
            ("policy=", "The policy name is empty"),
            ("subject=", "The subject is empty"),
            ("policy=a&policy=b", "The parameter `policy` is there twice"),
            ("polcy=a", "did you mean `policy`?"),
        ] {
            let problem = read(text).unwrap_err();
            assert!(problem.detail().contains(says), "{text}: {}", problem.detail());
            assert_eq!(problem.code(), ProblemCode::InvalidParameter);
        }
    }
}
