//! Where the server binaries are.

use std::env;
use std::path::{Path, PathBuf};

use crate::skip::skipped_by;

/// The kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// `redis-server`.
    Redis,
    /// `valkey-server`.
    Valkey,
}

impl Flavour {
    /// The name of the binary.
    #[must_use]
    pub fn binary_name(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Valkey => "valkey-server",
        }
    }

    fn variable(self) -> &'static str {
        match self {
            Self::Redis => "TALLYGATE_REDIS_SERVER",
            Self::Valkey => "TALLYGATE_VALKEY_SERVER",
        }
    }

    /// The path of the binary: from the environment, else as fetched by `cargo xtask`, else from `PATH`.
    ///
    /// # Panics
    /// When there is none: a test that needs a server never passes without one.
    #[must_use]
    pub fn binary(self) -> PathBuf {
        locate(self.binary_name(), self.variable())
    }
}

/// The path of a binary: from the environment, else as fetched by `cargo xtask`, else from `PATH`; else panics with the
/// remedy.
pub(crate) fn locate(name: &str, variable: &str) -> PathBuf {
    if let Some(path) = env::var_os(variable).map(PathBuf::from) {
        assert!(path.is_file(), "{variable} names {}, which is not a file", path.display());
        return path;
    }
    let fetched = target_dir().join("servers").join(name);
    if fetched.is_file() {
        return fetched;
    }
    in_path(name).unwrap_or_else(|| panic!("no {name}: run `cargo xtask test`, or install {name}, or set {variable}"))
}

const SKIP_VALKEY: &str = "TALLYGATE_SKIP_VALKEY";

/// False only if `TALLYGATE_SKIP_VALKEY=<reason>` is set: then the test is reported as skipped, and must return. A
/// missing binary alone is not a reason to skip.
#[must_use]
pub fn valkey_or_skip() -> bool {
    !skipped_by(SKIP_VALKEY, Flavour::Valkey.binary_name())
}

/// The same for a test that continues with Redis alone: it is not reported as skipped.
#[must_use]
pub fn valkey_available() -> bool {
    env::var(SKIP_VALKEY).map_or(true, |reason| reason.is_empty())
}

fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from)
}

/// The first file of this name in `PATH`.
pub(crate) fn in_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}
