//! The bearer token of operators.

use std::fmt;

use sha2::{Digest, Sha256};

/// A bearer token, kept as its digest, so that the secret is in no memory dump, log or `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token([u8; 32]);

/// The token is too short.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the token has {characters} characters: use at least {}, for example from `openssl rand -hex 32`",
    Token::SHORTEST
)]
pub struct WeakToken {
    characters: usize,
}

impl Token {
    /// The fewest characters. Shorter tokens can be guessed.
    pub const SHORTEST: usize = 16;

    /// The token `text`, without surrounding white space.
    pub fn new(text: &str) -> Result<Self, WeakToken> {
        let text = text.trim();
        let characters = text.chars().count();
        if characters < Self::SHORTEST {
            return Err(WeakToken { characters });
        }
        Ok(Self(digest(text)))
    }

    /// Whether `shown` is this token, in constant time: compares digests.
    pub fn is(&self, shown: &str) -> bool {
        let pairs = self.0.iter().zip(digest(shown));
        pairs.fold(0, |differences, (own, other)| differences | (own ^ other)) == 0
    }
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_itself_is_the_token() {
        let token = Token::new(" correct horse battery \n").unwrap();
        assert!(token.is("correct horse battery"));
        for other in ["", "correct horse batter", "correct horse battery ", "CORRECT HORSE BATTERY"] {
            assert!(!token.is(other), "{other}");
        }
        assert!(!format!("{token:?}").contains("horse"));
    }

    #[test]
    fn a_token_that_can_be_guessed_is_refused() {
        let error = Token::new("hunter2").unwrap_err().to_string();
        assert!(error.contains("7 characters") && error.contains("openssl"), "{error}");
    }
}
