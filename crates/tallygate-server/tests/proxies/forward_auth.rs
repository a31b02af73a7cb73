//! What holds behind every proxy that asks over HTTP.

use serde_json::Value;
use tallygate_testkit::Proxy;

use super::caller::{Answer, Caller};
use super::rig::{Filler, Rig, changed, example};

/// Three calls for each address, one of them to log in, and four for each key, none of which come back within a test.
pub fn start(proxy: impl FnOnce(&Filler, u16) -> Proxy) -> Rig {
    let limits = [("100/min burst 20", "3/day"), ("1000/min", "4/day"), ("5/min", "1/day")];
    Rig::start(&[("proxies.yaml", changed(example("proxies.yaml"), &limits))], proxy)
}

fn statuses<const N: usize>(ask: impl Fn() -> Answer) -> [u16; N] {
    std::array::from_fn(|_| ask().status)
}

/// Each address has its limit, and the one over it never reaches the service. Returns the refusal.
pub fn each_address_has_its_limit(rig: &Rig) -> Answer {
    let [one, other] = [2, 3].map(Caller::new);
    assert_eq!(statuses(|| one.get(rig.addr(), "/a?b=c")), [200, 200, 200]);
    assert_eq!(rig.served(), ["/a?b=c", "/a?b=c", "/a?b=c"]);
    let refused = one.get(rig.addr(), "/a?b=c");
    assert_eq!(refused.status, 429, "{refused:?}");
    assert_eq!(rig.served(), [""; 0]);
    let passed = other.get(rig.addr(), "/a");
    assert_eq!((passed.status, passed.body.as_str()), (200, "from behind"));
    assert_eq!(passed.header("content-type"), Some("text/x-service"));
    refused
}

/// Three a day, so the next comes after eight hours.
pub fn tells_when_to_come_again(refused: &Answer) {
    let wait: u64 = refused.header("retry-after").expect("it is there").parse().unwrap();
    assert!((28_700..=28_800).contains(&wait), "{wait}");
    assert_eq!(refused.header("ratelimit"), Some(format!("\"per-address\";r=0;t={wait}").as_str()));
    let policy = refused.header("ratelimit-policy").expect("it is there");
    assert_eq!(policy, "\"per-address\";q=3;w=86400");
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert_eq!(refused.header("cache-control"), Some("no-store"));
    let problem = refused.json();
    assert_eq!(problem["status"], 429);
    assert!(problem["type"].as_str().unwrap().ends_with("#quota-exceeded"), "{problem}");
}

/// Tallygate's own body, which names the policy.
pub fn has_tallygates_body(refused: &Answer) {
    assert_eq!(refused.json()["violated-policies"], Value::from(vec!["per-address"]));
}

/// The headers of a request that passes.
pub fn tells_what_is_left(rig: &Rig) {
    let passed = Caller::new(2).get_with(rig.addr(), "/", &[("ratelimit", "\"mine\";r=9")]);
    assert_eq!(passed.header("ratelimit"), Some("\"per-address\";r=2;t=28800"), "{passed:?}");
    assert_eq!(passed.header("ratelimit-policy"), Some("\"per-address\";q=3;w=86400"));
    assert_eq!(passed.header("retry-after"), None);
}

/// Callers cannot choose whom they are counted as.
pub fn callers_cannot_pose_as_others(rig: &Rig) {
    const NAMES: [&str; 8] = [
        "x-forwarded-for",
        "X-FORWARDED-FOR",
        "x-real-ip",
        "forwarded",
        "client-ip",
        "true-client-ip",
        "x-client-ip",
        "x-envoy-external-address",
    ];
    let posed = |caller: Caller, at: usize| {
        let headers: Vec<_> = NAMES.iter().map(|name| (*name, format!("203.0.113.{at}, 198.51.100.{at}"))).collect();
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        caller.get_with(rig.addr(), "/", &headers).status
    };
    // The first comes from where Tallygate trusts: even then only the proxy's word counts.
    for caller in [1, 4].map(Caller::new) {
        let statuses: Vec<_> = (0..5).map(|at| posed(caller, at)).collect();
        assert_eq!(statuses, [200, 200, 200, 429, 429], "{caller:?}");
    }
    // Nor can they use up what belongs to somebody else.
    let victim = Caller::new(5);
    for at in 0..4 {
        Caller::new(6).get_with(rig.addr(), "/", &[("x-forwarded-for", "127.0.0.5"), ("x-number", &at.to_string())]);
    }
    assert_eq!(victim.get(rig.addr(), "/").status, 200);
}

/// One at 127.0.0.9 that the proxy trusts: it names its clients, who still cannot pose as others.
pub fn a_proxy_in_front_is_believed(rig: &Rig) {
    let from = |last: u8, chain: &str| {
        let headers = [("x-forwarded-for", chain), ("x-forwarded-proto", "http")];
        Caller::new(last).get_with(rig.addr(), "/", &headers).status
    };
    assert_eq!([from(9, "203.0.113.1"), from(9, "6.6.6.6, 203.0.113.1"), from(9, "203.0.113.1")], [200; 3]);
    assert_eq!([from(9, "203.0.113.1"), from(9, "7.7.7.7, 203.0.113.1"), from(9, "203.0.113.2")], [429, 429, 200]);
    // Who is not that proxy is not believed.
    assert_eq!([1, 2, 3, 4].map(|at| from(10, &format!("203.0.113.{at}0"))), [200, 200, 200, 429]);
}

/// Method and path are those of the request itself.
pub fn callers_cannot_hide_what_they_do(rig: &Rig) {
    let login = |headers: &[(&str, &str)]| Caller::new(7).send(rig.addr(), "POST", "/login?next=/", headers);
    assert_eq!(login(&[]).status, 200);
    let hidden = [
        ("x-forwarded-uri", "/"),
        ("x-original-uri", "/"),
        ("x-original-url", "/"),
        ("x-forwarded-method", "GET"),
        ("x-original-method", "GET"),
        ("x-http-method-override", "GET"),
    ];
    for headers in [&[][..], &hidden[..]] {
        let refused = login(headers);
        assert_eq!(refused.status, 429, "{refused:?}");
        assert!(refused.header("ratelimit").unwrap().starts_with("\"logins\";r=0;"), "{refused:?}");
    }
    assert_eq!(Caller::new(7).get(rig.addr(), "/login").status, 200);
    // Nor pretend to log in for others, with what is theirs.
    let posed = [("x-forwarded-uri", "/login"), ("x-forwarded-method", "POST")];
    assert_eq!(statuses(|| Caller::new(8).get_with(rig.addr(), "/", &posed)), [200, 200]);
}

/// A key is counted wherever it comes from.
pub fn each_key_has_its_limit(rig: &Rig) {
    let with = |last: u8, key: &str| Caller::new(last).get_with(rig.addr(), "/", &[("x-api-key", key)]).status;
    assert_eq!([with(11, "k1"), with(12, "k1"), with(13, "k1"), with(14, "k1")], [200; 4]);
    assert_eq!([with(15, "k1"), with(15, "k2")], [429, 200]);
}

/// The service's own refusals are its own.
pub fn the_service_may_refuse(rig: &Rig) {
    let refused = Caller::new(21).get(rig.addr(), "/forbidden");
    assert_eq!((refused.status, refused.body.as_str()), (403, "by the service"));
}
