//! Policies from files: our own YAML, and those of envoyproxy/ratelimit and limitador as they are.
//!
//! Every mistake is reported with file, line, column and a remedy, all of them at once if the file is valid YAML.
//!
//! ```
//! use tallygate_config::Config;
//!
//! let text = "policies: [{name: per-user, partition: [user], limit: 100/min}]";
//! let config = Config::from_texts(&[("policies.yaml", text)])?;
//! assert_eq!(config.policies.policies().next().unwrap().key_name(), "default/per-user");
//!
//! let refused = Config::from_texts(&[("policies.yaml", "policies: [{name: a, partition: [user], limt: 5/s}]")]).unwrap_err();
//! assert!(refused.to_string().starts_with("policies.yaml:1:41: error: a policy has no field `limt`"));
//! # Ok::<(), tallygate_config::Findings>(())
//! ```

mod config;
mod crowd;
mod source;

mod envoy;
mod limitador;
mod own;

mod fields;
mod finding;
mod node;

mod schema;

pub use config::{Config, Example};
pub use finding::{Finding, Findings, Severity};
pub use schema::schema;
pub use source::{read, skipped};
