//! The examples that limitador documents, decided here.

use tallygate::Algorithm;
use tallygate_config::Config;

use crate::scene::Scene;

const EXAMPLE: &str = "
- namespace: test_namespace
  max_value: 10
  seconds: 60
  conditions:
    - \"descriptors[0]['req.method'] == 'GET'\"
    - \"descriptors[0]['req.path'] != '/json'\"
  variables: []
- namespace: test_namespace
  max_value: 5
  seconds: 60
  conditions:
    - \"descriptors[0]['req.method'] == 'POST'\"
  variables:
    - descriptors[0]['user_id']
";

#[test]
fn conditions_choose_and_variables_tell_apart() {
    let scene = Scene::new(EXAMPLE);
    let passing = |descriptor| scene.passing("test_namespace", &[descriptor]);
    assert_eq!(passing("req.method=GET,req.path=/a"), Some(10));
    assert_eq!(passing("req.method=GET,req.path=/b"), Some(0));
    assert_eq!(passing("req.method=GET,req.path=/json"), None);
    assert_eq!(passing("req.method=POST,user_id=1"), Some(5));
    assert_eq!(passing("req.method=POST,user_id=2,more=x"), Some(5));
    assert_eq!(passing("req.method=POST"), None);
    assert_eq!(scene.passing("elsewhere", &["req.method=GET,req.path=/a"]), None);
}

#[test]
fn what_is_not_there_makes_a_limit_not_hold() {
    for (fields, holds) in [
        ("conditions: [\"descriptors[0].KEY_A == 'VALUE_A'\"]\n  variables: []", true),
        ("conditions: [\"descriptors[0].KEY_B == 'VALUE_B'\"]\n  variables: []", false),
        ("conditions: [\"descriptors[0].KEY_B != 'VALUE_B'\"]\n  variables: []", false),
        (
            "conditions: [\"descriptors[0].KEY_A == 'VALUE_A'\", \"descriptors[0].OTHER_KEY == 'WRONG'\"]\n  variables: []",
            false,
        ),
        ("conditions: [\"descriptors[0].KEY_A == 'VALUE_A' && descriptors[0].OTHER_KEY != 'WRONG'\"]", true),
        ("conditions: []\n  variables: [\"descriptors[0].MY_VAR\"]", false),
        ("conditions: []\n  variables: [\"descriptors[0].KEY_A\"]", true),
        ("conditions: []\n  variables: [\"descriptors[1].KEY_A\"]", false),
        ("conditions: [\"descriptors[1].KEY_A == 'VALUE_A'\"]\n  variables: []", false),
        ("conditions: [\"KEY_A == VALUE_A\"]\n  variables: [KEY_A]", true),
        ("conditions: [\"KEY_A == 'VALUE_B'\"]\n  variables: [KEY_A]", false),
        ("conditions:\n  variables:", true),
    ] {
        let scene = Scene::new(&format!("- namespace: example.org\n  max_value: 1\n  seconds: 60\n  {fields}\n"));
        let expected = holds.then_some(1);
        assert_eq!(scene.passing("example.org", &["KEY_A=VALUE_A,OTHER_KEY=OTHER_VALUE"]), expected, "{fields}");
    }
}

#[test]
fn limits_may_speak_of_several_descriptors() {
    let scene = Scene::new(
        "
- {namespace: ns, max_value: 3, seconds: 60, conditions: [\"descriptors[1].b == 'x'\"], variables: [\"descriptors[0].a\"]}
",
    );
    assert_eq!(scene.passing("ns", &["a=1", "b=x"]), Some(3));
    assert_eq!(scene.passing("ns", &["a=2", "b=x"]), Some(3));
    assert_eq!(scene.passing("ns", &["a=3"]), None);
    assert_eq!(scene.verdict("ns", &["a=4", "b=x"], 1).rulings().len(), 1);
    assert_eq!(scene.verdict("ns", &["a=5", "b=x"], 1).rulings()[0].descriptor(), 1);
}

#[test]
fn a_window_starts_with_its_first_call() {
    let scene = Scene::new(EXAMPLE);
    let call = ["req.method=POST,user_id=1"];
    assert_eq!(scene.after(30).passing("test_namespace", &call), Some(5));
    assert_eq!(scene.after(59).passing("test_namespace", &call), Some(0));
    assert_eq!(scene.after(1).passing("test_namespace", &call), Some(5));
    let limit = scene.policies.policies().next().unwrap().limit().unwrap().clone();
    assert_eq!(limit.algorithm(), Algorithm::FixedWindowFromFirstCall);
}

#[test]
fn counts_are_kept_under_what_a_limit_is_about_and_not_how_much() {
    let names = |text: &str| {
        let config = Config::from_texts(&[("l.yaml", text)]).unwrap();
        config.policies.policies().map(|policy| policy.name().to_owned()).collect::<Vec<_>>()
    };
    let more = EXAMPLE.replace("max_value: 5", "max_value: 50");
    assert_eq!(names(EXAMPLE), names(&more));
    assert_eq!(names(EXAMPLE)[1], "60s by descriptors[0]['user_id'] if descriptors[0]['req.method'] == 'POST'");
    // Order has no meaning, and a name stands for itself if it is the only one.
    let swapped = "- {namespace: n, name: x, max_value: 1, seconds: 1, variables: [b, a]}";
    assert_eq!(names(swapped), ["x"]);
    let shared = format!("{swapped}\n- {{namespace: n, name: x, id: i, max_value: 1, seconds: 2}}");
    assert_eq!(names(&shared), ["x: 1s by a, b", "x: 2s"]);
}

#[test]
fn the_same_limit_twice_holds_once() {
    let one = "- {namespace: n, max_value: 3, seconds: 60, conditions: [a == 'x'], variables: []}\n";
    let scene = Scene::new(&format!("{one}{}", one.replace("max_value: 3", "max_value: 9")));
    assert_eq!(scene.passing("n", &["a=x"]), Some(3));
    let reported = "file.yaml:2:3: warning: this limit repeats the one at file.yaml:1:3, which applies";
    assert!(scene.warnings.iter().any(|warning| warning.starts_with(reported)), "{:?}", scene.warnings);
}

#[cfg(not(feature = "cel"))]
#[test]
fn what_takes_cel_is_refused_by_name() {
    let text = "- {namespace: n, max_value: 3, seconds: 60, conditions: ['descriptors.size() > 1'], variables: []}";
    let refused = Config::from_texts(&[("l.yaml", text)]).unwrap_err().to_string();
    let reported = "l.yaml:1:58: error: `descriptors.size() > 1` is not of the form `descriptors[0]['key'] == 'value'`: \
                    other CEL needs a build with the feature `cel`";
    assert_eq!(refused, reported);
}

#[cfg(feature = "cel")]
#[test]
fn conditions_and_variables_may_be_any_cel() {
    let scene = Scene::new(
        "
- namespace: n
  name: big
  max_value: 2
  seconds: 60
  conditions:
    - descriptors[0].path.startsWith('/v1/') || descriptors[0].path == '/'
    - limit.name == 'big' && limit.id == null
    - descriptors.exists(d, has(d.user))
  variables:
    - descriptors.size()
    - \"descriptors[0].path.matches('^/v1/[0-9]+$') ? 'one' : 'all'\"
",
    );
    let passing = |descriptors: &[&str]| scene.passing("n", descriptors);
    assert_eq!(passing(&["path=/v1/1,user=a"]), Some(2));
    assert_eq!(passing(&["path=/v1/2,user=b"]), Some(0));
    assert_eq!(passing(&["path=/v1/x,user=b"]), Some(2));
    assert_eq!(passing(&["path=/v1/x,user=b", "more=x"]), Some(2));
    assert_eq!(passing(&["path=/v2,user=a"]), None);
    assert_eq!(passing(&["path=/v1/1"]), None);
    assert_eq!(passing(&["user=1"]), None);
}

/// The message had the escaped newlines of the parser, with its copy of the source.
#[cfg(feature = "cel")]
#[test]
fn invalid_cel_is_reported_on_one_line_without_escaped_newlines() {
    let refused = |source: &str| {
        let text = format!("- {{namespace: n, max_value: 3, seconds: 60, conditions: [\"{source}\"], variables: []}}");
        Config::from_texts(&[("l.yaml", &text)]).unwrap_err().to_string()
    };
    let at = "l.yaml:1:58: error:";
    assert_eq!(
        refused("descriptors.size( >"),
        format!("{at} `descriptors.size( >` is not valid CEL: mismatched input '>', at column 19 of the expression")
    );
    assert_eq!(
        refused("a =="),
        format!("{at} `a ==` is not valid CEL: mismatched input '<EOF>', at column 5 of the expression")
    );
    // The expression has two lines.
    assert!(refused("1 +\\n+ @").ends_with(": mismatched input '+', at line 2, column 1 of the expression"));
}

#[cfg(feature = "cel")]
#[test]
fn the_longest_expression_runs_on_a_small_stack() {
    let chains = [
        format!("1{} == 1", "+1".repeat(240)),
        format!("descriptors[0]{} == 1", ".a".repeat(240)),
        format!("{}false", "false||".repeat(70)),
        format!("{}descriptors", "!".repeat(480)),
        format!("{}1", "a?b:".repeat(120)),
        format!("{}1", "-".repeat(480)),
        format!("[{}] == 1", "[],".repeat(150)),
    ];
    let text = |chain: &str| format!("- {{namespace: n, max_value: 3, seconds: 60, conditions: ['{chain}']}}");
    let run = std::thread::Builder::new().stack_size(1 << 20).spawn(move || {
        for chain in &chains {
            if let Ok(config) = Config::from_texts(&[("l.yaml", text(chain))]) {
                assert_eq!(Scene::of(config).passing("n", &["a=1"]), None, "{chain}");
            }
        }
        let refused = Config::from_texts(&[("l.yaml", text(&chains.concat()))]).unwrap_err().to_string();
        assert!(refused.ends_with("error: an expression has at most 500 bytes"), "{refused}");
    });
    run.unwrap().join().unwrap();
}

/// The two had one name, and reading them panicked: the server would have stopped watching its files.
#[test]
fn a_limit_may_be_named_as_another_is_described() {
    for limits in [
        "- {namespace: ns, name: 60s, max_value: 1, seconds: 30}\n- {namespace: ns, max_value: 2, seconds: 60}\n",
        "- {namespace: ns, max_value: 2, seconds: 60}\n- {namespace: ns, name: 60s, max_value: 1, seconds: 30}\n",
        "- {namespace: ns, name: \"x: 60s\", max_value: 1, seconds: 30}\n- {namespace: ns, name: x, max_value: 2, seconds: 60}\n\
         - {namespace: ns, name: x, max_value: 3, seconds: 90}\n",
    ] {
        let scene = Scene::new(limits);
        let rulings = scene.verdict("ns", &["a=1"], 1).rulings().len();
        assert_eq!(rulings, limits.lines().count(), "{limits}");
    }
}

/// Every limit of a namespace may apply to one call, and nothing warned of what happens beyond 32.
#[test]
fn more_limits_than_a_call_can_have_checks_are_warned_of() {
    let warned = |condition: &dyn Fn(usize) -> String, count: usize| {
        let limit = |at| {
            let condition = condition(at);
            format!(
                "- {{namespace: n, max_value: 9, seconds: 60, conditions: [\"{condition}\"], variables: [\"descriptors[0].u\"]}}\n"
            )
        };
        let config = Config::from_texts(&[("f.yaml", (0..count).map(limit).collect::<String>())]).unwrap();
        config.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let together = |at: usize| format!("descriptors[0].path != '/{at}'");
    assert_eq!(warned(&together, 32), [""; 0]);
    let said = warned(&together, 33);
    assert!(said.len() == 1 && said[0].contains("may fall under 33 policies"), "{said:?}");
    assert!(said[0].contains("another namespace"), "{said:?}");
    let apart = |at: usize| format!("descriptors[0].path == '/{at}'");
    assert_eq!(warned(&apart, 40), [""; 0], "a path is in one of them only");
}
