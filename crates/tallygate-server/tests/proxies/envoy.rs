//! Envoy and its rate limit service.

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};
use tallygate_server::Settings;
use tallygate_testkit::wait::{PATIENCE, until};
use tallygate_testkit::{Proxy, Tool};

use super::caller::{Answer, Caller};
use super::rig::{Rig, changed, example};

/// Seven calls for each address, three for each user, none of which come back this year; one delete before the trial
/// would refuse; a thousand tokens and fifteen hundred bytes.
fn start(changes: &[(&str, &str)]) -> Option<Rig> {
    start_with(changes, |_| {})
}

fn start_with(changes: &[(&str, &str)], set: impl FnOnce(&mut Settings)) -> Option<Rig> {
    if !Tool::Envoy.available() {
        return None;
    }
    let edge = [
        ("unit: minute", "unit: year"),
        ("requests_per_unit: 100 ", "requests_per_unit: 7 "),
        ("requests_per_unit: 50 ", "requests_per_unit: 3 "),
        ("requests_per_unit: 10 ", "requests_per_unit: 1 "),
    ];
    let after = [("100000/h", "1000/365d"), ("1000000000/h", "1500/365d")];
    let policies = [
        ("edge.yaml", changed(example("envoy/policies/edge.yaml"), &edge)),
        ("after.yaml", changed(example("envoy/policies/after.yaml"), &after)),
    ];
    Some(Rig::start_with(&policies, set, |filler, port| {
        // A busy machine is not what is tested.
        let patient = changed(filler.example("envoy/envoy.yaml"), &[("timeout: 0.05s", "timeout: 10s")]);
        let config = changed(patient, changes);
        Proxy::envoy(&config, &[port])
    }))
}

fn statuses<const N: usize>(ask: impl Fn() -> Answer) -> [u16; N] {
    std::array::from_fn(|_| ask().status)
}

/// Refused by this policy, with all that a caller should know.
#[track_caller]
fn assert_refused(answer: &Answer, policy: &str) {
    assert_eq!(answer.status, 429, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    let wait: u64 = answer.header("retry-after").expect("it is there").parse().unwrap();
    assert!(wait > 0);
    assert_eq!(answer.header("ratelimit"), Some(format!("\"{policy}\";r=0;t={wait}").as_str()));
    assert!(answer.header("ratelimit-policy").unwrap().contains(&format!("\"{policy}\";q=")));
    let problem = answer.json();
    assert_eq!((&problem["code"], problem.get("status")), (&Value::from("quota_exceeded"), None));
    assert_eq!(problem["violated-policies"], Value::from(vec![policy]));
}

#[test]
fn envoy_refuses_an_address_over_its_limit_whatever_it_pretends() {
    let Some(rig) = start(&[]) else { return };
    let pretend = |last: u8, at: usize| {
        let posed = format!("203.0.113.{at}");
        let headers =
            [("x-forwarded-for", posed.as_str()), ("x-envoy-external-address", &posed), ("x-real-ip", &posed)];
        Caller::new(last).get_with(rig.addr(), "/a", &headers)
    };
    for at in 0..7 {
        let passed = pretend(2, at);
        assert_eq!((passed.status, passed.body.as_str()), (200, "from behind"));
        assert_eq!(passed.header("content-type"), Some("text/x-service"));
        assert_eq!(passed.header("retry-after"), None);
        let left = format!("\"masked_remote_address\";r={};t=", 6 - at);
        assert!(passed.header("ratelimit").unwrap().starts_with(&left), "{passed:?}");
    }
    assert_eq!(rig.served().len(), 7);
    assert_refused(&pretend(2, 7), "masked_remote_address");
    assert_eq!(rig.served(), [""; 0]);
    assert_eq!(Caller::new(3).get(rig.addr(), "/").status, 200);
}

#[test]
fn envoy_believes_a_proxy_in_front_that_it_counts() {
    let hop = ("use_remote_address: true", "use_remote_address: true\n                xff_num_trusted_hops: 1");
    let Some(rig) = start(&[hop]) else { return };
    let from = |chain: &str| Caller::new(9).get_with(rig.addr(), "/", &[("x-forwarded-for", chain)]).status;
    assert_eq!([(); 7].map(|()| from("6.6.6.6, 203.0.113.1")), [200; 7]);
    assert_eq!([from("7.7.7.7, 203.0.113.1"), from("203.0.113.1"), from("203.0.113.2")], [429, 429, 200]);
}

#[test]
fn envoy_refuses_a_user_over_the_limit_from_wherever() {
    let Some(rig) = start(&[]) else { return };
    let by = |last: u8, user: &str| Caller::new(last).get_with(rig.addr(), "/", &[("x-user", user)]);
    assert_eq!([by(2, "ann").status, by(3, "ann").status, by(4, "ann").status], [200; 3]);
    assert_refused(&by(5, "ann"), "user");
    assert_eq!(by(5, "bob").status, 200);
}

#[test]
fn envoy_charges_a_route_what_it_costs_however_it_is_written() {
    let Some(rig) = start(&[]) else { return };
    for (last, path) in (2..).zip(["/search", "//search", "/%73earch", "/x/../search", "/./search?q=1"]) {
        let passed = Caller::new(last).get(rig.addr(), path);
        assert_eq!(passed.status, 200);
        assert!(
            passed.header("ratelimit").unwrap().starts_with("\"masked_remote_address\";r=2;"),
            "{path}: {passed:?}"
        );
    }
    assert_refused(&Caller::new(2).get(rig.addr(), "/search"), "masked_remote_address");
}

#[test]
fn envoy_charges_afterwards_what_a_call_has_cost() {
    let Some(rig) = start(&[]) else { return };
    let ask = || Caller::new(2).get_with(rig.addr(), "/llm", &[("x-user", "ann")]);
    let left = |left: u64| {
        let what = format!("{left} tokens to be left");
        until(&what, PATIENCE, || (rig.tallygate.remaining("llm", &json!({"user": "ann"})) == [left]).then_some(()));
    };
    assert_eq!(ask().status, 200);
    left(400);
    assert_eq!(ask().status, 200);
    left(0);
    assert_refused(&ask(), "tokens-per-user");
    assert_eq!(rig.served(), ["/llm"; 2]);
    let nobody = Caller::new(2).get(rig.addr(), "/llm");
    assert!(nobody.header("ratelimit").unwrap().starts_with("\"masked_remote_address\";r=6;"), "{nobody:?}");

    let download = || Caller::new(2).get(rig.addr(), "/downloads/kilobyte");
    let left = |left: u64| {
        let (what, address) = (format!("{left} bytes to be left"), json!({"masked_remote_address": "127.0.0.2/32"}));
        until(&what, PATIENCE, || (rig.tallygate.remaining("downloads", &address) == [left]).then_some(()));
    };
    assert_eq!(download().body.len(), 1000);
    left(500);
    assert_eq!(download().body.len(), 1000);
    left(0);
    assert_refused(&download(), "bytes-per-address");
    assert_eq!(Caller::new(3).get(rig.addr(), "/downloads/kilobyte").status, 200);
}

#[test]
fn envoy_lets_pass_what_only_a_limit_on_trial_would_refuse() {
    let Some(rig) = start(&[]) else { return };
    let delete = || Caller::new(2).send(rig.addr(), "DELETE", "/", &[("x-user", "ann")]);
    assert_eq!(statuses(delete), [200; 3]);
    let trial = json!({"method": "DELETE", "user": "ann"});
    assert_eq!(rig.tallygate.remaining("edge", &trial), [0], "it was counted");
    assert_refused(&delete(), "user");
}

#[test]
fn envoy_tells_a_grpc_caller_that_resources_are_exhausted() {
    let Some(rig) = start(&[]) else { return };
    let call = || Caller::new(2).call(rig.addr(), "/shop.Shop/Buy");
    for _ in 0..7 {
        let passed = call();
        assert_eq!((passed.status, passed.header("content-type")), (200, Some("text/x-service")));
    }
    let refused = call();
    assert_eq!((refused.status, refused.header("grpc-status")), (200, Some("8")), "{refused:?}");
    assert_eq!(refused.header("content-type"), Some("application/grpc"));
    assert!(refused.header("retry-after").is_some() && refused.header("ratelimit").is_some());
    assert!(refused.header("grpc-message").unwrap().contains("masked_remote_address"), "{refused:?}");
    assert_eq!(rig.served().len(), 7);
}

#[test]
fn envoy_lets_pass_or_refuses_while_tallygate_is_away() {
    let denying = ("failure_mode_deny: false", "failure_mode_deny: true");
    for (changes, status) in [(&[][..], 200), (&[denying][..], 500)] {
        let Some(mut rig) = start(changes) else { return };
        let get = |rig: &Rig| Caller::new(2).get(rig.addr(), "/").status;
        assert_eq!(get(&rig), 200);
        rig.tallygate.stop();
        assert_eq!([get(&rig), get(&rig)], [status; 2]);
    }
}

/// Envoy took UNAVAILABLE and OUT_OF_RANGE for "pass".
#[test]
fn envoy_refuses_what_tallygate_sheds_or_cannot_read() {
    let get = |rig: &Rig, user: &str| Caller::new(2).get_with(rig.addr(), "/", &[("x-user", user)]).status;
    let Some(rig) = start_with(&[], |settings| settings.listen.max_in_flight = 0) else { return };
    assert_eq!([get(&rig, "ann"), get(&rig, "ann")], [429; 2], "more than may be in flight");
    assert_eq!(rig.served(), [""; 0]);
    let Some(rig) = start_with(&[], |settings| settings.listen.max_bodies = 0) else { return };
    let long = "x".repeat(20_000);
    assert_eq!([get(&rig, "ann"), get(&rig, &long)], [200, 429], "more than there is memory for");
}

/// Reserves 500 tokens of a thousand, and settles what the service says, or gives back everything. The example has these changes.
fn start_reserving(changes: &[(&str, &str)]) -> Option<Rig> {
    if !Tool::Envoy.available() {
        return None;
    }
    let policies = example("envoy/policies/reserve.yaml");
    let policies = changed(policies, &[("limit: 100000/h", "limit: 1000/365d"), ("limit: 1000/h", "limit: 100/365d")]);
    let text = changed(example("envoy/reserve.yaml"), &[("timeout: 0.05s", "timeout: 10s")]);
    let text = changed(text, changes);
    Some(Rig::start(&[("chat.yaml", policies)], |filler, port| Proxy::envoy(&filler.fill(text), &[port])))
}

/// Waits until so many tokens of a user are held, and so many are left.
#[track_caller]
fn settles(rig: &Rig, user: &str, held: u64, left: u64) {
    let what = format!("{held} to be held and {left} to be left");
    let seen = || {
        let status = &rig.tallygate.statuses("chat", &json!({"user": user}))[0];
        (status["held"].as_u64().unwrap(), status["remaining"].as_u64().unwrap())
    };
    until(&what, PATIENCE, || (seen() == (held, left)).then_some(()));
}

#[test]
fn envoy_reserves_with_the_request_and_settles_with_the_response() {
    let Some(rig) = start_reserving(&[]) else { return };
    let ask = || Caller::new(2).get_with(rig.addr(), "/llm", &[("x-user", "ann")]);
    let passed = ask();
    assert_eq!(passed.status, 200);
    let token = |text: &str| text.split(|c: char| !c.is_ascii_hexdigit()).any(|digits| digits.len() > 33);
    assert!(!token(&format!("{passed:?}")), "the caller learns nothing of its hold: {passed:?}");
    settles(&rig, "ann", 0, 400);
    assert_eq!(ask().status, 429, "it may need 500, and 400 are left");
    assert_eq!(rig.served(), ["/llm"]);
    settles(&rig, "ann", 0, 400);
    let calls = &rig.tallygate.statuses("chat", &json!({"caller": "ann"}))[0];
    assert_eq!((&calls["remaining"], &calls["held"]), (&99.into(), &0.into()), "a call is a call");
}

/// The second descriptor of the end settles what the first cannot.
#[test]
fn envoy_gives_back_what_no_response_has_used() {
    let Some(rig) = start_reserving(&[]) else { return };
    let ask = |path: &str| Caller::new(2).get_with(rig.addr(), path, &[("x-user", "ann")]).status;
    assert_eq!(ask("/llm/forbidden"), 403);
    settles(&rig, "ann", 0, 1000);
    assert_eq!(ask("/llm/nothing-said"), 200);
    settles(&rig, "ann", 0, 1000);
}

/// A service that never answers, and a caller that leaves: Envoy settles when the stream is reset, long before the deadline.
#[test]
fn envoy_settles_for_a_caller_that_left() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("port_value: {}", silent.local_addr().unwrap().port());
    let Some(rig) = start_reserving(&[("port_value: 3000", &port)]) else { return };
    let mut caller = TcpStream::connect(rig.addr()).unwrap();
    caller.write_all(b"GET /llm HTTP/1.1\r\nhost: shop.example\r\nx-user: ann\r\n\r\n").unwrap();
    settles(&rig, "ann", 500, 500);
    drop(caller);
    settles(&rig, "ann", 0, 1000);
}

/// The keys of entries are those of Envoy's configuration, and the value is of its metadata.
#[test]
fn envoy_lets_no_caller_aim_a_hold() {
    let Some(rig) = start_reserving(&[]) else { return };
    let question = json!({"domain": "chat", "descriptors": [{"user": "ann"}], "units": 300});
    let token = rig.tallygate.post("/v1/reserve", &question)["hold"].as_str().unwrap().to_owned();
    let headers =
        [("x-user", "eve"), ("tallygate.hold", token.as_str()), ("hold", &token), ("tallygate.reserve", "1d")];
    assert_eq!(Caller::new(3).get_with(rig.addr(), "/llm", &headers).status, 200);
    settles(&rig, "eve", 0, 400);
    settles(&rig, "ann", 300, 700);
}
