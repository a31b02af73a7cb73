//! The configuration reference, `docs/guide/configuration.md`, against the binary and the schema.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::Value;
use tallygate_config::Config;
use tallygate_testkit::markdown::{Row, Table, tables};

use super::validate::validate_text;
use super::{binary, ran, run};

static PAGE: LazyLock<String> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/configuration.md");
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
});

/// Variables that `serve` reads without an option, each with a value that it refuses.
const WITHOUT_OPTION: [(&str, &str); 2] = [("TALLYGATE_TOKEN", "short"), ("TALLYGATE_LOG", "nosuch")];

fn table(heading: &str, first_column: &str) -> Table {
    let found = tables(&PAGE).into_iter().find(|table| table.heading == heading && table.columns[0] == first_column);
    found.unwrap_or_else(|| panic!("no table of `{first_column}` under the heading `{heading}`"))
}

/// Variable and default of each option, by its names.
type Options = BTreeMap<String, (String, String)>;

/// The options that the help of `verb` prints.
fn printed(verb: &str) -> Options {
    let help = run([verb, "--help"]).stdout;
    let options = help.split("\nOptions:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let mut entries: Vec<String> = Vec::new();
    for line in options.lines().map(str::trim) {
        // Descriptions are wrapped.
        match entries.last_mut() {
            Some(entry) if !line.starts_with('-') => *entry += &format!(" {line}"),
            _ => entries.push(line.to_owned()),
        }
    }
    let read = |entry: &String| {
        let names: Vec<&str> = entry.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        let names: Vec<&str> = names.into_iter().take_while(|word| word.starts_with('-')).collect();
        let note = |name: &str| Some(entry.split_once(&format!("[{name}: "))?.1.split_once(']')?.0.replace('`', ""));
        let none = || "none".to_owned();
        let variable = note("env").map(|variable| variable.trim_end_matches('=').to_owned());
        (names.join(" "), (variable.unwrap_or_else(none), note("default").unwrap_or_else(none)))
    };
    entries.iter().map(read).collect()
}

#[test]
fn every_listed_name_of_a_unit_is_the_unit() {
    let rows = table("Limits", "unit").rows;
    assert_eq!(rows.len(), 6);
    for row in rows {
        let of = |name: &str| format!("5/{name}").parse::<tallygate::Limit>().unwrap_or_else(|error| panic!("{error}"));
        for name in row.code("names") {
            assert_eq!(of(name), of(&row.plain("unit")), "{name}");
        }
    }
}

#[test]
fn the_options_of_serve_are_listed_with_variable_and_default_and_no_others() {
    let mut printed = printed("serve");
    printed.retain(|names, _| names != "-h --help" && names != "-V --version");
    assert!(printed.len() > 20, "{printed:?}");
    let rows = table("Options of the server", "option").rows;
    let read = |row: &Row| (row.code("option").join(" "), (row.plain("variable"), row.plain("default")));
    let mut listed: Options = rows.iter().map(read).collect();
    assert_eq!(listed.len(), rows.len(), "an option is listed twice");
    // The page describes the default build.
    listed.retain(|names, _| cfg!(feature = "otlp") || !names.starts_with("--otlp"));
    assert_eq!(listed, printed, "left: the page, right: `tallygate serve --help`");
    assert!(rows.iter().all(|row| !row.text("value").is_empty() && !row.text("meaning").is_empty()));
}

#[test]
fn the_variables_without_an_option_are_listed_and_read() {
    let rows = table("Options of the server", "variable").rows;
    let listed: Vec<&str> = rows.iter().flat_map(|row| row.code("variable")).collect();
    assert_eq!(listed, WITHOUT_OPTION.map(|(name, _)| name));
    for (name, refused) in WITHOUT_OPTION {
        let mut command = binary();
        command.args(["serve", "--http", "127.0.0.1:0", "--grpc", "off", "--admin", "off"]).env(name, refused);
        let ran = ran(command.output().unwrap());
        assert!(ran.code == 2 && ran.stderr.contains(name), "{name}: {}", ran.stderr);
    }
}

/// In prose and examples, too.
#[test]
fn every_option_and_variable_that_the_page_names_exists() {
    let known: Options = ["serve", "validate"].map(printed).into_iter().flatten().collect();
    let options: BTreeSet<&str> = known.keys().flat_map(|names| names.split(' ')).collect();
    let mut variables: BTreeSet<&str> = known.values().map(|(variable, _)| variable.as_str()).collect();
    variables.extend(WITHOUT_OPTION.map(|(name, _)| name));
    let words = PAGE.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_')));
    let mut found = 0;
    for word in words {
        let option = word.starts_with("--") && word.ends_with(char::is_alphabetic);
        let variable = word.starts_with("TALLYGATE_") && word != "TALLYGATE_";
        assert!(!option || options.contains(word), "there is no option {word}");
        assert!(!variable || variables.contains(word), "there is no variable {word}");
        found += usize::from(option) + usize::from(variable);
    }
    assert!(found > 40, "only {found} names were found");
}

/// The headings of the tables of fields, and the place of these fields in the schema.
const FIELDS: [(&str, &str); 5] = [
    ("Fields of a file", ""),
    ("Fields of a policy", "/$defs/policy"),
    ("Fields of a payer", "/$defs/payer"),
    ("Fields of holds", "/$defs/holds"),
    ("Fields of an override", "/$defs/override"),
];

#[test]
fn the_fields_of_the_schema_are_listed_with_default_and_words_and_no_others() {
    let schema: Value = serde_json::from_str(&run(["schema"]).stdout).unwrap();
    for (heading, place) in FIELDS {
        let schema = schema.pointer(place).unwrap();
        let fields = schema["properties"].as_object().unwrap();
        let rows = table(heading, "field").rows;
        let listed: Vec<&str> = rows.iter().flat_map(|row| row.code("field")).collect();
        let unique: BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(listed.len(), unique.len(), "{heading}: a field is listed twice");
        assert_eq!(unique, fields.keys().map(String::as_str).collect(), "left: the page, right: the schema; {heading}");
        for (name, row) in listed.into_iter().zip(&rows) {
            let field = &fields[name];
            let required = schema["required"].as_array().is_some_and(|names| names.contains(&name.into()));
            let default = match &field["default"] {
                _ if required => Some("required".to_owned()),
                Value::Null => None,
                Value::String(word) => Some(word.clone()),
                other => Some(other.to_string()),
            };
            let written = row.plain("default");
            match default {
                Some(default) => assert_eq!(written, default, "{heading}: the default of `{name}`"),
                None => assert!(!written.is_empty() && written != "required", "{heading}: the default of `{name}`"),
            }
            if let Some(words) = field["enum"].as_array() {
                let words: Vec<&str> = words.iter().map(|word| word.as_str().unwrap()).collect();
                assert_eq!(row.code("type"), words, "{heading}: the words of `{name}`");
            }
            assert!(!row.text("type").is_empty() && !row.text("meaning").is_empty(), "{heading}: `{name}`");
        }
    }
}

#[test]
fn the_example_of_every_field_is_valid() {
    for (heading, place) in FIELDS {
        for row in table(heading, "field").rows {
            let (field, example) = (row.code("field")[0], row.code("example").join(""));
            assert!(example.starts_with(&format!("{field}: ")), "{heading}: the example of `{field}` is `{example}`");
            // In a file that lacks nothing else.
            let with = |others: &[&'static str], indent: &str| {
                let others = others.iter().copied().filter(|other| !other.starts_with(&format!("{field}: ")));
                others.chain([example.as_str()]).collect::<Vec<_>>().join(&format!("\n{indent}"))
            };
            let file = match place {
                "" => example.clone(),
                "/$defs/policy" => {
                    format!("policies:\n  - {}", with(&["name: a", "partition: [user]", "limit: 1/s"], "    "))
                }
                "/$defs/payer" => {
                    let own = with(&["name: b", "limit: 1/s"], "        ");
                    format!("policies:\n  - name: a\n    partition: [c]\n    limit: 2/s\n    payers:\n      - {own}")
                }
                "/$defs/holds" => {
                    format!("policies:\n  - name: a\n    partition: [b]\n    limit: 2/s\n    holds: {{{example}}}")
                }
                _ => {
                    let own = with(&["match: {a: b}", "limit: 1/s"], "        ");
                    format!("policies:\n  - name: a\n    limit: 2/s\n    overrides:\n      - {own}")
                }
            };
            let read = Config::from_texts(&[("example", &file)]);
            assert!(read.is_ok(), "{heading}: `{example}`: {}\n{file}", read.unwrap_err());
        }
    }
}

#[test]
fn the_complete_example_has_every_field_and_passes_validate_strict() {
    let example = PAGE.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let valid = validate_text(example.as_bytes(), &["--strict"]);
    assert_eq!((valid.code, valid.stderr.as_str()), (0, ""), "{}", valid.stdout);
    for (heading, _) in FIELDS {
        for row in table(heading, "field").rows {
            let field = row.code("field")[0];
            let starts = |line: &str| line.trim_start().trim_start_matches("- ").starts_with(&format!("{field}:"));
            assert!(example.lines().any(starts), "the example has no `{field}`");
        }
    }
}
