//! What can be wrong with a store URL.

use std::fmt;

/// What is wrong with a store URL, and what would be right. Never repeats a password.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum UrlError {
    /// There is no `://`.
    NoScheme,
    /// The part before `://` is none we know.
    Scheme {
        /// What was written.
        written: String,
        /// The nearest scheme we know.
        nearest: &'static str,
    },
    /// No host, or an empty one in a list.
    NoHost,
    /// Several hosts where one is meant.
    ManyHosts,
    /// Not a port number.
    Port {
        /// What was written.
        written: String,
    },
    /// Not a database number.
    Database {
        /// What was written.
        written: String,
    },
    /// A cluster has database 0 only.
    DatabaseInCluster,
    /// Sentinel needs to know which master.
    NoMasterName,
    /// A user without a password.
    UserWithoutPassword,
    /// A percent sign that starts no escape, or an escape that is not UTF-8.
    Escape,
    /// A `/`, `?` or `#` in the user or password that was not escaped.
    UnescapedPassword,
    /// A parameter after `?` that this scheme does not have.
    Parameter {
        /// What was written.
        written: String,
        /// What this scheme has, if anything.
        known: &'static str,
    },
    /// Something after `#`, or more path than the scheme has.
    Trailing {
        /// What was written.
        written: String,
    },
    /// A socket URL without a path.
    NoPath,
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoScheme => {
                write!(f, "a store URL starts with its scheme: redis://host:6379 (`memory` is the embedded store)")
            }
            Self::Scheme { written, nearest } => {
                write!(f, "unknown scheme {written}://: did you mean {nearest}://?")
            }
            Self::NoHost => write!(f, "the host is missing: redis://host:6379"),
            Self::ManyHosts => write!(
                f,
                "several hosts need redis+cluster://a,b,c or redis+sentinel://a,b,c/master-name; redis:// takes one"
            ),
            Self::Port { written } => write!(f, "`{written}` is not a port: write host:6379, 1 to 65535"),
            Self::Database { written } => {
                write!(f, "`{written}` is not a database number: write redis://host:6379/0")
            }
            Self::DatabaseInCluster => write!(f, "a cluster has no databases to choose from: leave the path empty"),
            Self::NoMasterName => {
                write!(f, "the name of the master is missing: redis+sentinel://host:26379/master-name")
            }
            Self::UserWithoutPassword => {
                write!(
                    f,
                    "the user has no password: write redis://user:password@host, or redis://:password@host for the default user"
                )
            }
            Self::Escape => {
                write!(f, "a `%` must be followed by two hex digits of UTF-8: write %25 for the sign itself")
            }
            Self::UnescapedPassword => {
                write!(f, "in a user or password `/` is written %2F, `?` is %3F, `#` is %23 and `@` is %40")
            }
            Self::Parameter { written, known: "" } => {
                write!(f, "unknown parameter `{written}`: this scheme has none")
            }
            Self::Parameter { written, known } => write!(f, "unknown parameter `{written}`: this scheme has {known}"),
            Self::Trailing { written } => write!(f, "`{written}` has no meaning here: end the URL before it"),
            Self::NoPath => write!(f, "the path of the socket is missing: redis+unix:///run/redis.sock"),
        }
    }
}

impl std::error::Error for UrlError {}
