//! Our own format, decided.

use tallygate::Algorithm;
use tallygate::policy::{CallerLimit, Excess, Mode, OnError};
use tallygate_config::Config;

use crate::scene::Scene;

#[test]
fn match_chooses_partition_tells_apart_and_overrides_change_the_limit() {
    let scene = Scene::new(
        "
policies:
  - name: per-user
    match: {path: [/v1/*, /], bot: null, version: 1.50, beta: true}
    partition: [user, 7]
    limit: 3/min
    overrides:
      - {match: {user: 42}, limit: 5/min}
      - {match: {user: root}, limit: unlimited}
",
    );
    let passing = |entries: &str| scene.passing("default", &[&format!("version=1.50,beta=true,7=x,{entries}")]);
    assert_eq!(passing("path=/v1/a,user=1"), Some(3));
    assert_eq!(passing("path=/,user=2"), Some(3));
    assert_eq!(passing("path=/v1/a,user=2"), Some(0));
    assert_eq!(passing("path=/v1/a,user=42"), Some(5));
    assert_eq!(passing("path=/v1/a,user=root"), None);
    assert_eq!(passing("path=/v2,user=3"), None);
    assert_eq!(passing("path=/v1/a,user=3,bot=yes"), None);
    assert_eq!(passing("path=/v1/a"), None);
    assert_eq!(scene.passing("default", &["version=1.5,beta=true,7=x,path=/,user=9"]), None);
    assert_eq!(scene.warnings, [""; 0]);
}

#[test]
fn a_policy_says_what_is_written() {
    let config = Config::from_texts(&[(
        "p.yaml",
        "
store: redis://:secret@localhost
policies:
  - name: a
    domain: api
    partition: user
    limit: 10/s
    algorithm: sliding_log
    mode: shadow
    on_error: deny
    excess: drain
    near: 95
    overrides:
      - {match: {user: x}, limit: 20/s}
      - {match: {user: y}, limit: 20/s fixed_window}
  - {name: b, domain: api, partition: user, limit: 10/s burst 50}
  - {name: c, partition: user, limit: unlimited}
",
    )])
    .unwrap();
    assert_eq!(config.store.as_deref(), Some("redis://:secret@localhost"));
    assert!(!format!("{config:?}").contains("secret"));
    let policies: Vec<_> = config.policies.policies().collect();
    let a = policies[0];
    assert_eq!((a.name(), a.domain(), a.near()), ("a", "api", 95));
    assert_eq!((a.mode(), a.on_error(), a.excess()), (Mode::Shadow, OnError::Deny, Excess::Drain));
    assert_eq!(a.limit().unwrap().to_string(), "10/s sliding_log");
    let b = policies[1];
    assert_eq!((b.mode(), b.on_error(), b.excess()), (Mode::Enforce, OnError::Local, Excess::Refuse));
    assert_eq!((b.near(), b.limit().unwrap().capacity()), (80, 50));
    let c = config.policies.domain("default").unwrap();
    assert_eq!(c.policies()[0].limit(), None);
    let algorithm_of = |user: &str| {
        let call = tallygate::policy::Descriptor::new().with("user", user);
        let found = config.policies.domain("api").unwrap().matcher().find(&[&call]).remove(0);
        if let CallerLimit::Override(limit) = found.limit { Some(limit.algorithm()) } else { None }
    };
    assert_eq!(algorithm_of("x"), Some(Algorithm::SlidingLog));
    assert_eq!(algorithm_of("y"), Some(Algorithm::FixedWindow));
    assert_eq!(algorithm_of("z"), None);
}

#[test]
fn several_files_add_to_one_domain() {
    let one = ("a.yaml", "policies: [{name: a, partition: user, limit: 1/s}]");
    let two = ("b.yaml", "store: memory\npolicies: [{name: b, partition: user, limit: 2/s}]");
    let config = Config::from_texts(&[one, two]).unwrap();
    let names: Vec<_> = config.policies.policies().map(|policy| policy.name().to_owned()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(config.store.as_deref(), Some("memory"));
}

#[test]
fn without_a_file_each_client_has_ten_calls_a_minute() {
    let scene = Scene::of(Config::built_in());
    assert_eq!(scene.passing("default", &["client=me"]), Some(10));
    assert_eq!(scene.passing("default", &["client=you"]), Some(10));
    assert_eq!(scene.warnings, [""; 0]);
}

#[test]
fn blocks_may_be_shared_by_anchors_and_errors_are_reported_where_they_are_used() {
    let scene = Scene::new(
        "
policies:
  - &base {name: a, partition: &by [user], limit: 3/min}
  - {name: b, match: {path: /b}, partition: *by, limit: 2/min}
  - {<<: *base, name: c, match: {path: /c}, limit: 1/min}
",
    );
    assert_eq!(scene.passing("default", &["user=1,path=/a"]), Some(3));
    assert_eq!(scene.passing("default", &["user=2,path=/b"]), Some(2));
    assert_eq!(scene.passing("default", &["user=3,path=/c"]), Some(1));
    let text = "policies:\n  - {name: a, partition: u, limit: &l 5/mn}\n  - {name: b, partition: u, limit: *l}\n";
    let refused = Config::from_texts(&[("f.yaml", text)]).unwrap_err();
    let places: Vec<_> = refused.errors().map(|error| (error.line, error.column)).collect();
    assert_eq!(places, [(2, 39), (3, 36)]);
}

/// `serve` prints it: it must fall under the policies of the file.
#[test]
fn the_example_falls_under_the_first_policy_that_can_deny_it() {
    for (text, expected) in [
        (
            "policies:\n  - {name: seen, partition: user, limit: 5/s, mode: shadow}\n  \
             - {name: a, domain: api, match: {plan: [free, trial], path: /v1/*, bot: null}, partition: [user], limit: 5/s}",
            ("api", "a", "plan=free,path=/v1/x,user=me"),
        ),
        (
            "domain: edge\ndescriptors: [{key: m, value: POST, descriptors: [{key: user, rate_limit: \
             {unit: day, requests_per_unit: 5}}]}]",
            ("edge", "m_POST.user", "m=POST,user=me"),
        ),
        (
            "- {namespace: shop, name: n, max_value: 1, seconds: 60, conditions: [\"descriptors[0].a == 'x'\", \
             \"descriptors[0].b != 'y'\"], variables: [\"descriptors[0].user\"]}",
            ("shop", "n", "a=x,b=not-y,user=me"),
        ),
    ] {
        let config = Config::from_texts(&[("f.yaml", text)]).unwrap_or_else(|findings| panic!("{findings}"));
        let example = config.example().unwrap_or_else(|| panic!("{text}"));
        let (domain, policy, descriptor) = expected;
        assert_eq!((example.domain.as_str(), example.policy.as_str()), (domain, policy));
        assert_eq!(example.descriptor, crate::scene::descriptor(descriptor));
    }
    assert_eq!(Config::from_texts(&[("f.yaml", "store: memory")]).unwrap().example(), None);
}

#[test]
fn a_share_and_a_deny_cache_are_read_as_they_are_written() {
    use std::time::Duration;

    let read = |field: &str| {
        let text = format!("policies: [{{name: p, partition: [u], limit: 9/h, {field}}}]");
        let config = Config::from_texts(&[("f.yaml", &text)]).map_err(|findings| findings.to_string())?;
        let policy = config.policies.policies().next().unwrap().clone();
        Ok::<_, String>((policy.share().map(|share| share.to_string()), policy.cache_denials()))
    };
    let millis = |millis| Some(Duration::from_millis(millis));
    assert_eq!(read("on_error: local"), Ok((None, None)));
    assert_eq!(read("on_error: local 25%"), Ok((Some("25%".to_owned()), None)));
    assert_eq!(read("cache_denials: true"), Ok((None, millis(1000))));
    assert_eq!(read("cache_denials: false"), Ok((None, millis(0))));
    assert_eq!(read("cache_denials: 250ms"), Ok((None, millis(250))));
    assert_eq!(read("cache_denials: 1min"), Ok((None, millis(60_000))));
    for (wrong, help) in [
        ("on_error: deny 25%", "`on_error: local 25%`"),
        ("on_error: local 0%", "from 1% to 100%"),
        ("on_error: local 0.5", "for example 25%"),
        ("share: 25%", "write `on_error: local 25%`"),
        ("cache_denials: 2min", "at most 60s"),
        ("cache_denials: soon", "`cache_denials: 500ms`"),
        ("cache_denials: 99999999999999999999s", "`cache_denials: 500ms`"),
    ] {
        let said = read(wrong).unwrap_err();
        assert!(said.contains(help), "{wrong}: {said}");
    }
}

#[test]
fn an_allotment_is_on_or_off() {
    let read = |field: &str| {
        let text = format!("policies: [{{name: p, partition: [u], limit: 9/h{field}}}]");
        let config = Config::from_texts(&[("f.yaml", &text)]).map_err(|findings| findings.to_string())?;
        Ok::<_, String>(config.policies.policies().next().unwrap().allotment())
    };
    for (field, on) in [("", false), (", allotment: true", true), (", allotment: on", true), (", allotment: no", false)]
    {
        assert_eq!(read(field), Ok(on), "{field}");
    }
    assert!(read(", allotment: 100").unwrap_err().contains("`allotment` must be `true` or `false`, not `100`"));
}

#[test]
fn what_holds_are_granted_is_read_as_it_is_written() {
    use std::time::Duration;
    use tallygate::hold::{HoldTerms, OnAbandon, Overrun};

    let read = |holds: &str| {
        let text = format!("policies:\n  - name: p\n    partition: [u]\n    limit: 9/h\n    holds: {holds}");
        let config = Config::from_texts(&[("f.yaml", &text)]).map_err(|findings| findings.to_string())?;
        Ok::<_, String>(config.policies.policies().next().unwrap().holds().copied())
    };
    let terms = HoldTerms::DEFAULT;
    assert_eq!(read(""), Ok(None));
    assert_eq!(read("{}"), Ok(Some(terms)));
    assert_eq!(read("{on_abandon: refund}"), Ok(Some(terms.with_on_abandon(OnAbandon::Refund))));
    assert_eq!(read("{overrun: refuse, max_open: 7}"), Ok(Some(terms.with_overrun(Overrun::Refuse).with_most_open(7))));
    assert_eq!(read("{max_held: 25%}"), Ok(Some(terms.with_most_held(25))));
    for (text, millis) in
        [("250ms", 250), ("1s", 1000), ("10 min", 600_000), ("24h", 86_400_000), ("1 day", 86_400_000)]
    {
        let ttl = Duration::from_millis(millis);
        assert_eq!(read(&format!("{{max_ttl: {text}}}")), Ok(Some(terms.with_longest(ttl))), "{text}");
    }
    assert_eq!(read("{estimate: p95 from 500}"), Ok(Some(terms.with_learned_estimate(500))));
    for (wrong, says) in [
        ("refund", "expected `holds` as a mapping"),
        ("{on_abandon: refnud}", "did you mean `refund`?"),
        ("{overrun: allow}", "use one of debt, cap, refuse"),
        ("{max_open: 0}", "f.yaml:5:23: error: `max_open` is from 1 to 10000 holds, not 0"),
        ("{max_open: 10001}", "from 1 to 10000"),
        ("{max_open: many}", "a whole number"),
        ("{max_held: 50}", "for example `max_held: 50%`"),
        ("{max_held: 0%}", "from 1% to 100%"),
        ("{max_held: 101%}", "from 1% to 100%"),
        ("{max_ttl: 25h}", "from 1 ms to a day, not `25h`"),
        ("{max_ttl: 0s}", "from 1 ms to a day"),
        ("{max_ttl: min}", "for example `max_ttl: 10min`"),
        ("{max_ttl: 60}", "for example `max_ttl: 10min`"),
        ("{max_ttl: 1s sliding_log}", "for example `max_ttl: 10min`"),
        ("{max_ttl: 1s burst 5}", "for example `max_ttl: 10min`"),
        ("{max_life: 31d}", "from 1 ms to 30 days, not `31d`"),
        ("{estimate: p95}", "for example `estimate: p95 from 500`"),
        ("{estimate: p99 from 5}", "for example `estimate: p95 from 500`"),
        ("{estimate: p95 from 0}", "for example `estimate: p95 from 500`"),
        ("{estimate: p95 from 1000000001}", "for example `estimate: p95 from 500`"),
        ("{max_hold: 5}", "did you mean `max_held`?"),
    ] {
        let said = read(wrong).unwrap_err();
        assert!(said.contains(says), "{wrong}: {said}");
    }
}

/// What is in flight comes back when its hold ends, and only then.
#[test]
fn a_concurrency_limit_is_read_and_what_it_cannot_have_is_refused() {
    use std::time::Duration;

    let read = |more: &str| {
        let text = format!("policies:\n  - name: jobs\n    partition: [user]\n    limit: 20 concurrent\n{more}");
        let config = Config::from_texts(&[("f.yaml", &text)]).map_err(|findings| findings.to_string())?;
        Ok::<_, String>(config.policies.policies().next().unwrap().clone())
    };
    let policy = read("    holds: {max_ttl: 10s, max_life: 8h}").unwrap();
    assert_eq!(policy.limit().unwrap().to_string(), "20 concurrent");
    assert_eq!(policy.on_error(), OnError::Allow, "it has no share");
    assert_eq!(policy.holds().unwrap().max_life(), Duration::from_secs(8 * 3600));
    for (more, says) in [
        ("on_error: local", "write `on_error: allow` or `on_error: deny`"),
        ("on_error: local 25%", "write `on_error: allow` or `on_error: deny`"),
        ("cache_denials: true", "`cache_denials` cannot be used with a concurrency limit"),
        ("allotment: true", "`allotment` cannot be used with a concurrency limit"),
        ("excess: drain", "`excess` cannot be used with a concurrency limit"),
        ("holds: {on_abandon: charge}", "`on_abandon` cannot be used with a concurrency limit"),
        ("holds: {overrun: cap}", "`overrun` cannot be used with a concurrency limit"),
        ("holds: {estimate: p95 from 4}", "`estimate` cannot be used with a concurrency limit"),
        ("overrides: [{match: {plan: pro}, limit: 20/min}]", "write `20 concurrent`"),
        ("overrides: [{match: {plan: pro}, limit: 20/min fixed_window}]", "give these callers a policy of their own"),
    ] {
        let said = read(&format!("    {more}")).unwrap_err();
        assert!(said.contains(says), "{more}: {said}");
    }
    // It was accepted, and every check of these callers was denied.
    let text = "policies: [{name: a, partition: [b], limit: 9/min, overrides: [{match: {c: d}, limit: 5 concurrent}]}]";
    let said = Config::from_texts(&[("f.yaml", text)]).unwrap_err().to_string();
    assert!(said.contains("give these callers a policy of their own"), "{said}");
    assert!(read("    overrides: [{match: {plan: pro}, limit: unlimited}]").is_ok());
}

/// Such a file was accepted without a word, and 33 patterns in one header were an error that Envoy lets pass.
#[test]
fn more_policies_than_a_call_can_have_checks_are_warned_of() {
    let file = |policy: &dyn Fn(usize) -> String, count: usize| {
        let policies: String = (0..count).map(policy).collect();
        let config = Config::from_texts(&[("f.yaml", format!("policies:\n{policies}"))]).unwrap();
        config.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let pattern =
        |at: usize| format!("  - {{name: p{at}, match: {{ua: \"*tok{at}*\"}}, partition: [ip], limit: 3/min}}\n");
    assert_eq!(file(&pattern, 32), [""; 0]);
    let warned = file(&pattern, 40);
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(
        warned[0].contains("may fall under 40 policies; one that falls under more than 32 is denied"),
        "{warned:?}"
    );
    let shadow = |at: usize| pattern(at).replace("limit:", "mode: shadow, limit:");
    assert_eq!(file(&shadow, 40), [""; 0], "they refuse nothing");
    let apart = |at: usize| format!("  - {{name: p{at}, match: {{path: /s{at}/*}}, partition: [ip], limit: 3/min}}\n");
    assert_eq!(file(&apart, 40), [""; 0], "a path is in one of them only");
}

#[test]
fn payers_are_read_as_they_are_written() {
    let read = |rest: &str| {
        let text = format!("policies:\n  - name: p\n    partition: [u]\n    limit: 9/h\n    {rest}");
        let config = Config::from_texts(&[("f.yaml", &text)]).map_err(|error| error.to_string())?;
        let policy = config.policies.policies().next().unwrap().clone();
        let payers = policy.payers().iter().map(|payer| (payer.name().to_owned(), payer.limit().to_string()));
        Ok::<_, String>(payers.collect::<Vec<_>>())
    };
    assert_eq!(read("payers:"), Ok(vec![]));
    let two = "payers: [{name: credits, limit: 5/365d fixed_window}, {name: overage, limit: 3/month in UTC}]";
    let names = read(two).unwrap();
    assert_eq!(names.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["credits", "overage"]);
    let inherits = read("algorithm: sliding_log\n    payers: [{name: credits, limit: 5/h}]").unwrap();
    assert_eq!(inherits[0].1, "5/h sliding_log");
    for (wrong, said) in [
        ("payers: credits", "must be a list"),
        ("payers: [credits]", "expected a payer as a mapping"),
        ("payers: [{name: credits}]", "a payer needs `limit`"),
        ("payers: [{limit: 5/h}]", "a payer needs `name`"),
        ("payers: [{name: credits, limit: 5/h, partition: [team]}]", "all payers of a policy pay for one subject"),
        ("payers: [{name: credits, limit: 5/h, mode: shadow}]", "it is that of the policy"),
        ("payers: [{name: credits, limit: unlimited}]", "a payer cannot be unlimited"),
        ("payers: [{name: credits, limit: 0/h}]", "limits of at least 1"),
        ("payers: [{name: p, limit: 5/h}]", "a name of its own"),
        ("payers: [{name: a/b, limit: 5/h}]", "a name of its own"),
        ("payers: [{name: a, limit: 5/h}, {name: a, limit: 6/h}]", "a name of its own"),
        ("payers: [{name: a, limit: 1000000000/h}]", "together at most 1000000000"),
        ("allotment: true\n    payers: [{name: a, limit: 5/h}]", "no `allotment`"),
        ("holds: {}\n    payers: [{name: a, limit: 5/h}]", "nothing can be held of a policy with `payers`"),
        (
            "payers: [{name: a, limit: 5/h}]\n  - name: p/a\n    partition: [u]\n    limit: 8/h",
            "their counts would mix",
        ),
    ] {
        let refused = read(wrong).unwrap_err();
        assert!(refused.contains(said), "{wrong}: {refused}");
    }
}
