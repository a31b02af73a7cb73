//! What an audit scans, and what it repairs.

use std::time::Duration;

use crate::builder::{ConnectError, check_prefix};

/// Which keys to scan, how many at most, and whether to repair what is found.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// The key prefix.
    pub prefix: String,
    /// Only policies whose encoded name begins with this.
    pub policies: Option<String>,
    /// The TTL to set on our keys without one. Lasting counters and keys that Tallygate did not write are left alone.
    pub repair: Option<Duration>,
    /// Stops after about this many keys, for regular audits in production.
    pub at_most: u64,
    /// How long to pause after every few hundred keys.
    pub rest: Duration,
}

impl Sweep {
    /// Every key with this prefix; that of a store with default settings is `tallygate`.
    pub fn of(prefix: &str) -> Result<Self, ConnectError> {
        check_prefix(prefix)?;
        let prefix = prefix.to_owned();
        Ok(Self { prefix, policies: None, repair: None, at_most: u64::MAX, rest: Duration::ZERO })
    }

    /// The pattern for `SCAN`, in which some characters are special.
    pub(super) fn pattern(&self) -> String {
        let prefix = literal(&self.prefix);
        match &self.policies {
            Some(name) => format!("{prefix}:{{*}}:{}*", literal(name)),
            None => format!("{prefix}:*"),
        }
    }
}

/// A text in a pattern for `SCAN`.
pub(crate) fn literal(text: &str) -> String {
    let special = |c| matches!(c, '*' | '?' | '[' | ']' | '^' | '-' | '\\');
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_in_names_are_escaped() {
        assert_eq!(Sweep::of("tallygate").unwrap().pattern(), "tallygate:*");
        let one = Sweep { policies: Some("v*[1]".into()), ..Sweep::of("a/b").unwrap() };
        assert_eq!(one.pattern(), "a/b:{*}:v\\*\\[1\\]*");
        assert!(Sweep::of("*").is_err());
        assert!(Sweep::of("").is_err());
    }
}
