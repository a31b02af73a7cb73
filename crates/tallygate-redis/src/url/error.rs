//! What can be wrong with a store URL.

/// What is wrong with a store URL, and what would be right. Never repeats a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// There is no `://`.
    #[error("a store URL starts with its scheme: redis://host:6379 (`memory` is the embedded store)")]
    NoScheme,
    /// The part before `://` is none we know.
    #[error("unknown scheme {written}://: did you mean {nearest}://?")]
    Scheme {
        /// What was written.
        written: String,
        /// The nearest scheme we know.
        nearest: &'static str,
    },
    /// No host, or an empty one in a list.
    #[error("the host is missing: redis://host:6379")]
    NoHost,
    /// Several hosts where one is meant.
    #[error("several hosts need redis+cluster://a,b,c or redis+sentinel://a,b,c/master-name; redis:// takes one")]
    ManyHosts,
    /// Not a port number.
    #[error("`{0}` is not a port: write host:6379, 1 to 65535")]
    Port(String),
    /// Not a database number.
    #[error("`{0}` is not a database number: write redis://host:6379/0")]
    Database(String),
    /// A cluster has database 0 only.
    #[error("a cluster has no databases to choose from: leave the path empty")]
    DatabaseInCluster,
    /// Sentinel needs to know which master.
    #[error("the name of the master is missing: redis+sentinel://host:26379/master-name")]
    NoMasterName,
    /// A user without a password.
    #[error(
        "the user has no password: write redis://user:password@host, or redis://:password@host for the default user"
    )]
    UserWithoutPassword,
    /// A percent sign that starts no escape, or an escape that is not UTF-8.
    #[error("a `%` must be followed by two hex digits of UTF-8: write %25 for the sign itself")]
    Escape,
    /// A `/`, `?` or `#` in the user or password that was not escaped.
    #[error("in a user or password `/` is written %2F, `?` is %3F, `#` is %23 and `@` is %40")]
    UnescapedPassword,
    /// A parameter after `?` that this scheme does not have.
    #[error("unknown parameter `{written}`: this scheme has {}", if known.is_empty() { "none" } else { known })]
    Parameter {
        /// What was written.
        written: String,
        /// What this scheme has, if anything.
        known: &'static str,
    },
    /// Something after `#`, or more path than the scheme has.
    #[error("`{0}` has no meaning here: end the URL before it")]
    Trailing(String),
    /// A socket URL without a path.
    #[error("the path of the socket is missing: redis+unix:///run/redis.sock")]
    NoPath,
}
