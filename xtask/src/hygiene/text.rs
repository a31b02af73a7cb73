//! Words that must not be committed, and files that have grown too long.

use super::Findings;
use super::files::TextFile;

const WARN_LINES: usize = 400;
const MAX_LINES: usize = 600;

// Split, so that this file passes its own check.
const MACROS: [&str; 3] = [concat!("to", "do!"), concat!("unimple", "mented!"), concat!("db", "g!")];
const WORDS: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];
const PATHS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];

pub fn check(file: &TextFile, findings: &mut Findings) {
    let rust = file.has_extension("rs");
    for (number, line) in (1..).zip(file.text.lines()) {
        let mut fail = |what: &str| findings.fail(format!("{}:{number}: {what}", file.path));
        for name in MACROS {
            if rust && stands_alone(line, name) {
                fail(&format!("`{name}` left behind"));
            }
        }
        for word in WORDS {
            if stands_alone(line, word) {
                fail(&format!("`{word}`: do it, or drop it"));
            }
        }
        for path in PATHS {
            if stands_alone(line, path) {
                fail(&format!("a path of one machine: {path}"));
            }
        }
    }
    if rust && file.in_crate_folder("src") {
        let lines = file.text.lines().count();
        let finding = format!("{}: {lines} lines; split it", file.path);
        if lines > MAX_LINES {
            findings.fail(finding);
        } else if lines > WARN_LINES {
            findings.warn(finding);
        }
    }
}

/// Whether it occurs as a whole word, not as part of a longer name.
fn stands_alone(line: &str, wanted: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-');
    line.match_indices(wanted).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + wanted.len()..]);
        let open_end = wanted.ends_with(|c: char| !c.is_alphanumeric());
        !before.ends_with(part_of_name) && (open_end || !after.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(path: &str, text: &str) -> Vec<String> {
        let mut findings = Findings::default();
        let file = TextFile { path: path.to_owned(), text: text.to_owned() };
        check(&file, &mut findings);
        findings.failures
    }

    #[test]
    fn finds_each_forbidden_thing() {
        for line in MACROS.iter().chain(&WORDS).chain(&PATHS) {
            assert_eq!(failures("crates/a/src/b.rs", &format!("x {line}(y)")).len(), 1, "{line}");
            assert_eq!(failures("crates/a/src/b.rs", &format!("my_{line}x")).len(), 0, "{line}");
        }
    }

    #[test]
    fn long_files_fail() {
        assert_eq!(failures("crates/a/src/b/c.rs", &"\n".repeat(MAX_LINES + 1)).len(), 1);
        assert_eq!(failures("crates/a/src/b/c.rs", &"\n".repeat(MAX_LINES)).len(), 0);
        assert_eq!(failures("crates/a/tests/c.rs", &"\n".repeat(MAX_LINES + 1)).len(), 0);
    }
}
