//! A work tree of the last commit, to break it without touching the one that a developer edits.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::run;

/// The last commit, unchanged.
pub fn check_out(tree: &Path) -> Result<()> {
    if tree.exists() {
        run::output(Command::new("git").args(["checkout", "--quiet", "--force", "."]).current_dir(tree))?;
        let head = run::output(git().args(["rev-parse", "HEAD"]))?;
        run::output(Command::new("git").args(["checkout", "--quiet", "--detach", head.trim()]).current_dir(tree))?;
        return Ok(());
    }
    run::run(git().args(["worktree", "add", "--detach"]).arg(tree).arg("HEAD"))
}

pub fn remove(tree: &Path) -> Result<()> {
    run::run(git().args(["worktree", "remove", "--force"]).arg(tree))
}

fn git() -> Command {
    let mut git = Command::new("git");
    git.current_dir(run::root());
    git
}
