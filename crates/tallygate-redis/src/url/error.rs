//! The errors of a store URL.

/// What is wrong with a store URL, and how to write it. Never contains a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// There is no `://`.
    #[error("a store URL starts with its scheme: redis://host:6379 (`memory` is the embedded store)")]
    NoScheme,
    /// The scheme is unknown.
    #[error("unknown scheme {written}://: did you mean {nearest}://?")]
    Scheme {
        /// The scheme.
        written: String,
        /// The closest known scheme.
        nearest: &'static str,
    },
    /// The scheme needs TLS, and this build does not have it.
    #[error(
        "{scheme}:// needs TLS, but tallygate-redis was built without it: enable its feature `tls-ring`, \
         `tls-aws-lc-rs` or `tls`"
    )]
    TlsDisabled {
        /// The scheme.
        scheme: String,
    },
    /// A host is missing.
    #[error("the host is missing: redis://host:6379")]
    NoHost,
    /// Several hosts where only one is possible.
    #[error("redis:// takes only one host: use redis+cluster://a,b,c or redis+sentinel://a,b,c/master-name")]
    ManyHosts,
    /// Invalid port number.
    #[error("invalid port `{0}`: write host:6379, from 1 to 65535")]
    Port(String),
    /// Invalid database number.
    #[error("invalid database number `{0}`: write redis://host:6379/0")]
    Database(String),
    /// A cluster only has database 0.
    #[error("a cluster only has database 0: leave the path empty")]
    DatabaseInCluster,
    /// The name of the master is missing.
    #[error("the name of the master is missing: redis+sentinel://host:26379/master-name")]
    NoMasterName,
    /// A user without a password.
    #[error(
        "the user has no password: write redis://user:password@host, or redis://:password@host for the default user"
    )]
    UserWithoutPassword,
    /// A percent sign without an escape, or an escape that is not UTF-8.
    #[error("a `%` must be followed by two hex digits of UTF-8: write %25 for the sign itself")]
    Escape,
    /// An unescaped `/`, `?` or `#` in the user or password.
    #[error(
        "escape special characters in the user or password: write `/` as %2F, `?` as %3F, `#` as %23 and `@` as %40"
    )]
    UnescapedPassword,
    /// A query parameter that this scheme does not have.
    #[error("unknown parameter `{written}`: this scheme has {}", if known.is_empty() { "no parameters" } else { known })]
    Parameter {
        /// The parameter.
        written: String,
        /// The parameters of this scheme, if any.
        known: &'static str,
    },
    /// A fragment, or a longer path than the scheme has.
    #[error("unexpected `{0}` in the store URL: remove it")]
    Trailing(String),
    /// A socket URL without a path.
    #[error("the path of the socket is missing: redis+unix:///run/redis.sock")]
    NoPath,
}
