//! The README and the guides: their console examples run as written, and what they say of the binary is true.

use std::fs;
use std::path::Path;
use std::process::Command;

use tallygate_testkit::Server;

const README: &str = include_str!("../../../README.md");

fn tallygate(args: &str, store: Option<&str>) -> (String, String) {
    // A shell splits the command, as the reader's will.
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{} {args}", env!("CARGO_BIN_EXE_tallygate"))]);
    shell.env_remove("TALLYGATE_STORE").env("NO_COLOR", "1").envs(store.map(|url| ("TALLYGATE_STORE", url)));
    let output = shell.output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The README and every guide.
fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guides = fs::read_dir(root.join("docs/guide")).unwrap().map(|entry| entry.unwrap().path());
    let paths = guides.chain([root.join("README.md")]);
    paths.map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap())).collect()
}

/// The durations in an answer depend on the moment; what is allowed and what is left does not.
fn without_times(line: &str) -> &str {
    line.split(", ").next().unwrap_or(line)
}

/// Those with an answer below them; the others start servers or need a system of their own.
#[test]
fn the_console_examples_answer_as_written() {
    let mut run = 0;
    for (path, text) in documents() {
        for block in text.split("```console\n").skip(1) {
            let block = block.split("```").next().unwrap();
            let mut server = None;
            for example in block.split("$ ").skip(1) {
                let (command, expected) = example.split_once('\n').unwrap();
                if command.starts_with("export TALLYGATE_STORE=") {
                    server = Some(Server::redis().start());
                }
                let Some(args) = command.strip_prefix("tallygate ") else { continue };
                if expected.trim().is_empty() {
                    continue;
                }
                let url = server.as_ref().map(Server::url);
                let (said, errors) = tallygate(args, url.as_deref());
                let said: Vec<&str> = said.lines().map(without_times).collect();
                let expected: Vec<&str> = expected.trim_end().lines().map(without_times).collect();
                assert_eq!(said, expected, "{path}: {command}\n{errors}");
                run += 1;
            }
        }
    }
    assert!(run >= 4, "only {run} examples were found");
}

#[test]
fn the_readme_is_short_and_its_picture_is_that_of_the_demo() {
    assert!(README.lines().count() <= 120, "{} lines", README.lines().count());
    let picture = README.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let (demo, errors) = tallygate("demo", None);
    assert!(picture.lines().count() >= 9, "{picture}");
    for line in picture.lines() {
        assert!(demo.lines().any(|drawn| drawn.trim_end() == line.trim_end()), "`{line}` is not in:\n{demo}{errors}");
    }
}

/// Exactly two commands take a newcomer from nothing.
#[test]
fn the_readme_starts_with_two_commands() {
    let commands = README.lines().filter_map(|line| line.strip_prefix("$ "));
    let commands: Vec<&str> = commands.map(|line| line.split('#').next().unwrap().trim()).collect();
    assert_eq!(commands, ["cargo run --release -- serve", "cargo xtask test"]);
}

/// One word per idea: the verbs of `docs/vocabulary.md` are those of the command line, of the JSON API and of the scripts.
#[test]
fn the_verbs_of_the_vocabulary_are_those_of_the_code() {
    let vocabulary = include_str!("../../../docs/vocabulary.md");
    let row = vocabulary.lines().find(|line| line.starts_with("| `Verb` |")).expect("the vocabulary has the verbs");
    let verbs: Vec<&str> = row.split('`').skip(3).step_by(2).collect();
    assert!(!verbs.is_empty(), "{row}");

    let (help, _) = tallygate("--help", None);
    let api: serde_json::Value = serde_json::from_str(include_str!("../../tallygate-server/openapi.json")).unwrap();
    let paths = api["paths"].as_object().unwrap();
    let script = include_str!("../../tallygate-redis/lua/call.lua");
    for verb in &verbs {
        assert!(help.lines().any(|line| line.split_whitespace().next() == Some(verb)), "no verb `{verb}`: {help}");
        assert!(paths.contains_key(&format!("/v1/{verb}")), "no path for `{verb}`: {:?}", paths.keys());
        assert!(script.contains(&format!("'{verb}'")), "call.lua does not know `{verb}`");
    }

    // Those about a hold have a script of their own.
    let row =
        vocabulary.lines().find(|line| line.starts_with("| `Resolve` |")).expect("the vocabulary has these verbs");
    let resolving: Vec<&str> = row.split('`').skip(3).step_by(2).collect();
    let resolve = include_str!("../../tallygate-redis/lua/resolve.lua");
    for verb in &resolving {
        assert!(help.lines().any(|line| line.split_whitespace().next() == Some(verb)), "no verb `{verb}`: {help}");
        assert!(resolve.contains(&format!("'{verb}'")), "resolve.lua does not know `{verb}`");
    }

    // And no others: every question to `/v1` that is a single word, and every verb that the script compares.
    let posted = paths.iter().filter(|(_, item)| item.get("post").is_some());
    let asked = posted.filter_map(|(path, _)| path.strip_prefix("/v1/"));
    let asked: Vec<&str> = asked.filter(|path| path.chars().all(char::is_alphabetic)).collect();
    assert!(asked.iter().all(|path| verbs.contains(path) || resolving.contains(path)), "{asked:?}");
    assert!(resolving.iter().all(|verb| asked.contains(verb)), "{asked:?}");
    let compared = script.split("verb == '").skip(1).map(|rest| rest.split('\'').next().unwrap());
    let compared: Vec<&str> = compared.collect();
    assert!(compared.iter().all(|verb| verbs.contains(verb)), "{compared:?}");
}
