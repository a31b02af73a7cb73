//! Units that are reserved before a request is served, and settled by its response.

mod body;
mod decide;
mod future;
mod layer;
mod open;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request;
use http::{HeaderName, response};
use http_body::Frame;
use tallygate::hold::Learned;

pub use body::MeteredBody;
pub use future::ReserveFuture;
pub use layer::{ReserveLimit, ReserveLimited};

/// What a layer reserves for a request, and how it learns what was used.
///
/// Before the inner service is called, the estimate is reserved, and all rules are charged or none. Afterwards the hold is settled
/// with what was used, once, whatever happens:
///
/// - The response says what was used ([`settle_by_header`](Self::settle_by_header), [`settle_by`](Self::settle_by)): it is settled
///   before the response is passed on.
/// - The body says so ([`settle_by_size`](Self::settle_by_size), [`settle_by_frames`](Self::settle_by_frames)): it is settled when the
///   body ends, and when it is dropped before, with what has passed until then.
/// - Nobody says so, because the caller left before the response, the inner service failed or panicked, or the body was never read:
///   each rule does at once what its `on_abandon` says. It keeps what was reserved by default, or gives it back.
/// - [`count_if`](crate::RateLimit::count_if) says that the call does not count: the hold is cancelled.
///
/// If this process dies, or the store is unreachable then, `on_abandon` applies at the deadline of the hold.
#[derive(Clone)]
pub struct Reserve {
    estimate: Estimate,
    learned: Option<Arc<Learned>>,
    rules: Vec<String>,
    least: Option<u64>,
    ttl: Duration,
    sleep: Option<Sleep>,
    settle: SettleBy,
    cut: Option<Bytes>,
}

type Estimate = Arc<dyn Fn(&request::Parts) -> u64 + Send + Sync>;
type Sleep = Arc<dyn Fn(Duration) -> Sleeping + Send + Sync>;
type Sleeping = Pin<Box<dyn Future<Output = ()> + Send>>;
type Used = Arc<dyn Fn(&response::Parts) -> Option<u64> + Send + Sync>;
/// The units used so far, if they are known, after each frame.
type Meter = Box<dyn FnMut(&Frame<Bytes>) -> Option<u64> + Send>;

/// Where it is said what was used.
#[derive(Clone)]
enum SettleBy {
    /// Nowhere: what was reserved was used.
    Estimate,
    Response(Used),
    Size,
    Frames(Arc<dyn Fn(&response::Parts) -> Meter + Send + Sync>),
}

/// What was reserved for a request: an extension of it, for the inner service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved {
    units: u64,
}

impl Reserved {
    /// The units: the estimate or, with [`Reserve::at_least`], what was left.
    pub fn units(&self) -> u64 {
        self.units
    }
}

impl Reserve {
    /// Reserves an estimate, at least one unit. What is in the body of a request has to be read by a layer around this one, which
    /// puts the estimate into the extensions.
    #[must_use]
    pub fn units(estimate: impl Fn(&request::Parts) -> u64 + Send + Sync + 'static) -> Self {
        Self {
            estimate: Arc::new(estimate),
            learned: None,
            rules: Vec::new(),
            least: None,
            ttl: Duration::from_secs(60),
            sleep: None,
            settle: SettleBy::Estimate,
            cut: None,
        }
    }

    /// Reserves what 19 of 20 requests before have used at most, and settles teach it. Keep a clone: its
    /// [`figures`](Learned::figures) say how often it was too little.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tallygate::hold::Learned;
    /// use tallygate_tower::Reserve;
    ///
    /// // 500, until 20 responses have said what they used.
    /// let learned = Arc::new(Learned::from(500));
    /// let reserve = Reserve::learned(learned.clone()).of("tokens").settle_by_size();
    /// assert_eq!(learned.estimate(), 500);
    /// ```
    #[must_use]
    pub fn learned(learned: Arc<Learned>) -> Self {
        let estimate = Arc::clone(&learned);
        Self { learned: Some(learned), ..Self::units(move |_| estimate.estimate()) }
    }

    /// A rule or policy that the estimate is for; more can be added. All others take [`RateLimit::cost`](crate::RateLimit::cost), one
    /// by default, and keep it: a request is a request, however many tokens it used. Without this the estimate is for all.
    #[must_use]
    pub fn of(mut self, rule: impl Into<String>) -> Self {
        self.rules.push(rule.into());
        self
    }

    /// Reserves what is left if the estimate does not fit, as long as it is this much. The inner service finds the units in
    /// [`Reserved`], and has to keep to them.
    #[must_use]
    pub fn at_least(self, units: u64) -> Self {
        Self { least: Some(units.max(1)), ..self }
    }

    /// How long units are held. Defaults to a minute, and is never longer than all rules grant.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// Holds the units for as long as the response takes: they are extended whenever half of their time is over. `sleep` is the timer
    /// of your runtime, such as `tokio::time::sleep`. A body that nobody reads is not extended.
    #[must_use]
    pub fn extend<F>(self, sleep: impl Fn(Duration) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self { sleep: Some(Arc::new(move |time| Box::pin(sleep(time)))), ..self }
    }

    /// Settles by a number in a header of the response. A response without it has used what was reserved.
    #[must_use]
    pub fn settle_by_header(self, name: HeaderName) -> Self {
        self.settle_by(move |parts| parts.headers.get(&name)?.to_str().ok()?.trim().parse().ok())
    }

    /// Settles by what the head of the response says, such as an extension that the inner service has put there. With `None` it has
    /// used what was reserved.
    #[must_use]
    pub fn settle_by(self, used: impl Fn(&response::Parts) -> Option<u64> + Send + Sync + 'static) -> Self {
        Self { settle: SettleBy::Response(Arc::new(used)), ..self }
    }

    /// Settles by the bytes of the body that were passed on.
    #[must_use]
    pub fn settle_by_size(self) -> Self {
        Self { settle: SettleBy::Size, ..self }
    }

    /// Settles by the frames of the body, in parts while they pass. The closure is called with the head of each response, and returns
    /// a meter, which is called with each frame, and says how many units the response has used so far. The last number counts, but what was settled in parts
    /// stays settled. `None` is "not known yet": what ends so is abandoned.
    ///
    /// ```
    /// use tallygate_tower::Reserve;
    ///
    /// // One unit for each event of a stream.
    /// let reserve = Reserve::units(|_| 500).settle_by_frames(|_| {
    ///     let mut events = 0;
    ///     move |frame| {
    ///         let text = frame.data_ref().map_or("".into(), |data| String::from_utf8_lossy(data));
    ///         events += text.matches("data: ").count() as u64;
    ///         Some(events)
    ///     }
    /// });
    /// ```
    #[must_use]
    pub fn settle_by_frames<M>(self, meter: impl Fn(&response::Parts) -> M + Send + Sync + 'static) -> Self
    where
        M: FnMut(&Frame<Bytes>) -> Option<u64> + Send + 'static,
    {
        Self { settle: SettleBy::Frames(Arc::new(move |parts| Box::new(meter(parts)))), ..self }
    }

    /// Ends a body before the first frame with which it would use more than was reserved. `last` is sent instead of that frame, if it
    /// is not empty: say there that the stream was cut. All that was reserved is used then. Without this the rest is an [overrun](crate::Overrun).
    #[must_use]
    pub fn cut(self, last: impl Into<Bytes>) -> Self {
        Self { cut: Some(last.into()), ..self }
    }
}

impl fmt::Debug for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rules, least, ttl, .. } = self;
        let mut reserve = f.debug_struct("Reserve");
        reserve.field("rules", rules).field("at_least", least).field("ttl", ttl).finish_non_exhaustive()
    }
}
