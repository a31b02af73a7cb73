//! Relative links of the documents lead somewhere.

use std::path::Path;

use super::Findings;
use super::files::TextFile;
use crate::run;

pub fn check(file: &TextFile, findings: &mut Findings) {
    if !file.has_extension("md") {
        return;
    }
    let path = run::root().join(&file.path);
    let folder = path.parent().unwrap_or(Path::new(""));
    for (number, target) in targets(&file.text) {
        let (target, _anchor) = target.split_once('#').unwrap_or((target, ""));
        let elsewhere = target.is_empty() || target.contains("://") || target.starts_with("mailto:");
        if !elsewhere && !folder.join(target).exists() {
            findings.fail(format!("{}:{number}: no {target}", file.path));
        }
    }
}

/// What stands in `[…](here)`, with its line; code blocks are left out.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for (at, _) in line.match_indices("](") {
            let rest = &line[at + 2..];
            // A title may follow the target: `[a](b "title")`.
            if let Some(target) = rest.split([')', ' ']).next() {
                found.push((number, target));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_links_and_only_them() {
        let text = "see [a](b.md) and [c](d.md#e \"t\")\n```\nf[0](g)\n```\n[h](https://i)";
        assert_eq!(targets(text), [(1, "b.md"), (1, "d.md#e"), (5, "https://i")]);
    }
}
