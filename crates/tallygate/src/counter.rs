//! Atomic counters: numbers that many add to at once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::store::{Counters, StoreError};

/// One named number in a store. Absent means 0.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::{sync::Arc, time::Duration};
/// use tallygate::{Counter, MemoryStore};
///
/// let visits = Counter::new(Arc::new(MemoryStore::new()), "visits")?.expires_after(Duration::from_secs(3600))?;
/// assert_eq!(visits.incr().await?, 1);
/// assert_eq!(visits.decr_by(5).await?, -4);
/// assert_eq!(visits.get().await?.to_string(), "-4");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Counter<S> {
    store: Arc<S>,
    name: CounterName,
    ttl: Option<Duration>,
}

/// The name of a counter: 1 to 1024 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CounterName(String);

/// What to do with a counter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CounterOp {
    /// Add a whole number.
    Add {
        /// How much; may be negative.
        delta: i64,
        /// How long the counter lives, if this call creates it.
        ttl: Option<Duration>,
    },
    /// Add a number with a fraction.
    AddFloat {
        /// How much; may be negative, must be finite.
        delta: f64,
        /// How long the counter lives, if this call creates it.
        ttl: Option<Duration>,
    },
    /// Read it.
    Get,
    /// Forget it; answers what it was.
    Delete,
}

/// What a counter holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CounterValue {
    /// A whole number.
    Integer(i64),
    /// A number with a fraction, or one beyond the whole numbers.
    Float(f64),
}

/// Why a counter did not do what was asked. In every case it holds what it held before.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CounterError {
    /// The name is empty or too long.
    #[error("a counter's name has 1 to 1024 bytes; this one has {0}")]
    Name(usize),
    /// The time to live is zero or beyond a hundred years.
    #[error("a counter cannot live for {0:?}: use 1 ms to 100 years")]
    Ttl(Duration),
    /// The sum would leave the range of 64-bit integers, or of floating-point numbers.
    #[error("adding {delta} to {value} would overflow; the counter is unchanged")]
    Overflow {
        /// What it holds.
        value: String,
        /// What was to be added.
        delta: String,
    },
    /// A whole number was to be added to this, which is none.
    #[error("the counter holds {0}, which is no integer; add to it with incr_by_float, or delete it")]
    NotAnInteger(String),
    /// What is kept under the counter's name is not a number at all, but this.
    #[error("the counter holds `{0}`, which is no number; delete it")]
    NotANumber(String),
    /// The number to add is infinite or not a number.
    #[error("{0} cannot be added to a counter: it must be finite")]
    NotFinite(f64),
    /// The store could not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<S: Counters> Counter<S> {
    /// The counter called `name`.
    pub fn new(store: Arc<S>, name: impl Into<String>) -> Result<Self, CounterError> {
        Ok(Self { store, name: CounterName::new(name)?, ttl: None })
    }

    /// Sets how long the counter lives from the call that creates it; later calls do not prolong it. Without this it
    /// lives until it is deleted.
    pub fn expires_after(mut self, ttl: Duration) -> Result<Self, CounterError> {
        let range = Duration::from_millis(1)..=Duration::from_secs(100 * 365 * 86_400);
        if !range.contains(&ttl) {
            return Err(CounterError::Ttl(ttl));
        }
        self.ttl = Some(ttl);
        Ok(self)
    }

    /// Adds one; answers the sum.
    pub async fn incr(&self) -> Result<i64, CounterError> {
        self.incr_by(1).await
    }

    /// Adds `delta`; answers the sum.
    pub async fn incr_by(&self, delta: i64) -> Result<i64, CounterError> {
        match self.store.count(&self.name, CounterOp::Add { delta, ttl: self.ttl }).await? {
            CounterValue::Integer(sum) => Ok(sum),
            CounterValue::Float(sum) => Err(CounterError::NotAnInteger(sum.to_string())),
        }
    }

    /// Takes one off; answers the sum.
    pub async fn decr(&self) -> Result<i64, CounterError> {
        self.incr_by(-1).await
    }

    /// Takes `delta` off; answers the sum.
    pub async fn decr_by(&self, delta: i64) -> Result<i64, CounterError> {
        let Some(negated) = delta.checked_neg() else {
            let delta = delta.unsigned_abs().to_string();
            return Err(CounterError::Overflow { value: "the counter".to_owned(), delta });
        };
        self.incr_by(negated).await
    }

    /// Adds `delta`, which may have a fraction; answers the sum.
    pub async fn incr_by_float(&self, delta: f64) -> Result<f64, CounterError> {
        if !delta.is_finite() {
            return Err(CounterError::NotFinite(delta));
        }
        Ok(self.store.count(&self.name, CounterOp::AddFloat { delta, ttl: self.ttl }).await?.as_f64())
    }

    /// What it holds; 0 if it does not exist.
    pub async fn get(&self) -> Result<CounterValue, CounterError> {
        self.store.count(&self.name, CounterOp::Get).await
    }

    /// Forgets it; answers what it held.
    pub async fn delete(&self) -> Result<CounterValue, CounterError> {
        self.store.count(&self.name, CounterOp::Delete).await
    }
}

impl CounterName {
    /// Checks the length.
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
    /// As a floating-point number.
    #[expect(clippy::cast_precision_loss, reason = "a float sum is computed in doubles in both stores")]
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    /// The sum, or why there is none.
    pub(crate) fn add(self, delta: i64) -> Result<Self, CounterError> {
        match self {
            Self::Integer(value) => value
                .checked_add(delta)
                .map(Self::Integer)
                .ok_or_else(|| CounterError::Overflow { value: value.to_string(), delta: delta.to_string() }),
            Self::Float(value) => Err(CounterError::NotAnInteger(value.to_string())),
        }
    }

    /// The sum, or why there is none.
    pub(crate) fn add_float(self, delta: f64) -> Result<Self, CounterError> {
        let sum = self.as_f64() + delta;
        if !sum.is_finite() {
            return Err(CounterError::Overflow { value: self.to_string(), delta: delta.to_string() });
        }
        Ok(Self::from_f64(sum))
    }

    /// What a shared store keeps as text.
    #[doc(hidden)]
    pub fn from_text(text: &str) -> Result<Self, CounterError> {
        if let Ok(value) = text.parse() {
            return Ok(Self::Integer(value));
        }
        match text.parse() {
            Ok(value) if f64::is_finite(value) => Ok(Self::Float(value)),
            _ => Err(CounterError::NotANumber(text.to_owned())),
        }
    }

    /// A whole number as such, if 17 digits write it: what the shared store keeps as text follows the same rule.
    #[doc(hidden)]
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
