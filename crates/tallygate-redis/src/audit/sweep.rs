//! What an audit looks at, and what it mends.

use std::time::Duration;

use crate::builder::{ConnectError, check_prefix};

/// Which keys to look at, how many at most, and whether to mend what is found.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// What the keys begin with.
    pub prefix: String,
    /// Only the policies whose name, as written in the key, begins so.
    pub policies: Option<String>,
    /// Gives keys of ours that would never expire this long to live. Counters that were made to last are left alone, and
    /// so are keys that Tallygate did not write.
    pub repair: Option<Duration>,
    /// Stops after about this many keys: for an audit that runs now and then beside the traffic.
    pub at_most: u64,
    /// Leaves the server alone this long after every few hundred keys.
    pub rest: Duration,
}

impl Sweep {
    /// Every key that begins with this prefix; `tallygate` is that of a store with default settings.
    pub fn of(prefix: &str) -> Result<Self, ConnectError> {
        check_prefix(prefix)?;
        let prefix = prefix.to_owned();
        Ok(Self { prefix, policies: None, repair: None, at_most: u64::MAX, rest: Duration::ZERO })
    }

    /// For `SCAN`, where some characters are special.
    pub(super) fn pattern(&self) -> String {
        let prefix = literal(&self.prefix);
        match &self.policies {
            Some(name) => format!("{prefix}:{{*}}:{}*", literal(name)),
            None => format!("{prefix}:*"),
        }
    }
}

fn literal(text: &str) -> String {
    let special = |c| matches!(c, '*' | '?' | '[' | ']' | '^' | '-' | '\\');
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_by_the_letter() {
        assert_eq!(Sweep::of("tallygate").unwrap().pattern(), "tallygate:*");
        let one = Sweep { policies: Some("v*[1]".into()), ..Sweep::of("a/b").unwrap() };
        assert_eq!(one.pattern(), "a/b:{*}:v\\*\\[1\\]*");
        assert!(Sweep::of("*").is_err());
        assert!(Sweep::of("").is_err());
    }
}
