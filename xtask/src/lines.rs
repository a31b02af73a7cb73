//! Lines of each crate: product, generated code and tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::AddAssign;
use std::process::Command;

use anyhow::{Result, bail};

use crate::hygiene::files::{self, TextFile};
use crate::run;

/// Crates that are not published.
const NOT_PRODUCT: [&str; 4] = ["testkit", "torture", "xtask", "bench"];
const RECIPES: &str = "recipes";

/// `[--at REVISION]`: counts the working tree, or what was committed then.
pub fn run(args: &[String]) -> Result<()> {
    let files = match args {
        [] => files::all()?,
        [option, revision] if option == "--at" => committed(revision)?,
        _ => bail!("expected nothing or --at <revision>"),
    };
    print(&count(&files));
    Ok(())
}

fn committed(revision: &str) -> Result<Vec<TextFile>> {
    let folder = run::target().join("lines");
    let archive = folder.with_extension("tar");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let mut git = Command::new("git");
    git.current_dir(run::root()).args(["archive", "--format=tar", "-o"]).arg(&archive);
    run::output(git.arg(revision))?;
    run::output(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&folder))?;
    let files = files::below(&folder);
    fs::remove_dir_all(&folder)?;
    fs::remove_file(&archive)?;
    files
}

/// The counts of one crate, or of several.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Lines {
    code: usize,
    comments: usize,
    blank: usize,
    generated: usize,
    tests: usize,
}

impl AddAssign for Lines {
    fn add_assign(&mut self, other: Self) {
        self.code += other.code;
        self.comments += other.comments;
        self.blank += other.blank;
        self.generated += other.generated;
        self.tests += other.tests;
    }
}

/// By the name of the crate. The recipes are a separate row, wherever they are.
fn count(files: &[TextFile]) -> BTreeMap<String, Lines> {
    let test_modules: BTreeSet<String> = files.iter().flat_map(test_modules).collect();
    let mut crates: BTreeMap<String, Lines> = BTreeMap::new();
    for file in files {
        let Some((name, inner)) = crate_of(&file.path) else { continue };
        if file.has_extension("rs") || file.has_extension("lua") {
            *crates.entry(name).or_default() += count_file(file, is_test(&file.path, inner, &test_modules));
        }
    }
    crates
}

/// The crate a file belongs to, and its path in the crate.
fn crate_of(path: &str) -> Option<(String, &str)> {
    let (name, inner) = path.strip_prefix("crates/").unwrap_or(path).split_once('/')?;
    let known = path.starts_with("crates/") || NOT_PRODUCT.contains(&name);
    let recipes = name.ends_with("-recipes") || inner.starts_with("src/cmd/verify/recipes");
    known.then(|| (if recipes { RECIPES } else { name }.to_owned(), inner))
}

fn is_test(path: &str, inner: &str, test_modules: &BTreeSet<String>) -> bool {
    let named = inner.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "properties.rs"));
    let module = path.trim_end_matches(".rs");
    let declared = module.match_indices('/').any(|(at, _)| test_modules.contains(&module[..at]));
    let product = inner.starts_with("src/") || inner.starts_with("lua/");
    named || declared || test_modules.contains(module) || !product
}

/// The modules that a file declares for tests only, as paths without `.rs`.
fn test_modules(file: &TextFile) -> Vec<String> {
    let path = file.path.trim_end_matches(".rs");
    let folder = path.strip_suffix("/lib").or(path.strip_suffix("/main")).or(path.strip_suffix("/mod"));
    let folder = folder.unwrap_or(path);
    let lines: Vec<&str> = file.text.lines().collect();
    let declared = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]");
    let names = declared.filter_map(|pair| pair[1].strip_prefix("mod ")?.strip_suffix(';'));
    names.map(|name| format!("{folder}/{name}")).collect()
}

fn count_file(file: &TextFile, test: bool) -> Lines {
    let mut lines = Lines::default();
    let all = file.text.lines().count();
    if file.text.lines().take(3).any(|line| line.starts_with("//") && line.contains("@generated")) {
        return Lines { generated: all, ..lines };
    }
    if test {
        return Lines { tests: all, ..lines };
    }
    let comment = if file.has_extension("lua") { "--" } else { "//" };
    let mut rest = file.text.lines().peekable();
    let mut in_tests = false;
    while let Some(line) = rest.next() {
        // In formatted code only the last line of a module is a brace without indentation.
        let module = rest.peek().is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'));
        in_tests |= line == "#[cfg(test)]" && module;
        if in_tests {
            lines.tests += 1;
            in_tests = line != "}";
        } else if line.trim().is_empty() {
            lines.blank += 1;
        } else if line.trim_start().starts_with(comment) {
            lines.comments += 1;
        } else {
            lines.code += 1;
        }
    }
    lines
}

fn print(crates: &BTreeMap<String, Lines>) {
    let is_product =
        |name: &str| !NOT_PRODUCT.iter().any(|other| name == *other || name.ends_with(&format!("-{other}")));
    let row = |name: &str, lines: Lines| {
        let Lines { code, comments, blank, generated, tests } = lines;
        let written = code + comments + blank;
        println!("{name:<28}{code:>8}{comments:>10}{blank:>8}{written:>9}{generated:>11}{tests:>8}");
    };
    println!("Lines of .rs and .lua files; written = code + comments + blank, without tests and generated code.");
    println!(
        "{:<28}{:>8}{:>10}{:>8}{:>9}{:>11}{:>8}",
        "", "code", "comments", "blank", "written", "generated", "tests"
    );
    let recipes = crates.get(RECIPES).copied().unwrap_or_default();
    let mut product = Lines::default();
    for (name, lines) in crates.iter().filter(|(name, _)| is_product(name) && *name != RECIPES) {
        row(name, *lines);
        product += *lines;
    }
    row("= product without recipes", product);
    row(RECIPES, recipes);
    product += recipes;
    row("= product with recipes", product);
    for (name, lines) in crates.iter().filter(|(name, _)| !is_product(name)) {
        row(name, *lines);
        product += *lines;
    }
    row("= all", product);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(files: &[(&str, &str)]) -> BTreeMap<String, Lines> {
        let file = |(path, text): &(&str, &str)| TextFile { path: (*path).to_owned(), text: (*text).to_owned() };
        count(&files.iter().map(file).collect::<Vec<_>>())
    }

    #[test]
    fn a_test_module_is_no_product_and_what_follows_it_is() {
        let text = "//! a\n\nfn b() {}\n#[cfg(test)]\nmod tests {\n    fn c() {\n    }\n}\n// d\n";
        let lines = Lines { code: 1, comments: 2, blank: 1, tests: 5, ..Lines::default() };
        assert_eq!(counted(&[("crates/x/src/a.rs", text)])["x"], lines);
    }

    #[test]
    fn files_are_told_apart_by_path_and_by_declaration() {
        let counted = counted(&[
            ("crates/x/src/lib.rs", "#[cfg(test)]\nmod kit;\nmod a;\n"),
            ("crates/x/src/kit.rs", "1\n"),
            ("crates/x/src/kit/b.rs", "1\n"),
            ("crates/x/src/kitten.rs", "1\n"),
            ("crates/x/src/a/tests.rs", "1\n"),
            ("crates/x/src/a/tests/b.rs", "1\n"),
            ("crates/x/src/proto.rs", "// @generated by a\n1\n"),
            ("crates/x/lua/a.lua", "-- a\n1\n"),
            ("crates/x/tests/a.rs", "1\n"),
            ("crates/x/README.md", "1\n"),
            ("docs/a.rs", "1\n"),
        ]);
        let lines = Lines { code: 5, comments: 1, generated: 2, tests: 5, ..Lines::default() };
        assert_eq!(counted, BTreeMap::from([("x".to_owned(), lines)]));
    }

    #[test]
    fn recipes_are_a_row_of_their_own() {
        let crate_now = counted(&[("crates/x-recipes/src/lib.rs", "1\n")]);
        let folder_before = counted(&[("crates/x-cli/src/cmd/verify/recipes/a.rs", "1\n")]);
        assert_eq!(crate_now, folder_before);
        assert_eq!(crate_now[RECIPES].code, 1);
    }
}
