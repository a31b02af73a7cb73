//! Programs of others that tests drive: proxies, monitors, linters.

use std::path::PathBuf;
use std::process::Command;

use crate::find::locate;
use crate::skip::skipped_by;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// The proxy that asks over gRPC.
    Envoy,
    /// The proxy with `auth_request`.
    Nginx,
    /// The proxy with `forward_auth`.
    Caddy,
    /// The proxy with `forwardAuth`.
    Traefik,
    /// The monitor.
    Prometheus,
    /// What checks and tests the rules of the monitor.
    Promtool,
    /// What checks container files.
    Hadolint,
    /// What checks Kubernetes manifests.
    KubernetesValidate,
    /// What checks an HTTP API against its description.
    Schemathesis,
}

impl Tool {
    /// All of them.
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

    /// The binary: from the environment (`TALLYGATE_ENVOY` and so on), else what `cargo xtask` fetched, else from `PATH`.
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

    /// False only when `TALLYGATE_SKIP_ENVOY=<reason>` (and so on) is set: then the test is reported as skipped, and must
    /// return. A missing binary alone is no reason to skip.
    #[must_use]
    pub fn available(self) -> bool {
        !skipped_by(&self.variable("SKIP_"), self.binary_name())
    }

    fn variable(self, prefix: &str) -> String {
        format!("TALLYGATE_{prefix}{}", self.binary_name().to_uppercase().replace('-', "_"))
    }
}
