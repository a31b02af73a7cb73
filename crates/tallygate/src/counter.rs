//! Atomic counters.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::store::StoreError;

/// A named number in a store. A counter that does not exist reads as 0.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tallygate::{Counter, MemoryStore};
///
/// let visits = Counter::new(MemoryStore::new(), "visits")?.expires_after(Duration::from_secs(3600))?;
/// assert_eq!(visits.incr().await?, 1);
/// assert_eq!(visits.decr_by(5).await?, -4);
/// assert_eq!(visits.get().await?.to_string(), "-4");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Counter<S> {
    store: S,
    name: CounterName,
    ttl: Option<Duration>,
}

/// The name of a counter: 1 to 1024 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CounterName(String);

/// An operation on a counter.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum CounterOp {
    /// Adds a whole number.
    Add {
        /// The number to add; may be negative.
        delta: i64,
        /// The TTL of the counter, if this call creates it.
        ttl: Option<Duration>,
    },
    /// Adds a floating-point number.
    AddFloat {
        /// The number to add; may be negative, must be finite.
        delta: f64,
        /// The TTL of the counter, if this call creates it.
        ttl: Option<Duration>,
    },
    /// Reads the counter.
    Get,
    /// Deletes the counter and returns its last value.
    Delete,
}

/// The value of a counter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CounterValue {
    /// A whole number.
    Integer(i64),
    /// A number with a fraction, or beyond the range of `i64`.
    Float(f64),
}

/// Keeps counters.
pub trait Counters: Send + Sync {
    /// Performs one operation on a counter. Returns its value, or for `Delete` the value it had.
    fn count(
        &self,
        name: &CounterName,
        op: CounterOp,
    ) -> impl Future<Output = Result<CounterValue, CounterError>> + Send;
}

impl<S: Counters> Counters for Arc<S> {
    fn count(
        &self,
        name: &CounterName,
        op: CounterOp,
    ) -> impl Future<Output = Result<CounterValue, CounterError>> + Send {
        (**self).count(name, op)
    }
}

/// The error of a counter operation. The counter is unchanged in every case.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CounterError {
    /// The name is empty or too long.
    #[error("a counter's name has 1 to 1024 bytes; this one has {0}")]
    Name(usize),
    /// The TTL is zero or longer than a hundred years.
    #[error("invalid TTL of {0:?} for a counter: use 1 ms to 100 years")]
    Ttl(Duration),
    /// The sum would leave the range of 64-bit integers, or of floating-point numbers.
    #[error("adding {delta} to {value} would overflow; the counter is unchanged")]
    Overflow {
        /// The current value.
        value: String,
        /// The number to add.
        delta: String,
    },
    /// A whole number cannot be added to a value with a fraction.
    #[error("the counter holds {0}, which is not an integer: use incr_by_float, or delete the counter")]
    NotAnInteger(String),
    /// The key of the counter holds something that is not a number.
    #[error("the counter holds `{0}`, which is not a number: delete the counter")]
    NotANumber(String),
    /// The number to add is infinite or not a number.
    #[error("{0} cannot be added to a counter: it must be finite")]
    NotFinite(f64),
    /// The store could not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<S: Counters> Counter<S> {
    /// Creates a handle to the counter called `name`. Give it an `Arc` of a store, or a clone, to use the store elsewhere too.
    pub fn new(store: S, name: impl Into<String>) -> Result<Self, CounterError> {
        Ok(Self { store, name: CounterName::new(name)?, ttl: None })
    }

    /// Sets the TTL, counted from the call that creates the counter; later calls do not extend it. Without a TTL, the
    /// counter lives until it is deleted.
    pub fn expires_after(mut self, ttl: Duration) -> Result<Self, CounterError> {
        let range = Duration::from_millis(1)..=Duration::from_secs(100 * 365 * 86_400);
        if !range.contains(&ttl) {
            return Err(CounterError::Ttl(ttl));
        }
        self.ttl = Some(ttl);
        Ok(self)
    }

    /// Adds one and returns the sum.
    pub async fn incr(&self) -> Result<i64, CounterError> {
        self.incr_by(1).await
    }

    /// Adds `delta` and returns the sum.
    pub async fn incr_by(&self, delta: i64) -> Result<i64, CounterError> {
        match self.store.count(&self.name, CounterOp::Add { delta, ttl: self.ttl }).await? {
            CounterValue::Integer(sum) => Ok(sum),
            CounterValue::Float(sum) => Err(CounterError::NotAnInteger(sum.to_string())),
        }
    }

    /// Subtracts one and returns the difference.
    pub async fn decr(&self) -> Result<i64, CounterError> {
        self.incr_by(-1).await
    }

    /// Subtracts `delta` and returns the difference.
    pub async fn decr_by(&self, delta: i64) -> Result<i64, CounterError> {
        let Some(negated) = delta.checked_neg() else {
            let delta = delta.unsigned_abs().to_string();
            return Err(CounterError::Overflow { value: "the counter".to_owned(), delta });
        };
        self.incr_by(negated).await
    }

    /// Adds `delta`, which may have a fraction, and returns the sum.
    pub async fn incr_by_float(&self, delta: f64) -> Result<f64, CounterError> {
        if !delta.is_finite() {
            return Err(CounterError::NotFinite(delta));
        }
        Ok(self.store.count(&self.name, CounterOp::AddFloat { delta, ttl: self.ttl }).await?.as_f64())
    }

    /// Returns the value; 0 if the counter does not exist.
    pub async fn get(&self) -> Result<CounterValue, CounterError> {
        self.store.count(&self.name, CounterOp::Get).await
    }

    /// Deletes the counter and returns its last value.
    pub async fn delete(&self) -> Result<CounterValue, CounterError> {
        self.store.count(&self.name, CounterOp::Delete).await
    }
}

impl CounterName {
    /// Checks the length and creates the name.
    pub fn new(name: impl Into<String>) -> Result<Self, CounterError> {
        let name = name.into();
        match name.len() {
            1..=1024 => Ok(Self(name)),
            bytes => Err(CounterError::Name(bytes)),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl CounterValue {
    /// The value as a floating-point number.
    #[expect(clippy::cast_precision_loss, reason = "a float sum is computed in doubles in both stores")]
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    /// Returns the sum.
    pub(crate) fn add(self, delta: i64) -> Result<Self, CounterError> {
        match self {
            Self::Integer(value) => value
                .checked_add(delta)
                .map(Self::Integer)
                .ok_or_else(|| CounterError::Overflow { value: value.to_string(), delta: delta.to_string() }),
            Self::Float(value) => Err(CounterError::NotAnInteger(value.to_string())),
        }
    }

    /// Returns the sum.
    pub(crate) fn add_float(self, delta: f64) -> Result<Self, CounterError> {
        let sum = self.as_f64() + delta;
        if !sum.is_finite() {
            return Err(CounterError::Overflow { value: self.to_string(), delta: delta.to_string() });
        }
        Ok(Self::from_f64(sum))
    }

    /// Parses the text form kept by a shared store.
    pub fn from_text(text: &str) -> Result<Self, CounterError> {
        if let Ok(value) = text.parse() {
            return Ok(Self::Integer(value));
        }
        match text.parse() {
            Ok(value) if f64::is_finite(value) => Ok(Self::Float(value)),
            _ => Err(CounterError::NotANumber(text.to_owned())),
        }
    }

    /// A whole number of at most 17 digits is an integer. The text kept by the shared store follows the same rule.
    #[expect(clippy::cast_possible_truncation, reason = "below 10^17 every whole double is an i64")]
    pub fn from_f64(value: f64) -> Self {
        if value.fract() == 0.0 && value.abs() < 1e17 { Self::Integer(value as i64) } else { Self::Float(value) }
    }
}

impl fmt::Display for CounterValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
        }
    }
}
