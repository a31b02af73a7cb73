//! `/v1/forward-auth`: a proxy asks whether a request may pass.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, RawQuery, State};
use axum::response::Response;
use http::header::{HOST, HeaderName};
use http::{HeaderMap, Method, StatusCode};
use percent_encoding::percent_decode_str;
use tallygate::Cost;
use tallygate::call::Verb;
use tallygate::policy::{Descriptor, Outcome, Verdict};
use tallygate::words::UnknownWord;
use tallygate_http::{Prefixes, Problem, ProblemCode, client_address, digest, verdict_problem};

use super::bounds::{MAX_ENTRIES, MAX_KEY, bounded_entry};
use super::json::{Refused, problem_json, sentence};
use crate::answer::AnswerError;
use crate::app::{App, ReportedHeaders};
use crate::decision_event::Api;
use crate::question::Question;

/// Where proxies put the method, the target and the host of the request.
const METHOD: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-method"), HeaderName::from_static("x-original-method")];
const URI: [HeaderName; 3] = [
    HeaderName::from_static("x-forwarded-uri"),
    HeaderName::from_static("x-original-uri"),
    HeaderName::from_static("x-original-url"),
];
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The most headers that become entries unchanged, and the most that are hashed first. With the four entries of every
/// request, no more than a descriptor may have.
const MAX_HEADERS: usize = (MAX_ENTRIES - 4) / 2;

/// The query, which the proxy's configuration sets.
#[derive(Debug)]
struct Settings {
    /// `default` if absent.
    domain: Option<String>,
    deny_status: StatusCode,
    cost: Cost,
    /// Headers that become entries, and whether they are hashed first.
    headers: Vec<(HeaderName, bool)>,
}

/// 200 lets the request pass. The proxy sends anything else to its client.
pub(super) async fn answer(
    State(app): State<Arc<App>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    method: Method,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, Refused> {
    let read = Settings::read(query.as_deref().unwrap_or_default())
        .and_then(|settings| Ok((descriptor(&app, peer, &method, &headers, &settings)?, settings)));
    let (descriptor, settings) = read.inspect_err(|_| app.reject(Api::ForwardAuth))?;
    let domain = settings.domain.as_deref().unwrap_or("default").to_owned();
    let question = Question::by_policy(Verb::Check, domain, [descriptor], settings.cost, None);
    let answer = app.answer(Api::ForwardAuth, &question, None).await.map_err(|error| match error {
        AnswerError::UnknownDomain { hint, .. } if settings.domain.is_none() => {
            let detail = format!("The query names no domain, and there is no domain `default`: add `?domain=`; {hint}");
            Refused::from(Problem::new(ProblemCode::UnknownDomain, detail))
        }
        error => error.into(),
    })?;
    Ok(write(&answer.into_verdict(), settings.deny_status, app.headers))
}

fn write(verdict: &Verdict, deny_status: StatusCode, headers: ReportedHeaders) -> Response {
    let mut response = match verdict.outcome() {
        Outcome::Allowed => Response::default(),
        outcome => {
            let problem = verdict_problem(verdict);
            let status = if outcome == Outcome::Denied { deny_status } else { problem.status() };
            problem_json(status, &problem.with_status(Some(status)))
        }
    };
    headers.apply(verdict, response.headers_mut());
    response
}

impl Settings {
    fn read(query: &str) -> Result<Self, Problem> {
        const KNOWN: [&str; 5] = ["domain", "deny_status", "cost", "header", "secret"];
        let mut settings =
            Self { domain: None, deny_status: StatusCode::TOO_MANY_REQUESTS, cost: Cost::ONE, headers: Vec::new() };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "domain" => settings.domain = Some(value.into_owned()),
                "deny_status" => settings.deny_status = deny_status(&value)?,
                "cost" => {
                    settings.cost = value.parse().map_err(|error| invalid(format!("`cost`: {error}")))?;
                }
                "header" => settings.headers.push((header(&value)?, false)),
                "secret" => settings.headers.push((header(&value)?, true)),
                unknown => {
                    let unknown = UnknownWord::new("parameter", unknown, KNOWN.into_iter());
                    return Err(invalid(unknown.to_string()));
                }
            }
        }
        for (kind, secret) in [("header", false), ("secret", true)] {
            let count = settings.headers.iter().filter(|(_, other)| *other == secret).count();
            if count > MAX_HEADERS {
                // Dropping one silently would drop its limit.
                return Err(invalid(format!(
                    "`{kind}` is given {count} times: at most {MAX_HEADERS} headers become entries."
                )));
            }
        }
        Ok(settings)
    }
}

fn deny_status(text: &str) -> Result<StatusCode, Problem> {
    let refusal = text.parse::<u16>().ok().filter(|code| (400..600).contains(code));
    let status = refusal.and_then(|code| StatusCode::from_u16(code).ok());
    status.ok_or_else(|| invalid("`deny_status` must be a status from 400 to 599, for example 403."))
}

fn header(name: &str) -> Result<HeaderName, Problem> {
    if name.len() > MAX_KEY {
        return Err(invalid(format!("A header name has at most {MAX_KEY} bytes.")));
    }
    name.parse().map_err(|_| invalid(format!("invalid header name `{}`.", name.escape_debug())))
}

fn invalid(detail: impl AsRef<str>) -> Problem {
    Problem::new(ProblemCode::InvalidParameter, sentence(detail.as_ref()))
}

/// What the proxy forwards of the request: `remote_address`, `method`, `host`, `path`, then the headers of the query.
fn descriptor(
    app: &App,
    peer: SocketAddr,
    method: &Method,
    headers: &HeaderMap,
    settings: &Settings,
) -> Result<Descriptor, Problem> {
    let proxy = peer.ip();
    if !app.trust.proxies.trusts(proxy) {
        let detail =
            format!("{proxy} is not a trusted proxy: add it to --trusted-proxies (TALLYGATE_TRUSTED_PROXIES).");
        // Not 403, which nginx takes for a denial: a wrong configuration should be visible.
        return Err(Problem::new(ProblemCode::UntrustedProxy, detail));
    }
    let caller = Prefixes::default().mask(client_address(proxy, headers, &app.trust));
    // The first that is present, whatever its bytes: skipping it would trust one that the client wrote, or none.
    let first = |names: &[HeaderName]| {
        names.iter().find_map(|name| Some(String::from_utf8_lossy(headers.get(name)?.as_bytes())))
    };
    let uri = first(&URI).unwrap_or("/".into());
    let path = normal_path(uri.split(['?', '#']).next().unwrap_or("/"));
    let host = first(&[FORWARDED_HOST, HOST]).unwrap_or_default();
    let mut entries = vec![
        ("remote_address".to_owned(), caller),
        ("method".to_owned(), first(&METHOD).unwrap_or(method.as_str().into()).into_owned()),
        ("host".to_owned(), host.to_ascii_lowercase()),
        ("path".to_owned(), path),
    ];
    for (name, secret) in &settings.headers {
        if let Some(value) = headers.get(name) {
            let value =
                if *secret { digest(value.as_bytes()) } else { String::from_utf8_lossy(value.as_bytes()).into_owned() };
            entries.push((name.as_str().to_owned(), value));
        }
    }
    // The client chooses the path: a long one must not become an error that lets the request pass.
    Ok(entries.into_iter().map(|(key, value)| bounded_entry(key, value)).collect())
}

/// The normal form of a path: escapes decoded, `//` and dots resolved. Otherwise `/x/../login` would evade the limit of
/// `/login`.
fn normal_path(written: &str) -> String {
    let text = percent_decode_str(written).decode_utf8_lossy();
    let mut parts: Vec<&str> = Vec::new();
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let folder = !parts.is_empty() && text.ends_with(['/']);
    format!("/{}{}", parts.join("/"), if folder { "/" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_path_has_one_form_however_it_is_written() {
        for written in ["/login", "//login", "/./login", "/x/../login", "/%6Cogin", "/%6cogin", "/../../login", "login"]
        {
            assert_eq!(normal_path(written), "/login", "{written}");
        }
        assert_eq!(normal_path("/login/"), "/login/");
        for root in ["", "/", "//", "/..", "/x/.."] {
            assert_eq!(normal_path(root), "/", "{root}");
        }
        assert_eq!(normal_path("/%zz/%4"), "/%zz/%4");
    }

    proptest! {
        #[test]
        fn no_dots_and_no_empty_parts_are_left(written in "[/.a%2fF]{0,24}") {
            let path = normal_path(&written);
            prop_assert!(path.starts_with('/') && !path.contains("//"), "{path}");
            prop_assert!(!path.split('/').any(|part| part == "." || part == ".."), "{path}");
        }
    }
}
