//! Projects outside of the workspace, as users have them: no other crate enables features for them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// With the dependency versions of the workspace.
#[derive(Debug)]
pub struct Project {
    name: String,
    folder: PathBuf,
    target: PathBuf,
}

impl Project {
    /// `folder` is the `CARGO_TARGET_TMPDIR` of the test. `dependencies` is the manifest from there on; `CRATES` in it is where our
    /// crates are.
    pub fn new(folder: &str, name: &str, dependencies: &str, main: &str) -> Self {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        // All projects build in one folder, and share what they have in common.
        let projects = Path::new(folder).join("projects");
        let project = Self { name: name.to_owned(), folder: projects.join(name), target: projects.join("target") };
        let manifest = format!(
            "[package]\nname = \"{name}\"\nedition = \"2024\"\n\n[dependencies]\n{}\n\
             [workspace]\n\n[profile.dev]\ndebug = false\n",
            dependencies.replace("CRATES", crates.to_str().unwrap())
        );
        project.write("Cargo.toml", &manifest);
        project.write("src/main.rs", main);
        // Kept with what cargo adds to it, which it would have to ask the registry for again.
        let lock = fs::read_to_string(crates.join("../Cargo.lock")).unwrap();
        if project.write("workspace.lock", &lock) {
            fs::write(project.folder.join("Cargo.lock"), lock).unwrap();
        }
        project
    }

    /// An unchanged file stays, so that nothing is built again.
    fn write(&self, name: &str, text: &str) -> bool {
        let path = self.folder.join(name);
        if fs::read_to_string(&path).is_ok_and(|there| there == text) {
            return false;
        }
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        true
    }

    /// Returns what `cargo` printed.
    pub fn cargo(&self, args: &[&str]) -> String {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let output = cargo.args(args).current_dir(&self.folder).env("CARGO_TARGET_DIR", &self.target).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: cargo {args:?}:\n{said}", self.name);
        String::from_utf8(output.stdout).unwrap()
    }

    /// What `cargo build` has built.
    pub fn program(&self) -> PathBuf {
        self.target.join("debug").join(&self.name)
    }
}
