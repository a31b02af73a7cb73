//! `validate` and `schema`: right files, wrong ones, and such that cannot be read.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Ran, binary, ran, run};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/policies");

/// Two policies that do the same: taken, and worth a look.
const DOUBTFUL: &str = "\
policies:
  - { name: a, partition: [user], limit: 5/min }
  - { name: b, partition: [user], limit: 5/min }
";

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("it is ours");
    }
    folder
}

fn validate(path: &Path, more: &[&str]) -> Ran {
    run([OsStr::new("validate"), path.as_os_str()].into_iter().chain(more.iter().map(OsStr::new)))
}

pub(super) fn validate_text(text: &[u8], more: &[&str]) -> Ran {
    let mut command = binary();
    command.args(["validate", "-"]).args(more);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    child.stdin.take().expect("a pipe").write_all(text).expect("it reads");
    ran(child.wait_with_output().expect("it ends"))
}

fn json_of(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {} {}", ran.stdout, ran.stderr))
}

#[test]
fn the_examples_are_valid_each_and_together() {
    let examples = Path::new(EXAMPLES);
    for (file, summary) in [
        ("tallygate.yaml", "5 policies in 2 domains\n"),
        ("envoy.yaml", "7 policies in 1 domain\n"),
        ("limitador.yaml", "2 policies in 1 domain\n"),
        ("", "14 policies in 4 domains\n"),
    ] {
        let valid = validate(&examples.join(file), &["--strict"]);
        assert_eq!((valid.code, valid.stdout.as_str(), valid.stderr.as_str()), (0, summary, ""), "{file}");
    }
    let valid = validate(&examples.join("tallygate.yaml"), &["--json"]);
    let expected = json!({ "valid": true, "policies": 5, "domains": ["default", "llm"], "findings": [] });
    assert_eq!((valid.code, json_of(&valid)), (0, expected));
}

#[test]
fn everything_that_is_wrong_is_reported_at_once_with_its_place() {
    let wrong = "\
policies:
  - name: a
    limt: 5/min
  - name: b
    partition: [user]
    limit: 5/fortnight
    mode: shadwo
";
    let folder = folder(&[("wrong.yaml", wrong), ("other.yaml", "domain: edge\ndescriptors: [{ kye: a }]")]);
    let file = folder.path().join("wrong.yaml");
    let refused = validate(&file, &[]);
    assert_eq!((refused.code, refused.stderr.as_str()), (1, ""));
    let lines: Vec<&str> = refused.stdout.lines().collect();
    let at = |place: &str| format!("{}:{place}", file.display());
    for (place, help) in [
        ("3:5: error: a policy has no field `limt`", "  help: did you mean `limit`?"),
        ("6:12: error: `5/fortnight` is not a limit", ""),
        ("7:11: error: unknown mode `shadwo`: did you mean `shadow`?", ""),
    ] {
        let line = lines.iter().position(|line| line.starts_with(&at(place)));
        let line = line.unwrap_or_else(|| panic!("{place}: {}", refused.stdout));
        assert!(lines[line + 1].starts_with(help), "{}", refused.stdout);
    }
    assert_eq!(lines.last(), Some(&"3 errors, 1 warning"));

    let whole = json_of(&validate(folder.path(), &["--json"]));
    assert_eq!((&whole["valid"], &whole["policies"], &whole["domains"]), (&json!(false), &Value::Null, &Value::Null));
    let findings = whole["findings"].as_array().unwrap();
    let mistyped = findings.iter().find(|finding| finding["message"].as_str().unwrap().contains("`kye`")).unwrap();
    assert_eq!(
        (&mistyped["severity"], &mistyped["line"], &mistyped["column"]),
        (&json!("error"), &json!(2), &json!(17))
    );
    let places: Vec<(&str, u64)> =
        findings.iter().map(|finding| (finding["file"].as_str().unwrap(), finding["line"].as_u64().unwrap())).collect();
    assert!(places.is_sorted() && places[0].0.ends_with("other.yaml"), "{places:?}");
}

#[test]
fn all_arguments_make_one_configuration() {
    let policy = "policies: [{ name: a, partition: [user], limit: 5/min }]";
    let folder = folder(&[
        ("one.yaml", policy),
        ("two.yml", policy),
        ("three.yaml", "domain: edge\ndescriptors: [{ key: a, rate_limit: { unlimited: true } }]"),
    ]);
    let path = |name: &str| folder.path().join(name);
    let together = |names: &[&str]| {
        let paths = names.iter().map(|name| path(name).into_os_string());
        run([OsStr::new("validate").to_owned()].into_iter().chain(paths))
    };
    assert_eq!(together(&["one.yaml", "three.yaml"]).stdout, "2 policies in 2 domains\n");
    let twice = together(&["one.yaml", "two.yml"]);
    assert_eq!(twice.code, 1);
    let second = path("two.yml").display().to_string();
    assert!(twice.stdout.starts_with(&second), "{}", twice.stdout);
    assert!(twice.stdout.contains(&path("one.yaml").display().to_string()), "{}", twice.stdout);
}

#[test]
fn standard_input_is_a_file_too() {
    let valid = validate_text(b"policies: [{ name: a, partition: [user], limit: 5/min }]", &[]);
    assert_eq!((valid.code, valid.stdout.as_str()), (0, "1 policy in 1 domain\n"));
    let empty = validate_text(b"", &[]);
    assert_eq!(empty.code, 1, "a half-saved file must not turn all limits off");
    assert!(empty.stdout.starts_with("(stdin):1:1: error: the file is empty\n"), "{}", empty.stdout);
    let twice = run(["validate", "-", "-"]);
    assert_eq!(twice.code, 2);
    assert!(twice.stderr.contains("name it once"), "{}", twice.stderr);
}

#[test]
fn warnings_fail_only_if_asked() {
    let lenient = validate_text(DOUBTFUL.as_bytes(), &[]);
    assert_eq!(lenient.code, 0);
    assert!(lenient.stdout.starts_with("(stdin):3:"), "{}", lenient.stdout);
    assert!(lenient.stdout.ends_with("2 policies in 1 domain, 1 warning\n"), "{}", lenient.stdout);
    let strict = validate_text(DOUBTFUL.as_bytes(), &["--strict"]);
    assert_eq!((strict.code, &strict.stdout), (1, &lenient.stdout));
    for (more, valid) in [(&["--json"][..], true), (&["--json", "--strict"], false)] {
        let reported = json_of(&validate_text(DOUBTFUL.as_bytes(), more));
        assert_eq!((&reported["valid"], &reported["policies"]), (&json!(valid), &json!(2)));
        assert_eq!(reported["findings"][0]["severity"], "warning");
    }
}

/// That is no answer about their content: another exit code, and nothing on standard output.
#[test]
fn files_that_cannot_be_read_are_an_error() {
    let folder = folder(&[("good.yaml", DOUBTFUL), ("notes.txt", "")]);
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("binary.yaml"), b"policies: \xff").unwrap();
    std::fs::write(path("huge.yaml"), vec![b'#'; (1 << 20) + 1]).unwrap();
    std::fs::create_dir(path("empty")).unwrap();
    let unusable = ["nosuch.yaml", "binary.yaml", "huge.yaml", "empty"];
    let paths: Vec<PathBuf> = ["good.yaml"].iter().chain(&unusable).map(|name| path(name)).collect();
    let refused =
        run([OsStr::new("validate"), OsStr::new("--json")].into_iter().chain(paths.iter().map(|p| p.as_os_str())));
    assert_eq!((refused.code, refused.stdout.as_str()), (2, ""), "{}", refused.stderr);
    assert!(refused.stderr.starts_with("error: "), "{}", refused.stderr);
    for name in unusable {
        assert!(refused.stderr.contains(&path(name).display().to_string()), "{name}: {}", refused.stderr);
    }
    assert_eq!(refused.stderr.lines().count(), 1 + unusable.len(), "{}", refused.stderr);
    assert_eq!(run(["validate"]).code, 2);
}

/// Neither by what files say, nor by how they are named.
#[test]
fn no_file_drives_the_terminal() {
    let evil = "x\x1b]0;owned\x07\r\n\u{9b}2J\u{202e}y";
    let quoted = serde_json::to_string(evil).unwrap();
    let texts = [
        evil.to_owned(),
        format!("policies: [{{ name: {quoted}, limit: 5/min }}]"),
        format!("policies: [{{ name: a, limit: {quoted} }}]"),
        format!("policies: [{{ name: a, limit: 5/min, {quoted}: 1 }}]"),
        format!("policies: [{{ name: a, limit: 5/min, match: {{ {quoted}: [] }} }}]"),
        format!("policies: [{{ name: a, limit: 5/min, mode: {quoted} }}]"),
        format!("domain: {quoted}\ndescriptors: [{{ key: {quoted}, rate_limit: {{ unit: {quoted} }} }}]"),
        format!("domain: {quoted}\ndescriptors: [{{ key: {quoted} }}, {{ key: {quoted} }}]"),
        format!("[{{ namespace: {quoted}, max_value: 1, seconds: 1, conditions: [{quoted}] }}]"),
        format!("{quoted}: 1"),
    ];
    let raw = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    let folder = TempDir::new().unwrap();
    let hostile = folder.path().join(format!("{}.yaml", evil.replace('/', "")));
    for text in &texts {
        std::fs::write(&hostile, text).unwrap();
        for more in [&[][..], &["--json"]] {
            for checked in [validate_text(text.as_bytes(), more), validate(&hostile, more)] {
                assert!(!checked.stdout.contains(raw) && !checked.stderr.contains(raw), "{text}: {}", checked.stdout);
                assert!(checked.code < 2, "{text}: {}", checked.stderr);
                assert!(checked.stdout.lines().all(|line| !line.starts_with("\\u{9b}")), "{}", checked.stdout);
            }
        }
    }
    let gone = validate(&folder.path().join(evil), &[]);
    assert_eq!((gone.code, gone.stderr.lines().count()), (2, 2), "{}", gone.stderr);
    assert!(!gone.stderr.contains(raw), "{:?}", gone.stderr);
}

#[test]
fn a_password_in_a_file_is_never_printed() {
    let one = "store: redis://user:hunter2@a:6379\npolicies: []";
    let two = "store: redis://user:hunter2@b:6379\npolicies: []";
    let folder = folder(&[("1.yaml", one), ("2.yaml", two), ("3.yaml", "store: user:hunter2@c\npolicies: []")]);
    for more in [&[][..], &["--json"]] {
        let refused = validate(folder.path(), more);
        assert_eq!(refused.code, 1);
        assert!(!refused.stdout.contains("hunter2") && !refused.stderr.contains("hunter2"), "{}", refused.stdout);
    }
}

#[test]
fn the_schema_is_the_one_that_files_are_held_against() {
    let printed = run(["schema"]);
    assert_eq!((printed.code, printed.stderr.as_str()), (0, ""));
    json_of(&printed);
    assert_eq!(printed.stdout, tallygate_config::schema());
    assert!(printed.stdout.lines().count() > 20, "people read it too");
    assert!(run(["schema", "--help"]).stdout.contains("# yaml-language-server: $schema="));
}

/// `validate` said yes, and `serve` refused.
#[test]
fn a_store_url_that_serve_refuses_is_refused() {
    let text = "store: reddis://user:hunter2@h\npolicies: [{ name: a, partition: [user], limit: 5/min }]";
    let refused = validate_text(text.as_bytes(), &[]);
    assert_eq!(refused.code, 1, "{}", refused.stdout);
    assert!(refused.stdout.starts_with("(stdin):1:8: error: `store`: "), "{}", refused.stdout);
    assert!(
        refused.stdout.contains("did you mean redis://") && !refused.stdout.contains("hunter2"),
        "{}",
        refused.stdout
    );
}

#[test]
fn a_global_cap_passes_the_strict_check() {
    let text = b"policies: [{ name: all, partition: [], limit: 1000/s }]";
    let valid = validate_text(text, &["--strict"]);
    assert_eq!((valid.code, valid.stdout.as_str()), (0, "1 policy in 1 domain\n"));
}

#[test]
fn files_of_a_folder_that_are_skipped_are_reported() {
    let good = "policies: [{ name: a, partition: [user], limit: 5/min }]";
    let folder = folder(&[("a.yaml", good), ("c", good)]);
    let valid = validate(folder.path(), &[]);
    assert_eq!(valid.code, 0);
    assert!(valid.stdout.contains("/c: warning: this file is skipped: only *.yaml"), "{}", valid.stdout);
    assert_eq!(validate(folder.path(), &["--strict"]).code, 1);
}
