//! A limit, or the text of one.

use super::{Limit, LimitError};

/// A [`Limit`], or its text, such as `"60/min"` or `"10/s burst 50"`.
///
/// ```
/// use tallygate::{Limit, Limiter};
///
/// let limiter = Limiter::default();
/// let api = limiter.limit("api", "60/min")?;
/// let limit: Limit = "60/min".parse()?;
/// let same = limiter.limit("api", limit)?;
///
/// // A text that is not a limit is an error, which says how a limit is written.
/// assert!(limiter.limit("api", "60 a minute").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait IntoLimit {
    /// The limit, or what is wrong with its text.
    fn into_limit(self) -> Result<Limit, LimitError>;
}

impl IntoLimit for Limit {
    fn into_limit(self) -> Result<Limit, LimitError> {
        Ok(self)
    }
}

impl IntoLimit for &Limit {
    fn into_limit(self) -> Result<Limit, LimitError> {
        Ok(self.clone())
    }
}

impl IntoLimit for &str {
    fn into_limit(self) -> Result<Limit, LimitError> {
        self.parse()
    }
}

impl IntoLimit for &String {
    fn into_limit(self) -> Result<Limit, LimitError> {
        self.parse()
    }
}

impl IntoLimit for String {
    fn into_limit(self) -> Result<Limit, LimitError> {
        self.parse()
    }
}
