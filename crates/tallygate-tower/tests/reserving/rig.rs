//! A service under limits that reserve, and what its store says.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::hold::Holds;
use tallygate::{Check, Key, Limit, Limiter, MemoryStore};
use tallygate_tower::{Caller, HoldTerms, MeteredBody, RateLimit, Reserve, ReserveLimit, Rule};
use tower::{Layer, ServiceExt, service_fn};

/// The capacity of both limits.
pub const REQUESTS: u64 = 10;
pub const TOKENS: u64 = 1000;

/// A body of several frames, which may fail at its end.
#[derive(Debug, Default)]
pub struct Frames {
    pub frames: Vec<&'static str>,
    pub fails: bool,
}

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        if !self.frames.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(self.frames.remove(0).as_bytes())))));
        }
        Poll::Ready(self.fails.then_some(Err("the upstream died")))
    }
}

/// A limit of requests and one of tokens, for everybody.
pub struct Rig<S: Holds + 'static = MemoryStore> {
    pub limiter: Limiter<S>,
    pub clock: ManualClock,
    limits: [(Limit, Arc<Mutex<String>>, &'static str); 2],
    pub layer: ReserveLimit<Arc<S>>,
}

pub fn memory() -> (MemoryStore, ManualClock) {
    let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
    (MemoryStore::builder().clock(clock.clone()).build(), clock)
}

pub fn rig(terms: HoldTerms, reserve: Reserve) -> Rig {
    let (store, clock) = memory();
    Rig::over(store, clock, terms, |layer| layer, reserve)
}

impl<S: Holds + 'static> Rig<S> {
    pub fn over(
        store: S,
        clock: ManualClock,
        terms: HoldTerms,
        change: impl FnOnce(RateLimit<Arc<S>>) -> RateLimit<Arc<S>>,
        reserve: Reserve,
    ) -> Self {
        Self::of([REQUESTS, TOKENS], store, clock, terms, change, reserve)
    }

    /// The same with other capacities.
    pub fn of(
        [requests, tokens]: [u64; 2],
        store: S,
        clock: ManualClock,
        terms: HoldTerms,
        change: impl FnOnce(RateLimit<Arc<S>>) -> RateLimit<Arc<S>>,
        reserve: Reserve,
    ) -> Self {
        let limit = |amount: u64| format!("{amount}/day fixed_window").parse::<Limit>().unwrap();
        let subject = Arc::new(Mutex::new(String::new()));
        let limits = [
            (limit(requests), Arc::clone(&subject), "http/requests"),
            (limit(tokens), Arc::clone(&subject), "http/tokens"),
        ];
        let limiter = Limiter::new(store);
        let rule = |name: &str, limit: &Limit| Rule::new(name, limit).unwrap().by(Caller::everybody()).holds(terms);
        let layer = RateLimit::new().rule(rule("requests", &limits[0].0)).rule(rule("tokens", &limits[1].0));
        let layer = layer.store(Arc::clone(limiter.store())).observe(move |verdict| {
            verdict.rulings()[0].subject().clone_into(&mut subject.lock().unwrap());
        });
        Self { limiter, clock, limits, layer: change(layer).reserve(reserve) }
    }

    /// What is left, held and owed of requests, and of tokens.
    pub async fn left(&self) -> [[u64; 3]; 2] {
        let mut left = [[0; 3]; 2];
        for (place, (limit, subject, policy)) in self.limits.iter().enumerate() {
            let subject = subject.lock().unwrap().clone();
            let check = Check::new(Key::new(policy, &subject).unwrap(), limit);
            let status = self.limiter.peek(check).await.unwrap().binding();
            left[place] = [status.remaining(), status.held(), status.debt()];
        }
        left
    }

    /// Tokens left, with nothing held, nothing owed, and one request used.
    pub async fn settled(&self, tokens: u64) {
        assert_eq!(self.left().await, [[REQUESTS - 1, 0, 0], [tokens, 0, 0]]);
    }

    /// Sends a request to a service that answers so.
    pub async fn send(
        &self,
        serve: impl Fn(&Request<()>) -> Response<Frames> + Clone + Send + 'static,
    ) -> Response<MeteredBody<Frames, Arc<S>>> {
        let serve = move |request: Request<()>| {
            let response = serve(&request);
            async move { Ok::<_, Infallible>(response) }
        };
        self.layer.layer(service_fn(serve)).oneshot(Request::new(())).await.unwrap()
    }
}

pub fn frames(frames: &[&'static str]) -> Response<Frames> {
    Response::new(Frames { frames: frames.to_vec(), fails: false })
}

/// The text of a body that ends well.
pub async fn text<S: Holds + 'static>(response: Response<MeteredBody<Frames, S>>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// Reserves a number for tokens.
pub fn tokens(units: u64) -> Reserve {
    Reserve::units(move |_| units).of("tokens").ttl(Duration::from_secs(60))
}

/// Counts the words of frames, as tokens.
pub fn by_words(reserve: Reserve) -> Reserve {
    reserve.settle_by_frames(|_| {
        let mut words = 0;
        move |frame| {
            words += frame.data_ref().map_or(0, |data| data.split(|byte| *byte == b' ').count() as u64);
            Some(words)
        }
    })
}
