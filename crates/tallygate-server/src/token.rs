//! The bearer tokens of a server, and what each of them may do.

use std::fmt;

use sha2::{Digest as _, Sha256};
use tallygate::words::words;

words! {
    /// Who may refund: a refund can give a caller back what it never used.
    pub enum Refunds, "value" {
        /// Those with a token that has the scope `refund` or `operate`.
        Token = "token",
        /// Everybody who may check.
        Open = "open",
    }
}

words! {
    /// What a token may do.
    pub enum Scope, "scope" {
        /// Check, peek and count, over HTTP and gRPC.
        Check = "check",
        /// Refund.
        Refund = "refund",
        /// Read metrics and policies.
        Read = "read",
        /// Refund, reset limits, delete counters, reload.
        Operate = "operate",
        /// Everything.
        Admin = "admin",
    }
}

/// The tokens of a server: one that may do everything, or several with names and scopes. Kept as digests, so that no secret
/// is in a memory dump, log or `Debug`.
///
/// ```
/// use tallygate_server::{Scope, Token};
///
/// let one = Token::new("a secret of 16 characters or more")?;
/// assert_eq!(one.holder("a secret of 16 characters or more").unwrap().name(), "admin");
///
/// let several = Token::new("prometheus:read:0123456789abcdef\nci:read,operate:fedcba9876543210\n")?;
/// let holder = several.holder("0123456789abcdef").unwrap();
/// assert_eq!((holder.name(), holder.may(Scope::Read), holder.may(Scope::Operate)), ("prometheus", true, false));
/// # Ok::<(), tallygate_server::TokenError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token(Vec<Holder>);

/// A name, its scopes, and the digest of its token.
#[derive(Clone, PartialEq, Eq)]
pub struct Holder {
    name: String,
    scopes: Vec<Scope>,
    digest: Digest,
}

/// The digest of a token.
pub(crate) type Digest = [u8; 32];

/// Why a text is not a token, or not a list of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It can be guessed.
    #[error(
        "the token `{name}` has {characters} character{}: use at least {}, for example from `openssl rand -hex 32`",
        if *characters == 1 { "" } else { "s" }, Token::SHORTEST
    )]
    Weak {
        /// The name of the token.
        name: String,
        /// Its length.
        characters: usize,
    },
    /// A scope does not exist.
    #[error("line {line} of the tokens: {unknown}")]
    Scope {
        /// The line, from 1.
        line: usize,
        /// The unknown scope, and those there are.
        unknown: String,
    },
    /// A line is not a named token.
    #[error("line {line} of the tokens lacks a field of `name:scopes:token`: write for example `prometheus:read:…`")]
    Line {
        /// The line, from 1.
        line: usize,
    },
    /// Two lines have the same name or the same token.
    #[error("line {line} of the tokens: `{name}` has the name or the token of an earlier line: give each its own")]
    Duplicate {
        /// The line, from 1.
        line: usize,
        /// The name.
        name: String,
    },
}

/// The name of a token that is the only one.
const UNNAMED: &str = "admin";

impl Token {
    /// The fewest characters of a token. Shorter ones can be guessed.
    pub const SHORTEST: usize = 16;

    /// Reads one token, which gets the name and the scope `admin`; or lines of the form `name:scopes:token`, with commas
    /// between the scopes. Empty lines and lines that begin with `#` are ignored.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let lines = text.lines().map(str::trim).enumerate().map(|(at, line)| (at + 1, line));
        let lines: Vec<(usize, &str)> = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).collect();
        if let [(line, only)] = lines[..]
            && named(only).is_none()
        {
            if lacks_token(only) {
                return Err(TokenError::Line { line });
            }
            return Ok(Self(vec![Holder::new(UNNAMED, vec![Scope::Admin], only)?]));
        }
        if lines.is_empty() {
            return Err(TokenError::Weak { name: UNNAMED.to_owned(), characters: 0 });
        }
        let mut holders: Vec<Holder> = Vec::new();
        for (line, written) in lines {
            let Some((name, scopes, token)) = named(written) else { return Err(TokenError::Line { line }) };
            let read = |scope: &str| scope.trim().parse::<Scope>();
            let scopes = scopes.split(',').map(read).collect::<Result<_, _>>();
            let scopes = scopes.map_err(|unknown| TokenError::Scope { line, unknown: unknown.to_string() })?;
            let holder = Holder::new(name, scopes, token)?;
            if holders.iter().any(|other| other.name == holder.name || other.digest == holder.digest) {
                return Err(TokenError::Duplicate { line, name: name.to_owned() });
            }
            holders.push(holder);
        }
        Ok(Self(holders))
    }

    /// Whose token `shown` is.
    pub fn holder(&self, shown: &str) -> Option<&Holder> {
        self.holder_of(&digest(shown))
    }

    pub(crate) fn holder_of(&self, shown: &Digest) -> Option<&Holder> {
        // In constant time: compares all digests, in full.
        self.0.iter().fold(None, |found, holder| if is_same(&holder.digest, shown) { Some(holder) } else { found })
    }

    /// Whether a token is for checks only, so that checks require a token.
    pub fn guards_checks(&self) -> bool {
        self.0.iter().any(|holder| holder.scopes.contains(&Scope::Check))
    }
}

/// A line `name:scopes:token`. A single token may contain colons, too, but hardly in this form.
fn named(line: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = line.split_once(':')?;
    let (scopes, token) = rest.split_once(':')?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let are_words = !scopes.is_empty() && scopes.chars().all(|c| c.is_ascii_lowercase() || ", ".contains(c));
    (is_name && are_words).then_some((name, scopes, token.trim()))
}

/// A line `name:scopes`. Taken for a token, it could be guessed, however long it is.
fn lacks_token(line: &str) -> bool {
    let scopes = line.split_once(':').map(|(_, scopes)| scopes);
    scopes.is_some_and(|scopes| scopes.split(',').all(|scope| scope.trim().parse::<Scope>().is_ok()))
}

impl Holder {
    fn new(name: &str, scopes: Vec<Scope>, token: &str) -> Result<Self, TokenError> {
        let characters = token.chars().count();
        if characters < Token::SHORTEST {
            return Err(TokenError::Weak { name: name.to_owned(), characters });
        }
        Ok(Self { name: name.to_owned(), scopes, digest: digest(token) })
    }

    /// The name, for logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether its token has this scope.
    pub fn may(&self, scope: Scope) -> bool {
        let grants = |own: Scope| match own {
            Scope::Admin => true,
            // A reset gives back more than any refund.
            Scope::Operate => matches!(scope, Scope::Operate | Scope::Refund),
            own => own == scope,
        };
        self.scopes.iter().copied().any(grants)
    }
}

/// In constant time.
pub(crate) fn is_same(one: &Digest, other: &Digest) -> bool {
    one.iter().zip(other).fold(0, |differences, (one, other)| differences | (one ^ other)) == 0
}

pub(crate) fn digest(text: &str) -> Digest {
    Sha256::digest(text.as_bytes()).into()
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder").field("name", &self.name).field("scopes", &self.scopes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_itself_is_the_token() {
        let token = Token::new(" correct horse battery \n").unwrap();
        assert_eq!(token.holder("correct horse battery").map(Holder::name), Some("admin"));
        for other in ["", "correct horse batter", "correct horse battery ", "CORRECT HORSE BATTERY"] {
            assert_eq!(token.holder(other), None, "{other}");
        }
        assert!(!format!("{token:?}").contains("horse"));
    }

    #[test]
    fn a_token_that_can_be_guessed_is_refused() {
        for (text, of) in [
            ("hunter2", "`admin` has 7 characters"),
            ("ci:read:hunter2", "`ci` has 7 characters"),
            ("ci:read:x", "`ci` has 1 character:"),
            ("", "has 0 characters"),
        ] {
            let error = Token::new(text).unwrap_err().to_string();
            assert!(error.contains(of) && error.contains("openssl"), "{error}");
        }
    }

    #[test]
    fn a_named_token_may_do_what_its_scopes_say() {
        let text = "# scrapers\nprometheus:read:0123456789abcdef\n\nci:read, operate:fedcba9876543210\nroot:admin:x:y:z 0123456789\n";
        let tokens = Token::new(text).unwrap();
        let may = |shown: &str| {
            let holder = tokens.holder(shown).unwrap();
            (holder.name(), Scope::ALL.iter().filter(|scope| holder.may(**scope)).map(|scope| scope.name()).collect())
        };
        assert_eq!(may("0123456789abcdef"), ("prometheus", vec!["read"]));
        assert_eq!(may("fedcba9876543210"), ("ci", vec!["refund", "read", "operate"]));
        assert_eq!(may("x:y:z 0123456789"), ("root", vec!["check", "refund", "read", "operate", "admin"]));
        assert_eq!(tokens.holder("prometheus:read:0123456789abcdef"), None);
        assert!(!tokens.guards_checks());
        assert!(Token::new("api:check:0123456789abcdef").unwrap().guards_checks());
    }

    #[test]
    fn a_single_token_may_contain_colons() {
        let token = "A+/=:9f:0123456789abcdef";
        assert_eq!(Token::new(token).unwrap().holder(token).map(Holder::name), Some("admin"));
    }

    #[test]
    fn a_list_with_a_mistake_is_refused_with_its_line() {
        let a = "a:read:0123456789abcdef";
        for (text, says) in [
            ("a:raed:0123456789abcdef".to_owned(), "line 1 of the tokens: "),
            (format!("{a}\nfedcba9876543210"), "line 2 of the tokens lacks a field of `name:scopes:token`"),
            ("prometheus-scraper:read, operate".to_owned(), "line 1 of the tokens lacks a field"),
            ("# one\na:read".to_owned(), "line 2 of the tokens lacks a field of `name:scopes:token`"),
            (format!("{a}\na:read:fedcba9876543210"), "line 2 of the tokens: `a` has the name or the token"),
            (format!("{a}\nb:read:0123456789abcdef"), "line 2 of the tokens: `b` has the name or the token"),
        ] {
            let error = Token::new(&text).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("0123456789"), "{error}");
        }
    }
}
