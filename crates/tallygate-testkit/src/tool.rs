//! External programs that tests use: proxies, monitors, linters.

use std::path::PathBuf;
use std::process::Command;

use crate::find::locate;
use crate::skip::skipped_by;

/// An external program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// The proxy that uses gRPC.
    Envoy,
    /// The proxy with `auth_request`.
    Nginx,
    /// The proxy with `forward_auth`.
    Caddy,
    /// The proxy with `forwardAuth`.
    Traefik,
    /// The monitoring server.
    Prometheus,
    /// Checks and tests the rules of Prometheus.
    Promtool,
    /// Checks container files.
    Hadolint,
    /// Checks Kubernetes manifests.
    KubernetesValidate,
    /// Checks an HTTP API against its description.
    Schemathesis,
}

impl Tool {
    /// All tools.
    pub const ALL: [Self; 9] = [
        Self::Envoy,
        Self::Nginx,
        Self::Caddy,
        Self::Traefik,
        Self::Prometheus,
        Self::Promtool,
        Self::Hadolint,
        Self::KubernetesValidate,
        Self::Schemathesis,
    ];

    /// The name of the binary.
    #[must_use]
    pub fn binary_name(self) -> &'static str {
        match self {
            Self::Envoy => "envoy",
            Self::Nginx => "nginx",
            Self::Caddy => "caddy",
            Self::Traefik => "traefik",
            Self::Prometheus => "prometheus",
            Self::Promtool => "promtool",
            Self::Hadolint => "hadolint",
            Self::KubernetesValidate => "kubernetes-validate",
            Self::Schemathesis => "schemathesis",
        }
    }

    /// The path of the binary: from the environment (`TALLYGATE_ENVOY` and so on), else as fetched by `cargo xtask`,
    /// else from `PATH`.
    ///
    /// # Panics
    /// When there is none: a test that needs it never passes without it.
    #[must_use]
    pub fn binary(self) -> PathBuf {
        locate(self.binary_name(), &self.variable(""))
    }

    /// A command that runs it.
    ///
    /// # Panics
    /// As [`Tool::binary`].
    #[must_use]
    pub fn command(self) -> Command {
        Command::new(self.binary())
    }

    /// False only if `TALLYGATE_SKIP_ENVOY=<reason>` (and so on) is set: then the test is reported as skipped, and must
    /// return. A missing binary alone is not a reason to skip.
    #[must_use]
    pub fn available(self) -> bool {
        !skipped_by(&self.variable("SKIP_"), self.binary_name())
    }

    fn variable(self, prefix: &str) -> String {
        format!("TALLYGATE_{prefix}{}", self.binary_name().to_uppercase().replace('-', "_"))
    }
}
