//! What an audit looks at, and what it mends.

use std::time::Duration;

use crate::builder::{ConnectError, check_prefix};

/// Which keys to look at, how many at most, and whether to mend what is found.
#[derive(Debug, Clone)]
#[must_use = "hand it to `Audit::run`"]
pub struct Sweep {
    pub(super) prefix: String,
    policy: Option<String>,
    pub(super) repair: Option<Duration>,
    pub(super) most: u64,
    pub(super) rest: Duration,
}

impl Sweep {
    /// Every key that begins with this prefix; `tallygate` is that of a store with default settings.
    pub fn of(prefix: &str) -> Result<Self, ConnectError> {
        check_prefix(prefix)?;
        Ok(Self { prefix: prefix.to_owned(), policy: None, repair: None, most: u64::MAX, rest: Duration::ZERO })
    }

    /// Only the policies whose name, as written in the key, begins so.
    pub fn policies(mut self, name: &str) -> Self {
        self.policy = Some(name.to_owned());
        self
    }

    /// Gives keys of ours that would never expire this long to live. Counters that were made to last are left alone, and
    /// so are keys that Tallygate did not write.
    pub fn repair(mut self, ttl: Duration) -> Self {
        self.repair = Some(ttl);
        self
    }

    /// Stops after about this many keys: for an audit that runs now and then beside the traffic.
    pub fn at_most(mut self, keys: u64) -> Self {
        self.most = keys;
        self
    }

    /// Leaves the server alone this long after every few hundred keys.
    pub fn rest(mut self, rest: Duration) -> Self {
        self.rest = rest;
        self
    }

    /// For `SCAN`. A prefix has no character that is special there; the name of a policy may have.
    pub(super) fn pattern(&self) -> String {
        let Some(policy) = &self.policy else { return format!("{}:*", self.prefix) };
        let mut pattern = format!("{}:{{*}}:", self.prefix);
        for c in policy.chars() {
            if matches!(c, '*' | '?' | '[' | ']' | '^' | '-' | '\\') {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        pattern.push('*');
        pattern
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_by_the_letter() {
        assert_eq!(Sweep::of("tallygate").unwrap().pattern(), "tallygate:*");
        let one = Sweep::of("a/b").unwrap().policies("v*[1]");
        assert_eq!(one.pattern(), "a/b:{*}:v\\*\\[1\\]*");
        assert!(Sweep::of("*").is_err());
        assert!(Sweep::of("").is_err());
    }
}
