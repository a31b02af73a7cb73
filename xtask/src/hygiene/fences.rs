//! Every code block of the READMEs and the guides is compiled, run or parsed by a test.

use super::Findings;
use super::files::TextFile;

/// The languages of blocks. Doctests of `tallygate-tower` compile `rust`; its tests `documents` load `yaml`, and its test `quick_start` uses the `toml` and
/// the `diff` of the README; the tests `readme` of `tallygate-cli` run `console`; this check parses `json`. The others are for reading.
const LANGUAGES: [&str; 9] = ["rust", "rust,no_run", "diff", "console", "yaml", "toml", "json", "ini", "text"];
const DOCTESTS: &str = "crates/tallygate-tower/src/lib.rs";

pub fn check(files: &[TextFile], findings: &mut Findings) {
    let doctests = files.iter().find(|file| file.path == DOCTESTS).map_or("", |file| &file.text);
    for file in files.iter().filter(|file| is_guide(&file.path)) {
        for (number, language, block) in blocks(&file.text) {
            let mut fail = |what: &str| findings.fail(format!("{}:{number}: {what}", file.path));
            if !LANGUAGES.contains(&language) {
                fail(&format!("no test runs a block of `{language}`: use one of {LANGUAGES:?}"));
            }
            if language.starts_with("rust") && !doctests.contains(&file.path) {
                fail(&format!("include this file in the doctests of {DOCTESTS}"));
            }
            if language == "json" {
                let values = serde_json::Deserializer::from_str(&block).into_iter::<serde_json::Value>();
                if let Some(error) = values.filter_map(Result::err).next() {
                    fail(&format!("this is not JSON: {error}"));
                }
            }
        }
    }
}

fn is_guide(path: &str) -> bool {
    path.ends_with("README.md") && !path.starts_with("docs/adr/") || path.starts_with("docs/guide/")
}

/// The fenced blocks: the line of the fence, the language and the text.
fn blocks(text: &str) -> Vec<(usize, &str, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, &str, String)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some((number, language, String::new())),
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some((_, _, block))) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, None) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(path: &str, text: &str) -> usize {
        let file = |path: &str, text: &str| TextFile { path: path.to_owned(), text: text.to_owned() };
        let mut findings = Findings::default();
        check(&[file(DOCTESTS, "docs/guide/tested.md"), file(path, text)], &mut findings);
        findings.failures.len()
    }

    #[test]
    fn a_block_that_no_test_runs_is_found() {
        assert_eq!(failures("docs/guide/tested.md", "```rust\nlet a = 1;\n```\n```json\n{} {}\n```\n"), 0);
        assert_eq!(failures("docs/guide/tested.md", "```rust,ignore\nlet a = …;\n```\n"), 1);
        assert_eq!(failures("docs/guide/other.md", "```rust\nlet a = 1;\n```\n"), 1);
        assert_eq!(failures("docs/guide/tested.md", "```json\n{\n```\n"), 1);
        assert_eq!(failures("docs/guarantees.md", "```\n```\n"), 0);
    }
}
