//! The examples that envoyproxy/ratelimit documents, decided here.

use tallygate::Algorithm;
use tallygate::policy::{Excess, Mode};

use crate::scene::Scene;

#[test]
fn two_values_of_one_key_have_limits_of_their_own() {
    let scene = Scene::new(
        "
domain: mongo_cps
descriptors:
  - {key: database, value: users, rate_limit: {unit: second, requests_per_unit: 500}}
  - {key: database, value: default, rate_limit: {unit: second, requests_per_unit: 500}}
",
    );
    assert_eq!(scene.passing("mongo_cps", &["database=users"]), Some(500));
    assert_eq!(scene.passing("mongo_cps", &["database=default"]), Some(500));
    assert_eq!(scene.passing("mongo_cps", &["database=other"]), None);
    assert_eq!(scene.passing("elsewhere", &["database=users"]), None);
    assert_eq!(scene.after(1).passing("mongo_cps", &["database=users"]), Some(500));
}

#[test]
fn nested_lists_limit_pairs_and_a_call_must_fit_all() {
    let scene = Scene::new(
        "
domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: {unit: day, requests_per_unit: 5}
  - key: to_number
    rate_limit: {unit: day, requests_per_unit: 100}
",
    );
    let (pair, single) = ("message_type=marketing,to_number=2061111111", "to_number=2061111111");
    assert_eq!(scene.passing("messaging", &[pair, single]), Some(5));
    assert_eq!(scene.passing("messaging", &["message_type=marketing,to_number=2062222222"]), Some(5));
    // What was refused above was not charged.
    assert_eq!(scene.passing("messaging", &[single]), Some(95));
    assert_eq!(scene.passing("messaging", &["message_type=marketing"]), None);
    assert_eq!(scene.after(86_400).passing("messaging", &[pair]), Some(5));
}

#[test]
fn key_and_value_come_before_key_alone() {
    let scene = Scene::new(
        "
domain: edge_proxy_per_ip
descriptors:
  - {key: remote_address, rate_limit: {unit: second, requests_per_unit: 10}}
  - {key: remote_address, value: 50.0.0.5, rate_limit: {unit: second, requests_per_unit: 0}}
",
    );
    assert_eq!(scene.passing("edge_proxy_per_ip", &["remote_address=50.0.0.1"]), Some(10));
    assert_eq!(scene.passing("edge_proxy_per_ip", &["remote_address=50.0.0.2"]), Some(10));
    assert_eq!(scene.passing("edge_proxy_per_ip", &["remote_address=50.0.0.5"]), Some(0));
    assert_eq!(scene.after(1).passing("edge_proxy_per_ip", &["remote_address=50.0.0.5"]), Some(0));
}

#[test]
fn a_rule_holds_only_where_the_descriptor_ends() {
    let flat = Scene::new(
        "
domain: example4
descriptors: [{key: key, value: value, rate_limit: {requests_per_unit: 300, unit: second}}]
",
    );
    assert_eq!(flat.passing("example4", &["key=value,subkey=subvalue"]), None);
    assert_eq!(flat.passing("example4", &["key=value"]), Some(300));
    let nested = Scene::new(
        "
domain: example4
descriptors:
  - key: key
    value: value
    descriptors: [{key: subkey, rate_limit: {requests_per_unit: 300, unit: second}}]
",
    );
    assert_eq!(nested.passing("example4", &["key=value,subkey=subvalue"]), Some(300));
    assert_eq!(nested.passing("example4", &["key=value"]), None);
}

#[test]
fn unlimited_is_told_apart_from_no_rule() {
    let scene = Scene::new(
        "
domain: internal
descriptors:
  - {key: ldap, rate_limit: {unlimited: true}}
  - {key: azure, rate_limit: {unit: minute, requests_per_unit: 100}}
",
    );
    assert_eq!(scene.passing("internal", &["ldap=a"]), None);
    assert_eq!(scene.policies_of("internal", &["ldap=a"]), ["ldap"]);
    assert_eq!(scene.policies_of("internal", &["other=a"]), [""; 0]);
    assert_eq!(scene.passing("internal", &["azure=a"]), Some(100));
}

#[test]
fn a_shadow_never_refuses() {
    let scene = Scene::new(
        "
domain: example6
descriptors:
  - key: service
    descriptors:
      - key: user
        value: user-a
        rate_limit: {requests_per_unit: 10, unit: second}
        shadow_mode: true
      - key: user
        value: user-b
        rate_limit: {requests_per_unit: 20, unit: second}
",
    );
    assert_eq!(scene.passing("example6", &["service=auth-service,user=user-a"]), None);
    assert_eq!(scene.passing("example6", &["service=auth-service,user=user-b"]), Some(20));
    let breached = scene.verdict("example6", &["service=auth-service,user=user-a"], 1);
    assert!(breached.allowed());
    assert!(!breached.rulings()[0].status().allowed());
}

#[test]
fn a_rule_that_is_replaced_is_not_charged() {
    let scene = Scene::new(
        "
domain: example7
descriptors:
  - key: key_1
    value: value_1
    descriptors:
      - key: user
        value: bkthomps
        rate_limit: {name: specific_limit, requests_per_unit: 5, unit: second}
  - key: key_2
    value: value_2
    descriptors:
      - key: user
        value: bkthomps
        rate_limit: {replaces: [{name: specific_limit}], requests_per_unit: 10, unit: second}
",
    );
    let (one, two) = ("key_1=value_1,user=bkthomps", "key_2=value_2,user=bkthomps");
    assert_eq!(scene.passing("example7", &[one, two]), Some(10));
    assert_eq!(scene.passing("example7", &[one]), Some(5));
    assert_eq!(scene.after(1).passing("example7", &[two]), Some(10));
}

#[test]
fn what_is_unlimited_replaces_and_is_never_replaced() {
    let scene = Scene::new(
        "
domain: d
descriptors:
  - {key: a, rate_limit: {name: base, requests_per_unit: 1, unit: hour}}
  - {key: b, rate_limit: {name: free, unlimited: true, replaces: [{name: base}]}}
  - {key: c, rate_limit: {requests_per_unit: 1, unit: hour, replaces: [{name: free}]}}
",
    );
    assert_eq!(scene.policies_of("d", &["a=1", "b=1"]), ["free"]);
    assert_eq!(scene.policies_of("d", &["c=1", "b=1"]), ["c", "free"]);
}

#[test]
fn metrics_by_value_are_ignored_and_reported_once() {
    let scene = Scene::new(
        "
domain: example8
descriptors:
  - key: key1
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: key1
    value: value1
    value_to_metric: true
    rate_limit: {unit: minute, requests_per_unit: 20}
",
    );
    assert_eq!(scene.passing("example8", &["key1=unspecified"]), Some(10));
    assert_eq!(scene.passing("example8", &["key1=unspecified2"]), Some(10));
    assert_eq!(scene.passing("example8", &["key1=value1"]), Some(20));
    assert_eq!(scene.warnings.len(), 1);
    assert!(
        scene.warnings[0].starts_with("file.yaml:5:22: warning: `detailed_metric` is ignored"),
        "{:?}",
        scene.warnings
    );
}

#[test]
fn a_star_stands_anywhere_in_a_value() {
    let scene = Scene::new(
        "
domain: example9
descriptors:
  - {key: key1, value: value*, rate_limit: {unit: minute, requests_per_unit: 20}}
  - {key: path, value: /api/*/action, rate_limit: {unit: minute, requests_per_unit: 20}}
  - {key: route, value: /api/*/resource/*/action, rate_limit: {unit: minute, requests_per_unit: 20}}
",
    );
    let passing = |descriptor| scene.passing("example9", &[descriptor]);
    assert_eq!(passing("key1=value1"), Some(20));
    assert_eq!(passing("key1=valueXYZ"), Some(20));
    assert_eq!(passing("key1=valu"), None);
    assert_eq!(passing("path=/api/123/action"), Some(20));
    assert_eq!(passing("path=/api/123/other"), None);
    assert_eq!(passing("route=/api/v1/resource/123/action"), Some(20));
    assert_eq!(passing("route=/api/v1/resource/action"), None);
}

#[test]
fn every_level_may_stand_without_a_value() {
    let scene = Scene::new(
        "
domain: example10
descriptors:
  - key: route
    value_to_metric: true
    descriptors:
      - key: http_method
        value_to_metric: true
        descriptors: [{key: subject_id, rate_limit: {unit: minute, requests_per_unit: 60}}]
",
    );
    assert_eq!(scene.passing("example10", &["route=api,http_method=GET,subject_id=123"]), Some(60));
    assert_eq!(scene.passing("example10", &["route=web,http_method=POST,subject_id=123"]), Some(60));
    assert_eq!(
        scene.policies_of("example10", &["route=a,http_method=b,subject_id=c"]),
        ["route.http_method.subject_id"]
    );
}

#[test]
fn values_of_a_shared_pattern_share_their_count() {
    let scene = Scene::new(
        "
domain: example11
descriptors:
  - {key: files, value: files/*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: files_no_share, value: files_no_share/*, rate_limit: {unit: hour, requests_per_unit: 10}}
  - key: path
    value: path/*
    share_threshold: true
    descriptors:
      - key: file
        value: file/*
        descriptors: [{key: type, rate_limit: {unit: minute, requests_per_unit: 12}}]
  - {key: file, value: test1, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: file, value: test*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 10}}
",
    );
    let passing = |descriptor| scene.passing("example11", &[descriptor]);
    assert_eq!(passing("files=files/a.pdf"), Some(10));
    assert_eq!(passing("files=files/b.csv"), Some(0));
    assert_eq!(passing("files_no_share=files_no_share/a"), Some(10));
    assert_eq!(passing("files_no_share=files_no_share/b"), Some(10));
    assert_eq!(passing("path=path/1,file=file/1,type=t"), Some(12));
    assert_eq!(passing("path=path/2,file=file/1,type=t"), Some(0));
    assert_eq!(passing("path=path/2,file=file/2,type=t"), Some(12));
    assert_eq!(passing("file=test1"), Some(5));
    assert_eq!(passing("file=test2"), Some(10));
    assert_eq!(passing("file=test3"), Some(0));
}

#[test]
fn quotas_refuse_only_if_all_are_used_up() {
    let scene = Scene::new(
        "
domain: d
descriptors:
  - {key: region, value: east, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: region, value: west, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}
",
    );
    assert_eq!(scene.passing("d", &["region=east", "region=west"]), Some(5));
    assert_eq!(scene.passing("d", &["region=east"]), Some(0));
}

#[test]
fn windows_are_aligned_and_as_long_as_the_reference_has_them() {
    for (unit, seconds) in [
        ("second", 1),
        ("MINUTE", 60),
        ("Hour", 3600),
        ("day", 86_400),
        ("week", 604_800),
        ("month", 2_592_000),
        ("year", 31_536_000),
    ] {
        let text = format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{unit: {unit}, requests_per_unit: 2}}}}]");
        let scene = Scene::new(&text);
        let limit = scene.policies.policies().next().unwrap().limit().unwrap().clone();
        assert_eq!((limit.algorithm(), limit.window().as_secs()), (Algorithm::FixedWindow, seconds), "{unit}");
    }
    let scene = Scene::new("domain: d\ndescriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 2}}]");
    assert_eq!(scene.after(59).passing("d", &["a=1"]), Some(2));
    assert_eq!(scene.after(1).passing("d", &["a=1"]), Some(2));
    assert_eq!(scene.after(59).passing("d", &["a=1"]), Some(0));
}

#[test]
fn a_policy_says_what_its_rule_says() {
    let scene = Scene::new(
        "
domain: d
descriptors:
  - key: a
    value: 1.50
    metadata: {tier: gold, weight: 3, nested: {on: true, list: [x, 0x1F, null]}}
    rate_limit: {unit: minute, requests_per_unit: 2}
    shadow_mode: yes
    descriptors: [{key: b, value: '*', rate_limit: {unit: minute, requests_per_unit: 3}}]
",
    );
    let policies: Vec<_> = scene.policies.policies().collect();
    let names: Vec<_> = policies.iter().map(|policy| policy.name()).collect();
    assert_eq!(names, ["a_1.50", "a_1.50.b_*"]);
    assert_eq!(policies[0].mode(), Mode::Shadow);
    assert_eq!(policies[0].excess(), Excess::Drain);
    let metadata = r#"{"tier":"gold","weight":3,"nested":{"on":true,"list":["x","0x1F",null]}}"#;
    assert_eq!(policies[0].metadata(), Some(metadata));
    // A cost that is too much takes what is left.
    assert!(!scene.verdict("d", &["a=1.50,b=x"], 5).allowed());
    assert_eq!(scene.passing("d", &["a=1.50,b=x"]), Some(0));
}

#[test]
fn names_that_would_be_written_alike_are_numbered() {
    let scene = Scene::new(
        "
domain: d
descriptors:
  - {key: requested, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: a.b, rate_limit: {unit: minute, requests_per_unit: 1}}
  - key: a
    descriptors: [{key: b, rate_limit: {unit: minute, requests_per_unit: 1}}]
",
    );
    let names: Vec<_> = scene.policies.policies().map(|policy| policy.name().to_owned()).collect();
    assert_eq!(names, ["requested#2", "a.b", "a.b#2"]);
}

/// Envoy shows it to callers, in `x-ratelimit-limit`.
#[test]
fn the_name_of_a_rate_limit_is_the_name_of_its_policy_unless_several_share_it() {
    let scene = Scene::new(
        "
domain: d
descriptors:
  - {key: key4, rate_limit: {name: key4_rate_limit, unit: minute, requests_per_unit: 1}}
  - key: a
    rate_limit: {name: shared, unit: minute, requests_per_unit: 1}
    descriptors: [{key: b, rate_limit: {name: shared, unit: minute, requests_per_unit: 1}}]
  - {key: c, rate_limit: {unit: minute, requests_per_unit: 1}}
",
    );
    let names: Vec<_> = scene.policies.policies().map(|policy| policy.name().to_owned()).collect();
    assert_eq!(names, ["key4_rate_limit", "a", "a.b", "c"]);
    // What callers are shown is what the file says.
    let reported: Vec<_> = scene.policies.policies().map(|policy| policy.reported_name()).collect();
    assert_eq!(reported, ["key4_rate_limit", "shared", "shared", ""]);
}

#[test]
fn a_policy_is_described_by_the_descriptors_that_lead_to_it() {
    let scene = Scene::new(
        "
domain: d
descriptors:
  - key: tenant
    descriptors:
      - {key: path, value: /v1/*, rate_limit: {unit: minute, requests_per_unit: 1}}
      - {key: path, value: /v2/*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 1}}
",
    );
    let described = scene.policies.domain("d").unwrap().matcher().describe();
    let described: Vec<_> = described.into_iter().map(|(_, one)| (one.conditions, one.partition)).collect();
    let conditions = |condition: &str| vec![condition.to_owned()];
    let by = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        described,
        [(conditions("path = /v1/*"), by(&["tenant", "path"])), (conditions("path = /v2/*"), by(&["tenant"]))]
    );
}
