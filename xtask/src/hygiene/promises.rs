//! Every test that the guarantees name exists.

use super::Findings;
use super::files::TextFile;

const PAGE: &str = "docs/guarantees.md";
const SECTION: &str = "## 11. The tests behind it";

pub fn check(files: &[TextFile], findings: &mut Findings) {
    let page = files.iter().find(|file| file.path == PAGE).map_or("", |file| &file.text);
    let names = named(page);
    if names.is_empty() {
        findings.fail(format!("{PAGE}: no test is named under `{SECTION}`"));
    }
    for name in names {
        let function = format!("fn {name}(");
        let generic = format!("fn {name}<");
        let exists = |file: &TextFile| file.text.contains(&function) || file.text.contains(&generic);
        if !files.iter().filter(|file| file.has_extension("rs")).any(exists) {
            findings.fail(format!("{PAGE}: there is no test `{name}`"));
        }
    }
}

/// The names in the last column of the table, without their modules.
fn named(page: &str) -> Vec<&str> {
    let section = page.split_once(SECTION).map_or("", |(_, section)| section);
    let rows = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| section"));
    let cells = rows.filter_map(|row| row.trim_end_matches(" |").rsplit(" | ").next());
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.map(|name| name.rsplit("::").next().unwrap_or(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_is_gone_is_found() {
        let file = |path: &str, text: &str| TextFile { path: path.to_owned(), text: text.to_owned() };
        let page = format!(
            "{SECTION}\n\n| section | promise | tests |\n|---|---|---|\n| 1 | it holds | `a::here`, `gone` |\n"
        );
        let mut findings = Findings::default();
        check(&[file(PAGE, &page), file("tests/a.rs", "fn here() {}")], &mut findings);
        assert_eq!(findings.failures, ["docs/guarantees.md: there is no test `gone`"]);
    }
}
