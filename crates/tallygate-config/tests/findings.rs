//! Mistakes are reported with their place and a remedy, all at once.

use tallygate_config::{Config, Severity};

fn refused(text: &str) -> Vec<String> {
    refused_all(&[("f.yaml", text)])
}

fn refused_all(texts: &[(&str, &str)]) -> Vec<String> {
    let findings = Config::from_texts(texts).map(|config| format!("{config:?}")).unwrap_err();
    findings.errors().map(|finding| format!("{finding:#}").replace("\n  help: ", " -> ")).collect()
}

fn warned(text: &str) -> Vec<String> {
    let config = Config::from_texts(&[("f.yaml", text)]).unwrap_or_else(|findings| panic!("{findings}"));
    assert!(config.warnings.iter().all(|warning| warning.severity == Severity::Warning));
    config.warnings.iter().map(|warning| format!("{warning:#}").replace("\n  help: ", " -> ")).collect()
}

#[test]
fn what_a_calendar_lacks_is_told() {
    let with = |limit: &str| refused(&format!("policies:\n  - {{name: a, limit: {limit}}}\n"));
    for (limit, told) in [
        ("5/month", "name a time zone, for example `1000/month in UTC`"),
        ("5/month in Mars/Olympus", "unknown time zone `Mars/Olympus`: use a name of the IANA database"),
        ("5/month in UTC from day 32", "no month has a day 32: use 1 to 31"),
        ("5/year in UTC from february 30", "february has no day 30: use 1 to 29"),
        ("5/fortnight in UTC", "expected a unit"),
        ("5/month in UTC sliding_log", "sliding_log cannot count by a calendar"),
    ] {
        let errors = with(limit);
        assert!(errors.len() == 1 && errors[0].starts_with("f.yaml:2:22: error: `"), "{limit}: {errors:?}");
        assert!(errors[0].contains(&format!("`{limit}` is not a limit: ")) && errors[0].contains(told), "{errors:?}");
    }
    let two = refused("policies: [{name: a, limit: 5/month in UTC, algorithm: sliding_log}]");
    assert_eq!(two, ["f.yaml:1:12: error: `limit` says calendar_window, and `algorithm` says sliding_log: drop one"]);
}

#[test]
fn all_errors_of_our_own_format_are_told_at_once() {
    let text = "
stores: memory
policies:
  - name: a
    limt: 5/s
    limit: 5/mn
  - limit: 5/s burst 7 fixed_window
    mode: shadwo
    on_error: [deny]
    near: 101
    partition: [user, user]
  - just text
  - name: ''
    match: plan
    limit: 5000000000/s
  - name: requested
    match: {plan: [], path: {a: b}}
    limit: 5/s sliding_log
    algorithm: gcra
    overrides: [{match: {}, limit: 7/s}, {limit: 8/s, mach: {a: b}}, {limit: 8/s}]
  - {name: c, limit: 5/s sliding_log, algorithm: fixed_window, partition: x}
";
    let expected = [
        "f.yaml:2:1: error: the file has no field `stores` -> did you mean `store`?",
        "f.yaml:5:5: error: a policy has no field `limt` -> did you mean `limit`?",
        "f.yaml:6:12: error: `5/mn` is not a limit: expected a unit",
        "f.yaml:7:5: error: a policy needs `name`, for example `name: per-user`",
        "f.yaml:7:12: error: `5/s burst 7 fixed_window` is not a limit: `burst` cannot be used with fixed_window",
        "f.yaml:8:11: error: unknown mode `shadwo`: did you mean `shadow`?",
        "f.yaml:9:15: error: `on_error` must be a string, not a list",
        "f.yaml:10:11: error: `near` is a percentage from 1 to 100, not 101",
        "f.yaml:11:23: error: `user` is in `partition` twice",
        "f.yaml:12:5: error: expected a policy as a mapping, found a string",
        "f.yaml:13:11: error: a name cannot be empty",
        "f.yaml:14:12: error: `match` must be a mapping, not a string -> for example `match: {plan: free, path: /v1/*}`",
        "f.yaml:15:12: error: `5000000000/s` is not a limit: the amount 5000000000 is too large: the largest is 1000000000",
        "f.yaml:16:11: error: `requested` is reserved for limits that a request carries; choose another name",
        "f.yaml:17:19: error: `plan` matches nothing: the list is empty -> write `null` if the entry must be absent",
        "f.yaml:17:29: error: a value to match must be a string, not a mapping",
        "f.yaml:19:16: error: unknown algorithm `gcra` (it is the same limit as `token_bucket`)",
        "f.yaml:20:17: error: this override matches every caller -> change the limit of the policy, or name a `match`",
        "f.yaml:20:55: error: an override has no field `mach` -> did you mean `match`?",
        "f.yaml:20:70: error: an override needs `match`, for example `match: {plan: pro}`",
        "f.yaml:21:5: error: `limit` says sliding_log, and `algorithm` says fixed_window: drop one",
    ];
    let reported = refused(text);
    for (reported, expected) in reported.iter().zip(expected) {
        assert!(reported.starts_with(expected), "reported:     {reported}\nexpected: {expected}");
    }
    assert_eq!(reported.len(), expected.len(), "{reported:#?}");
    assert!(reported.iter().all(|line| !line.contains('\n')), "each is one line");
}

#[test]
fn errors_of_envoys_format() {
    for (text, expected) in [
        ("domain: ''\ndescriptors: []", "f.yaml:1:9: error: `domain` is empty"),
        ("descriptors: []", "f.yaml:1:1: error: the file needs `domain`"),
        ("domain: d\ndescriptors: [{key: ''}]", "f.yaml:2:21: error: `key` is empty"),
        ("domain: d\ndescriptors: [{value: x}]", "f.yaml:2:15: error: a descriptor needs `key`"),
        ("domain: d\ndescriptors: [a]", "f.yaml:2:15: error: expected a descriptor as a mapping, found a string"),
        (
            "domain: d\ndescriptors: {a: b}",
            "f.yaml:2:14: error: `descriptors` must be a list, not a mapping -> begin each",
        ),
        (
            "domain: d\ndescriptors: [{key: a, value: b}, {key: a_b}]",
            "f.yaml:2:35: error: `a_b` already exists, at f.yaml:2:15",
        ),
        (
            "domain: d\ndescriptors: [{key: a, ratelimit: {}}]",
            "f.yaml:2:24: error: a descriptor has no field `ratelimit` -> did you mean `rate_limit`?",
        ),
        (
            "domain: d\ndescriptors: [{key: a, nonsense: 1}]",
            "f.yaml:2:24: error: a descriptor has no field `nonsense` -> its fields are key, value, rate_limit, descriptors,",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: minut, requests_per_unit: 1}}]",
            "f.yaml:2:43: error: unknown unit `minut` -> did you mean `minute`?",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {requests_per_unit: 1}}]",
            "f.yaml:2:36: error: `rate_limit` needs `unit`",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: -1}}]",
            "f.yaml:2:67: error: `requests_per_unit` must be a whole number in plain digits, not `-1`",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 4294967295}}]",
            "f.yaml:2:67: error: the amount 4294967295 is too large: the largest is 1000000000 -> for no limit",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, unlimited: true}}]",
            "f.yaml:2:43: error: `unit` has no meaning with `unlimited`",
        ),
        (
            "domain: d\ndescriptors: [{key: a, share_threshold: true, rate_limit: {unlimited: true}}]",
            "f.yaml:2:41: error: `share_threshold` needs a `*` in the value",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true, name: x, replaces: [{name: x}]}}]",
            "f.yaml:2:81: error: `x` cannot replace itself",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true, replaces: [{}]}}]",
            "f.yaml:2:65: error: an entry of `replaces` needs the `name` of a rule",
        ),
        (
            "domain: d\ndescriptors: [{key: a, shadow_mode: perhaps}]",
            "f.yaml:2:37: error: `shadow_mode` must be `true` or `false`, not `perhaps`",
        ),
        ("domain: d\ndescriptors: [{key: a, metadata: 5}]", "f.yaml:2:34: error: `metadata` must be a mapping"),
        (
            "domain: d\ndescriptors: [{key: a, [x]: 5}]",
            "f.yaml:2:24: error: the name of a field of a descriptor must be a string",
        ),
    ] {
        let reported = refused(text);
        assert!(reported[0].starts_with(expected), "{text}\ntold:     {reported:?}\nexpected: {expected}");
        assert_eq!(reported.len(), 1, "{text}\n{reported:?}");
    }
}

#[test]
fn errors_of_limitadors_format() {
    for (text, expected) in [
        (
            "- {namespace: n, max_valu: 5, seconds: 60}",
            "f.yaml:1:18: error: a limit has no field `max_valu` -> did you mean `max_value`?",
        ),
        ("- {namespace: n, max_value: 5}", "f.yaml:1:3: error: a limit needs `seconds`"),
        ("- {namespace: '', max_value: 5, seconds: 1}", "f.yaml:1:15: error: `namespace` is empty"),
        (
            "- {namespace: n, max_value: 5, seconds: 0}",
            "f.yaml:1:41: error: `seconds` must be from 1 to 31536000 (a year), not 0",
        ),
        (
            "- {namespace: n, max_value: 5000000000, seconds: 1}",
            "f.yaml:1:29: error: the amount 5000000000 is too large: the largest is 1000000000 -> for no limit, drop",
        ),
        ("- {namespace: n, max_value: ten, seconds: 1}", "f.yaml:1:29: error: `max_value` must be a whole number"),
    ] {
        let reported = refused(text);
        assert!(reported[0].starts_with(expected), "{text}\ntold:     {reported:?}\nexpected: {expected}");
    }
}

#[test]
fn what_is_no_file_of_ours_is_told_so() {
    for (text, expected) in [
        ("", "f.yaml:1:1: error: the file is empty -> write `policies: []` if that is meant"),
        ("# only a comment\n", "f.yaml:"),
        ("just text", "f.yaml:1:1: error: expected the file as a mapping, found a string"),
        ("- name: a\n  limit: 5/s", "f.yaml:1:1: error: a list at the top level is limitador's format"),
        ("polices: []", "f.yaml:1:1: error: the file has no field `polices` -> did you mean `policies`?"),
        ("policies: [\n", "f.yaml:1:11: error: invalid YAML: unclosed bracket '[' -> close every bracket"),
        ("policies:\n  - name: a\n    name: b\n", "f.yaml:3:5: error: there are two `name` in one mapping -> drop one"),
        ("policies: []\n---\npolicies: []\n", "f.yaml:3:1: error: a second document starts here"),
        ("policies: *none\n", "f.yaml:1:11: error: invalid YAML: alias references unknown anchor"),
        ("store: localhost\n", "f.yaml:1:8: error: `store` is neither `memory` nor a URL"),
    ] {
        let reported = refused(text);
        assert!(reported[0].starts_with(expected), "{text}\ntold:     {reported:?}\nexpected: {expected}");
        assert_eq!(reported.len(), 1, "{text}\n{reported:?}");
    }
}

/// The help was that of another mistake.
#[test]
fn a_star_a_tab_and_a_mapping_in_the_wrong_place_are_answered_with_what_to_write() {
    let policy = |fields: &str| format!("policies:\n  - name: a\n    {fields}\n    limit: 5/s\n");
    for (text, expected) in [
        (policy("match: {path: *}"), "quote a value that begins with `*`, for example `\"*\"`"),
        (policy("match: {path: */x}"), "quote a value that begins with `*`, for example `\"*\"`"),
        (policy("match:\n      path: *"), "quote a value that begins with `*`, for example `\"*\"`"),
        (policy("match:\n\t  path: x"), "indent with spaces, not with tabs"),
        ("policies:\n\t- name: a\n\t  limit: 5/s\n".to_owned(), "indent with spaces, not with tabs"),
        ("policies:\n  - name: a\n\tlimit: 5/s\n".to_owned(), "indent with spaces, not with tabs"),
        ("policies:\n  - name: a\n  \tlimit: 5/s\n".to_owned(), "indent with spaces, not with tabs"),
        (
            "policies:\n  - name: a\n    match:\n    \tpath: x\n    limit: 5/s\n".to_owned(),
            "indent with spaces, not with tabs",
        ),
        (policy("partition: {user}"), "write `partition: [user]`"),
        (policy("partition: {user, path}"), "write `partition: [user, path]`"),
        (
            "policies: [{name: a, partition: user, limits: {free: 5/s}}]".to_owned(),
            "a policy has one `limit`: write `limit: 100/min`, and those of other callers under `overrides`",
        ),
        ("policies: [{name: a, partition: user, limits: 5/s}]".to_owned(), "did you mean `limit`?"),
    ] {
        let reported = refused(&text);
        assert!(reported.len() == 1 && reported[0].ends_with(&format!(" -> {expected}")), "{text}\n{reported:?}");
    }
}

/// It was also warned of as redundant: `a` counts what `a` counts.
#[test]
fn a_name_that_is_taken_is_one_finding() {
    let text = "policies: [{name: a, partition: user, limit: 1/s}, {name: a, partition: user, limit: 1/s}]";
    assert_eq!(
        refused(text),
        [
            "f.yaml:1:59: error: `a` is already the name of the policy at f.yaml:1:19 -> their counts would mix; rename one"
        ]
    );
}

#[test]
fn files_that_contradict_each_other_are_refused() {
    let own = "policies: [{name: a, partition: user, limit: 1/s}]";
    let envoy = "domain: default\ndescriptors: []";
    let limitador = "- {namespace: default, max_value: 1, seconds: 1}";
    assert_eq!(
        refused_all(&[("a.yaml", own), ("b.yaml", own)]),
        [
            "b.yaml:1:19: error: `a` is already the name of the policy at a.yaml:1:19 -> their counts would mix; rename one"
        ]
    );
    assert_eq!(
        refused_all(&[("a.yaml", envoy), ("b.yaml", envoy)]),
        [
            "b.yaml:1:9: error: domain `default` already exists, at a.yaml:1:9 -> merge the two files, or rename one domain"
        ]
    );
    for (one, format, place) in [(envoy, "envoyproxy/ratelimit", "1:9"), (limitador, "limitador", "1:3")] {
        let expected = format!(
            "b.yaml:1:12: error: domain `default` already exists in {format}'s format, at a.yaml:{place} \
             -> a domain has one format: rename one of them, or rewrite it"
        );
        assert_eq!(refused_all(&[("a.yaml", one), ("b.yaml", own)]), [expected]);
    }
    let reported = refused_all(&[("a.yaml", "store: redis://:one@h"), ("b.yaml", "store: redis://:two@h")]);
    assert_eq!(
        reported,
        ["b.yaml:1:8: error: `store` differs from the one at a.yaml:1:8 -> name the store in one file only"]
    );
}

#[test]
fn what_is_worth_a_look_is_told_and_taken() {
    assert_eq!(
        warned(
            "
policies:
  - {name: all, limit: 5/s}
  - {name: a, partition: user, limit: 5/s}
  - {name: b, partition: user, limit: 5/s}
  - name: c
    partition: user
    limit: 6/s
    overrides: [{match: {user: x}, limit: 6/s}, {match: {user: y}, limit: 7/s}, {match: {user: y}, limit: 8/s}]
"
        ),
        [
            "f.yaml:3:5: warning: neither `match` nor `partition`: all callers share one count \
             -> name the entries to count by, for example `partition: [user]`, or write `partition: []`",
            "f.yaml:5:12: warning: `b` counts what `a` counts, to the same limit: one of them is redundant",
            "f.yaml:9:17: warning: this override changes nothing: the limit is that of the policy",
            "f.yaml:9:81: warning: this override is never used: one above has the same `match`",
        ]
    );
    assert_eq!(warned("policies: []"), ["f.yaml:1:1: warning: there are no policies here: nothing is limited"]);
    assert_eq!(
        warned(
            "
domain: d
descriptors:
  - {key: a, shadow_mode: true, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1, shadow_mode: true}}
  - {key: b, rate_limit: {unit: day, replaces: [{name: nobody}]}}
"
        ),
        [
            "f.yaml:2:9: warning: a rule replaces `nobody`, but no rule of the domain has that name",
            "f.yaml:4:45: warning: both `shadow_mode` and `quota_mode`: the rule never refuses, and does not count as a quota",
            "f.yaml:4:97: warning: `shadow_mode` has no meaning in `rate_limit` and is ignored -> it is a field of a descriptor, beside `rate_limit`",
            "f.yaml:5:26: warning: there is no `requests_per_unit`: every call is denied, as with 0",
        ]
    );
}

#[test]
fn bombs_and_floods_are_refused() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for at in 1..9 {
        let aliases = vec![format!("*a{}", at - 1); 9].join(", ");
        bomb += &format!("a{at}: &a{at} [{aliases}]\n");
    }
    assert_eq!(refused(&bomb).len(), 1);
    assert_eq!(refused(&"[".repeat(5000)).len(), 1);
    assert_eq!(refused(&format!("policies: {}", "[".repeat(500) + &"]".repeat(500))).len(), 1);
    let large = format!("# {}\npolicies: []", "x".repeat(1 << 20));
    assert_eq!(refused(&large), ["f.yaml:1:1: error: the file is larger than 1 MiB -> split it"]);

    let list = |from: usize, to: usize| {
        let policies = (from..to).map(|at| format!("  - {{name: p{at}, partition: [u], limit: {}/s}}\n", at + 1));
        format!("policies:\n{}", policies.collect::<String>())
    };
    let reported = warned(&list(0, 10_000));
    assert!(reported.len() == 1 && reported[0].contains("may fall under 10000 policies"), "{reported:?}");
    let reported = refused_all(&[("a.yaml", &list(0, 9_000)), ("b.yaml", &list(9_000, 11_000))]);
    assert_eq!(reported.len(), 1);
    assert!(reported[0].starts_with("b.yaml:1002:5: error: there are more than 10000 policies"), "{reported:?}");
}

#[test]
fn findings_are_json_for_machines() {
    let findings = Config::from_texts(&[("f.yaml", "polices: []")]).unwrap_err();
    let json = serde_json::to_string(&findings).unwrap();
    let expected = r#"[{"severity":"error","file":"f.yaml","line":1,"column":1,"message":"the file has no field `polices`","help":"did you mean `policies`?"}]"#;
    assert_eq!(json, expected);
}

/// Each used to be refused as a field or a file that is not known, several times over.
#[test]
fn a_field_that_belongs_elsewhere_is_refused_with_what_to_write() {
    for (field, help) in [
        ("burst: 20", "the burst is part of the limit: write `limit: 100/min burst 20`"),
        ("window: 60", "amount and window are one field: write for example `limit: 100/min`"),
        ("shadow: true", "write `mode: shadow`"),
        ("by: [user]", "write `partition: [user]` to count"),
        ("mode: dry_run", "`shadow` counts and reports"),
        ("on_error: fail_open", "`allow` is what others call fail open"),
    ] {
        let reported = refused(&format!("policies: [{{name: a, limit: 100/min, {field}}}]"));
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert!(reported[0].contains(&format!(" -> {help}")), "{reported:?}");
    }
}

#[test]
fn a_file_of_something_else_is_recognized_and_refused_once() {
    for (text, message, help) in [
        (
            "apiVersion: v1\nkind: ConfigMap\ndata: {}",
            "a Kubernetes manifest (`kind: ConfigMap`)",
            "the value of a key",
        ),
        ("namespace: n\nmax_value: 5\nseconds: 60\nconditions: []", "a limit of limitador", "put `- ` before it"),
        ("name: a\nlimit: 5/s\npartition: user", "a policy that is not in a list", "put it under `policies:`"),
        ("services: {redis: {}}\nvolumes: {}", "a Compose file", "name the file"),
        ("static_resources: {}\nadmin: {}", "the configuration of Envoy itself", "begin with `domain:`"),
    ] {
        let reported = refused(text);
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert!(reported[0].contains(message) && reported[0].contains(help), "{reported:?}");
    }
}

#[test]
fn invalid_yaml_is_refused_with_what_to_look_at() {
    for (text, help) in [
        ("policies:\n  - name: a\n     limit: 5/s\n", "check the indentation of this line"),
        ("policies:\n  - name: a\n   limit: 5/s\n", "check the indentation of this line"),
        ("policies:\n\t- name: a\n", "indent with spaces, not with tabs"),
        ("policies: 'a\n", "close every bracket and quote"),
    ] {
        let reported = refused(text);
        assert!(reported[0].contains("error: invalid YAML: ") && reported[0].contains(help), "{reported:?}");
    }
}

#[test]
fn a_finding_that_only_follows_from_another_is_not_reported() {
    let all = |text: &str| {
        let findings = Config::from_texts(&[("f.yaml", text)]).map(|config| format!("{config:?}")).unwrap_err();
        findings.as_slice().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for text in [
        "policies: {name: a}",
        "policies: [{name: a, partitoin: [user], limit: 5/s}]",
        "policies: [{name: a, by: [user], limit: 5/s}]",
    ] {
        assert_eq!(all(text).len(), 1, "{:?}", all(text));
    }
    let bad = ["fifo", "lifo", "gcra", "leaky"]
        .map(|word| format!("  - {{name: {word}, partition: user, limit: 5/s, algorithm: {word}}}\n"));
    assert_eq!(all(&format!("policies:\n{}", bad.concat())).len(), 4);
}

#[test]
fn a_global_cap_can_be_written_without_a_warning() {
    assert_eq!(warned("policies: [{name: all, partition: [], limit: 1000/s}]"), [""; 0]);
    assert_eq!(warned("policies: [{name: all, partition: , limit: 1000/s}]").len(), 1, "nothing is not an empty list");
}

#[test]
fn a_finding_is_one_line_with_its_quotes_as_they_are() {
    let text = "policies: [{name: a, \"it's \\\"x\\\" \\\\ \\x1b\": 1, limit: 5/s, partition: user}]";
    let findings = Config::from_texts(&[("f.yaml", text)]).map(|config| format!("{config:?}")).unwrap_err();
    let reported = findings.to_string();
    assert!(reported.contains(r#"has no field `it's "x" \ \u{1b}`; its fields are"#), "{reported}");
    assert_eq!(reported.lines().count(), 1);
}

#[test]
fn a_file_of_envoy_without_a_limit_is_warned_of() {
    assert_eq!(
        warned("domain: d\ndescriptors: [{key: a}]"),
        ["f.yaml:1:1: warning: there are no limits here: nothing is limited"]
    );
}
