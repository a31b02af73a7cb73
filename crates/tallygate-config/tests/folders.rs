//! Files and folders on disk.

use std::fs;
use std::path::Path;

use tallygate_config::Config;

fn policy(name: &str) -> String {
    format!("policies: [{{name: {name}, partition: user, limit: 1/s}}]")
}

fn names(path: &Path) -> Vec<String> {
    let config = Config::load(path).unwrap_or_else(|findings| panic!("{findings}"));
    config.policies.policies().map(|policy| policy.name().to_owned()).collect()
}

fn refused(path: &Path) -> String {
    Config::load(path).unwrap_err().to_string()
}

#[test]
fn a_folder_is_its_visible_yaml_files_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("b.yml", &policy("b"));
    write("a.yaml", &policy("a"));
    write(".hidden.yaml", "not: ours");
    write("notes.txt", "not: ours");
    fs::create_dir(folder.path().join("below.yaml")).unwrap();
    assert_eq!(names(folder.path()), ["a", "b"]);
    assert_eq!(names(&folder.path().join("b.yml")), ["b"]);
}

#[cfg(unix)]
#[test]
fn the_folder_of_a_config_map_is_read_through_its_links() {
    use std::os::unix::fs::symlink;

    let folder = tempfile::tempdir().unwrap();
    let version = folder.path().join("..2026_01_01_00_00_00.1");
    fs::create_dir(&version).unwrap();
    fs::write(version.join("a.yaml"), policy("a")).unwrap();
    symlink("..2026_01_01_00_00_00.1", folder.path().join("..data")).unwrap();
    symlink("..data/a.yaml", folder.path().join("a.yaml")).unwrap();
    assert_eq!(names(folder.path()), ["a"]);
    symlink("..data/gone.yaml", folder.path().join("gone.yaml")).unwrap();
    assert!(refused(folder.path()).contains("gone.yaml: error: cannot be read"), "{}", refused(folder.path()));
}

#[test]
fn what_cannot_be_read_is_reported_with_its_name_and_without_a_line() {
    let folder = tempfile::tempdir().unwrap();
    assert!(refused(folder.path()).ends_with(": error: there is no *.yaml or *.yml file in this folder"));
    let file = folder.path().join("a.yaml");
    assert!(refused(&file).contains("a.yaml: error: cannot be read: "));
    fs::write(&file, b"policies: \xff").unwrap();
    assert!(refused(&file).ends_with("a.yaml: error: cannot be read: it is not UTF-8"));
    fs::write(&file, "x".repeat((1 << 20) + 1)).unwrap();
    assert!(refused(&file).ends_with("a.yaml: error: cannot be read: it is larger than 1 MiB; split it"));
}

#[test]
fn a_mistyped_file_name_is_refused_with_the_one_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("policies.yaml"), policy("a")).unwrap();
    let reported = refused(&folder.path().join("policy.yaml"));
    assert!(reported.contains("did you mean `") && reported.contains("policies.yaml`?"), "{reported}");
}

#[test]
fn files_of_a_folder_that_are_skipped_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("a.yaml", &policy("a"));
    for name in ["c", "limits.json", "README.md", "notes.txt", ".hidden"] {
        write(name, "");
    }
    for name in ["sub", "empty"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    write("sub/s.yaml", &policy("s"));
    let reported: Vec<String> = Config::load(folder.path()).unwrap().warnings.iter().map(ToString::to_string).collect();
    let skipped = |name: &str| format!("{}: warning: this ", folder.path().join(name).display());
    assert_eq!(reported.len(), 3, "{reported:?}");
    for (reported, name) in reported.iter().zip(["c", "limits.json", "sub"]) {
        assert!(reported.starts_with(&skipped(name)) && reported.contains("skipped"), "{reported}");
    }
    fs::remove_file(folder.path().join("a.yaml")).unwrap();
    let reported = refused(folder.path());
    assert!(reported.contains("there is no *.yaml") && reported.contains("sub`: name that folder"), "{reported}");
}
