//! The committed code of Envoy's protocol, generated from the `.proto` files beside it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run;

const PROTOS: &str = "crates/tallygate-server/proto";
/// Contains generated files only.
const COMMITTED: &str = "crates/tallygate-server/src/proto";
const REMEDY: &str = "run `cargo xtask proto` and commit what it writes";

/// `[--check]`: writes the code, or checks that it is up to date.
pub fn run(args: &[String]) -> Result<()> {
    let check = match args {
        [] => false,
        [only] if only == "--check" => true,
        _ => bail!("expected nothing or --check"),
    };
    let fresh = generate()?;
    let folder = run::root().join(COMMITTED);
    let committed = contents(&folder)?;
    let differing = differing(&fresh, &committed);
    if !check {
        replace(&folder, &fresh)?;
        eprintln!("proto: {} files, {} changed", fresh.len(), differing.len());
        return Ok(());
    }
    for path in &differing {
        eprintln!("proto: {COMMITTED}/{} is not what {PROTOS} says", path.display());
    }
    if differing.is_empty() { Ok(()) } else { bail!("{} files differ: {REMEDY}", differing.len()) }
}

/// Files by their path in the folder.
type Contents = BTreeMap<PathBuf, Vec<u8>>;

/// The generator is a separate workspace, so that other builds do not compile it.
fn generate() -> Result<Contents> {
    let out = run::target().join("proto");
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    let mut command = run::cargo(&["run", "--quiet", "--locked", "--manifest-path", "xtask/proto/Cargo.toml", "--"]);
    // Not beside its manifest, where searches of the sources would find it.
    command.env("CARGO_TARGET_DIR", run::target().join("xtask-proto"));
    run::run(command.arg(PROTOS).arg(&out))?;

    let generated = contents(&out)?;
    let sources = generated.keys().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let mut rustfmt = Command::new("rustfmt");
    rustfmt.args(["--edition", "2024", "--config-path"]).arg(run::root());
    run::output(rustfmt.args(sources.map(|path| out.join(path))))?;
    contents(&out)
}

fn contents(folder: &Path) -> Result<Contents> {
    let mut found = Contents::new();
    let mut open = vec![PathBuf::new()];
    while let Some(within) = open.pop() {
        let path = folder.join(&within);
        if !path.exists() {
            continue;
        }
        for entry in fs::read_dir(&path).with_context(|| path.display().to_string())? {
            let entry = entry?;
            let within = within.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                open.push(within);
            } else {
                found.insert(within, fs::read(entry.path())?);
            }
        }
    }
    Ok(found)
}

/// Changed, missing, or left over.
fn differing<'a>(fresh: &'a Contents, committed: &'a Contents) -> Vec<&'a Path> {
    let mut paths: Vec<&PathBuf> = fresh.keys().chain(committed.keys()).collect();
    paths.sort();
    paths.dedup();
    paths.retain(|path| fresh.get(*path) != committed.get(*path));
    paths.into_iter().map(PathBuf::as_path).collect()
}

fn replace(folder: &Path, fresh: &Contents) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    for (within, bytes) in fresh {
        let path = folder.join(within);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(&path, bytes).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_missing_and_left_over_files_differ() {
        let contents = |files: &[(&str, &str)]| -> Contents {
            files.iter().map(|(path, text)| (PathBuf::from(path), text.as_bytes().to_vec())).collect()
        };
        let fresh = contents(&[("a.rs", "1"), ("b/c.rs", "2"), ("d.bin", "3")]);
        let committed = contents(&[("a.rs", "1"), ("d.bin", "4"), ("e.rs", "5")]);
        assert_eq!(differing(&fresh, &committed), ["b/c.rs", "d.bin", "e.rs"].map(Path::new));
        assert!(differing(&fresh, &fresh).is_empty());
    }
}
