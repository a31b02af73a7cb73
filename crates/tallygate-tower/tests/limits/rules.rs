//! How much, for whom, for which requests.

use std::sync::Arc;

use http::Request;
use tallygate::policy::{Descriptor, Domain, Mode, OnError, Policy, PolicySet};
use tallygate::{Cost, Limit};
use tallygate_tower::{Caller, ClientAddress, RateLimit, Rule};

use super::rig::{from, send, statuses, verdict};

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

/// A limit had to be parsed before it was passed.
#[test]
fn whatever_takes_a_limit_takes_its_text_and_says_what_is_wrong_with_it() {
    let text = String::from("2/min");
    for layer in [RateLimit::per_client("2/min"), RateLimit::per_client(&text), RateLimit::per_client(limit("2/min"))] {
        assert!(format!("{:?}", layer.unwrap()).contains("per-client"));
    }
    let parsed = "two a minute".parse::<Limit>().unwrap_err();
    assert_eq!(RateLimit::per_client("two a minute").unwrap_err(), parsed);
    assert_eq!(Rule::new("r", "two a minute").unwrap_err(), parsed);
    assert_eq!(Rule::new("r", limit("2/min")).unwrap().anonymous("two a minute").unwrap_err(), parsed);
    let throttle = tallygate_tower::outbound::Throttle::new("bank", "two a minute", tokio::time::sleep);
    assert_eq!(throttle.unwrap_err(), parsed);
}

#[tokio::test]
async fn each_client_has_a_limit_of_its_own() {
    let layer = RateLimit::per_client("2/min").unwrap();
    let calls = ["192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2"].map(|peer| from(peer, "/")).into();
    assert_eq!(statuses(&layer, calls).await, [200, 200, 429, 200]);
}

#[tokio::test]
async fn several_rules_are_one_decision() {
    let layer = RateLimit::new()
        .rule(Rule::new("narrow", "1/min").unwrap())
        .rule(Rule::new("wide", "10/min").unwrap().by(Caller::everybody()));
    assert_eq!(statuses(&layer, vec![from("192.0.2.1", "/"), from("192.0.2.1", "/")]).await, [200, 429]);
    let verdict = verdict(&layer, from("192.0.2.2", "/")).await;
    let left: Vec<u64> = verdict.rulings().iter().map(|ruling| ruling.status().remaining()).collect();
    // The denied call charged the wide rule nothing.
    assert_eq!(left, [0, 8]);
}

#[tokio::test]
async fn plans_methods_costs_and_exceptions_are_closures() {
    #[derive(Clone)]
    struct Plan(u64);
    let layer = RateLimit::new()
        .rule(Rule::new("plan", "1/min").unwrap().limit_for(|parts| {
            let Plan(amount) = parts.extensions.get::<Plan>()?;
            format!("{amount}/min").parse().ok()
        }))
        .rule(Rule::new("writes", "1/min").unwrap().when(|parts| parts.method == http::Method::POST))
        .cost(|parts| if parts.uri.path() == "/dear" { Cost::new(3).unwrap() } else { Cost::ONE })
        .skip(|parts| parts.uri.path() == "/health");
    let with_plan = |path: &str, method: &str| {
        let mut request = from("192.0.2.1", path);
        *request.method_mut() = method.parse().unwrap();
        request.extensions_mut().insert(Plan(5));
        request
    };
    let calls = vec![
        with_plan("/dear", "GET"),
        with_plan("/dear", "GET"),
        with_plan("/", "POST"),
        with_plan("/", "POST"),
        with_plan("/health", "GET"),
        with_plan("/", "GET"),
    ];
    assert_eq!(statuses(&layer, calls).await, [200, 429, 200, 429, 200, 200]);
}

#[tokio::test]
async fn a_shadow_is_reported_and_refuses_nobody() {
    let layer = RateLimit::new().rule(Rule::new("trial", "1/min").unwrap().mode(Mode::Shadow)).share_verdict();
    send(&layer, from("192.0.2.1", "/")).await;
    let second = send(&layer, from("192.0.2.1", "/")).await;
    assert_eq!(second.status, 200);
    assert!(!second.verdict.unwrap().rulings()[0].status().allowed());
    assert!(second.headers.get("ratelimit").is_none());
}

#[tokio::test]
async fn policies_of_a_set_hold_as_they_do_in_the_server() {
    let rules = tallygate::policy::Rule::new().partition("user");
    let policy = Policy::new("per-user", "api", "1/min").unwrap().with_on_error(OnError::Deny);
    let set = PolicySet::new(vec![Domain::new("api", [(policy, rules)]).unwrap()]).unwrap();
    let layer = RateLimit::new().policies(set.into(), "api", |parts| {
        let user = parts.headers.get("x-user").and_then(|user| user.to_str().ok()).unwrap_or_default();
        Descriptor::new().with("user", user)
    });
    let user = |name: &str| Request::builder().header("x-user", name).body(()).unwrap();
    assert_eq!(statuses(&layer, vec![user("a"), user("a"), user("b")]).await, [200, 429, 200]);
}

#[tokio::test]
async fn two_rules_of_one_name_are_two_states() {
    let layer = RateLimit::new().rule(Rule::new("r", "5/min").unwrap()).rule(Rule::new("r", "2/min").unwrap());
    let left = verdict(&layer, from("192.0.2.1", "/")).await;
    let left: Vec<u64> = left.rulings().iter().map(|ruling| ruling.status().remaining()).collect();
    assert_eq!(left, [4, 1]);
}

/// A second `api` was renamed to the `api-2` that there was already, and the limit of one of them was gone.
#[tokio::test]
async fn a_rule_keeps_its_limit_whatever_others_are_called() {
    for names in [["api", "api", "api-2"], ["api-2", "api", "api"], ["api", "api-2", "api"]] {
        let rules = names.into_iter().zip(["9/min", "8/min", "1/min"]);
        let layer = rules.fold(RateLimit::new(), |layer, (name, text)| layer.rule(Rule::new(name, text).unwrap()));
        let calls = vec![from("192.0.2.1", "/"), from("192.0.2.1", "/")];
        assert_eq!(statuses(&layer, calls).await, [200, 429], "{names:?}");
    }
}

/// Policies name their domain: another one had none of them, and nothing was limited.
#[tokio::test]
async fn the_domain_of_rules_is_not_that_of_policies() {
    let policy = Policy::new("p", "api", "1/min").unwrap();
    let domain = Domain::new("api", [(policy, tallygate::policy::Rule::new())]).unwrap();
    let set = Arc::new(PolicySet::new(vec![domain]).unwrap());
    let layer = RateLimit::new().policies(set, "api", |_| Descriptor::new()).domain("web");
    assert_eq!(statuses(&layer, vec![from("192.0.2.1", "/"), from("192.0.2.1", "/")]).await, [200, 429]);
}

#[tokio::test]
async fn policies_can_count_addresses_as_rules_do() {
    let policy = Policy::new("p", "api", "1/min").unwrap();
    let rule = tallygate::policy::Rule::new().partition("remote_address");
    let set = Arc::new(PolicySet::new(vec![Domain::new("api", [(policy, rule)]).unwrap()]).unwrap());
    let layer = RateLimit::new().policies(set, "api", |parts| {
        let address = parts.extensions.get::<ClientAddress>().map_or("unknown", ClientAddress::as_str);
        Descriptor::new().with("remote_address", address)
    });
    let calls =
        ["192.0.2.1", "192.0.2.2", "[2001:db8::1]", "[2001:db8::2]", "192.0.2.1"].map(|peer| from(peer, "/")).into();
    assert_eq!(statuses(&layer, calls).await, [200, 200, 200, 429, 429]);
}
