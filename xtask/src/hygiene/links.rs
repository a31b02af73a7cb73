//! Relative links of the documents lead somewhere, and so do their anchors.

use std::fs;
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
    for (number, link) in targets(&file.text) {
        if link.contains("://") || link.starts_with("mailto:") {
            continue;
        }
        let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target = if target.is_empty() { path.clone() } else { folder.join(target) };
        if !target.exists() {
            findings.fail(format!("{}:{number}: there is no file {link}", file.path));
        } else if !anchor.is_empty() && target.extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(&target).unwrap_or_default();
            if !anchors(&text).iter().any(|known| known == anchor) {
                findings.fail(format!("{}:{number}: no heading has the anchor {link}", file.path));
            }
        }
    }
}

/// The lines outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// The link targets `[…](here)`, with their lines.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
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

/// The anchors that renderers give to headings: lower case, without punctuation, hyphens for spaces, numbered if repeated.
fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for (_, line) in prose(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect();
        let repeated = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(repeated).find(|anchor| !anchors.contains(anchor));
        anchors.extend(free);
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_links_and_only_them() {
        let text = "see [a](b.md) and [c](d.md#e \"t\")\n```\nf[0](g)\n```\n[h](https://i)";
        assert_eq!(targets(text), [(1, "b.md"), (1, "d.md#e"), (5, "https://i")]);
    }

    /// An anchor was not looked at, so a renamed heading left dead links behind.
    #[test]
    fn headings_have_the_anchors_that_renderers_give_them() {
        let text = "# The `x` file, v2\n```\n# no heading\n```\n## 4. Refunds\n#tag\n## 4. Refunds\n";
        assert_eq!(anchors(text), ["the-x-file-v2", "4-refunds", "4-refunds-1"]);
    }
}
