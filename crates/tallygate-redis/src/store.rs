//! The store: a call becomes one run of a script, and its reply a decision.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;
use std::sync::Arc;

use redis::Value;
use tallygate::call::{Call, Effect, Verb};
use tallygate::clock::Timestamp;
use tallygate::hold::Reservation;
use tallygate::key::of_request;
use tallygate::policy::Mode;
use tallygate::store::StoreErrorKind;
use tallygate::{Check, Cost, Decision, Key, Store, StoreError};
use tokio::sync::oneshot;

use crate::builder::{ConnectError, RedisStoreBuilder};
use crate::coalesce::{Lanes, Questions, Turn};
use crate::common::Common;
use crate::connection::{Calls, Client, Deadline, Request};
use crate::holds;
use crate::scripts::{Needs, Scripts};
use crate::server_time::ServerTime;
use crate::split::Split;
use crate::wire::{self, Asked, corrupt};

/// Keeps states in Redis or Valkey: one server, a master monitored by Sentinels, or a cluster. Cheap to clone.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tallygate::{Check, Key, Limit, Limiter};
/// use tallygate_redis::RedisStore;
///
/// let limiter = Limiter::new(RedisStore::connect("redis://127.0.0.1:6379").await?);
/// let limit: Limit = "100/min".parse()?;
/// let decision = limiter.check(Check::new(Key::new("api", "user:42")?, &limit)).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) engine: Arc<Engine>,
}

/// Runs the scripts. Shared with the calls that outlive their callers.
pub(crate) struct Engine {
    pub(crate) client: Client,
    pub(crate) prefix: String,
    pub(crate) scripts: Scripts,
    /// Whether concurrent calls about one key share runs.
    pub(crate) coalesces: bool,
    pub(crate) lanes: Lanes,
    pub(crate) server_time: ServerTime,
    #[cfg(feature = "manual-clock")]
    pub(crate) clock: Option<tallygate::clock::ManualClock>,
}

impl RedisStore {
    /// Connects with default settings. See [`StoreUrl`](crate::StoreUrl) for the forms of the URL.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect().await
    }

    /// Starts a store with other settings.
    pub fn builder(url: &str) -> RedisStoreBuilder {
        RedisStoreBuilder::new(url)
    }
}

impl Store for RedisStore {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        let deadline = self.engine.client.default_deadline();
        let deadline = call.deadline().map_or(deadline, |until| Deadline::until(until).earlier(deadline));
        match call.plain_check() {
            Some(check) => self.check_one(check, deadline).await,
            None => self.call_any(call, deadline).await,
        }
    }
}

impl RedisStore {
    /// The common call: one check, charged if it fits.
    async fn check_one(&self, check: &Check<'_>, deadline: Deadline) -> Result<Decision, StoreError> {
        let engine = &self.engine;
        let key = check.key.encode(&engine.prefix, check.limit.algorithm().kind());
        let _run = match engine.turn(std::iter::once(key.as_str())) {
            Turn::Run(guard) => guard,
            Turn::Wait(lane) => {
                // Alone, a check decides its call whatever its mode.
                let asked = vec![Asked { mode: Mode::Enforce, ..Asked::with_key(check, key) }];
                return engine.wait_in(lane, Questions::new(Verb::Check, asked), deadline).await;
            }
        };
        engine.check_one(check, key, deadline).await
    }

    async fn call_any(&self, call: &Call<'_>, deadline: Deadline) -> Result<Decision, StoreError> {
        let engine = &self.engine;
        let asked: Vec<Asked> = call.checks().iter().map(|check| Asked::new(check, &engine.prefix)).collect();
        let partial = call.takes_partial_answers();
        let (at_most, reservation) =
            (call.takes_at_most().map(Cost::get), call.reservation().map(|asked| Box::new(*asked)));
        let (verb, denied) = (call.verb(), call.is_denied());
        let request = call.request().cloned().map(Box::new);
        let call = Questions { denied, at_most, reservation, request, ..Questions::new(verb, asked) };
        let asked = &call.asked;
        let together = asked.iter().all(|other| engine.client.same_slot(asked[0].key.as_bytes(), other.key.as_bytes()));
        if together && call.verb.effect() != Effect::GivesBack {
            return engine.coalesced(call, deadline).await;
        }
        // A call that gives back, or may have to, is finished even if the caller is gone.
        let (sender, delivery) = oneshot::channel();
        let split = Split { engine: Arc::clone(engine), call, partial, together, deadline };
        tokio::spawn(split.run(sender));
        let lost = |_| StoreError::ambiguous("the runtime is shutting down".to_owned());
        delivery.await.map_err(lost)?.receive()
    }
}

impl Engine {
    /// Whether a call runs now, or with others about the same keys.
    fn turn<'k>(self: &Arc<Self>, keys: impl Iterator<Item = &'k str> + Clone) -> Turn {
        if self.coalesces { Lanes::enter(self, keys) } else { Turn::Run(None) }
    }

    /// Any call whose states share a slot, with others about the same keys if there are any.
    pub(crate) async fn coalesced(
        self: &Arc<Self>,
        call: Questions,
        deadline: Deadline,
    ) -> Result<Decision, StoreError> {
        if call.verb.effect() != Effect::Charges {
            return self.run(&call, deadline).await;
        }
        match self.turn(call.asked.iter().map(|asked| asked.key.as_str())) {
            Turn::Run(_guard) => self.run(&call, deadline).await,
            Turn::Wait(lane) => self.wait_in(lane, call, deadline).await,
        }
    }

    async fn check_one(&self, check: &Check<'_>, key: String, deadline: Deadline) -> Result<Decision, StoreError> {
        let script = self.scripts.check(check.limit.algorithm());
        let keys = [key];
        let ask = async || {
            let args = self.with_time([wire::pack(check.cost.get(), check.limit, || self.server_time.about())]);
            self.client.run(script, &keys, &args, deadline).await
        };
        let mut reply = ask().await;
        if self.must_ask_again(&reply) {
            reply = ask().await;
        }
        if reply.as_ref().is_ok_and(wire::is_marked) {
            let [key] = keys;
            let asked = vec![Asked { mode: Mode::Enforce, ..Asked::with_key(check, key) }];
            return self.run(&Questions { marked: true, ..Questions::new(Verb::Check, asked) }, deadline).await;
        }
        reply.and_then(|reply| wire::read_check(&reply, check)).map_err(|error| naming(error, &keys))
    }

    /// Any call whose states share a slot.
    pub(crate) async fn run(&self, call: &Questions, deadline: Deadline) -> Result<Decision, StoreError> {
        let mut reply = self.run_script(&[call], deadline).await;
        let marked = Questions { marked: true, ..call.clone() };
        let mut call = call;
        // It has written nothing each time. Around the instant at which a limit changes it may be asked once too early and once too late.
        for _ in 0..3 {
            if reply.as_ref().is_ok_and(wire::is_marked) && !call.looks_at_holds() {
                call = &marked;
            } else if !self.must_ask_again(&reply) {
                break;
            }
            reply = self.run_script(&[call], deadline).await;
        }
        decision(reply, call)
    }

    /// Several calls whose states share a slot, decided one after the other.
    pub(crate) async fn run_all(&self, calls: &[&Questions], deadline: Deadline) -> Vec<Result<Decision, StoreError>> {
        if let [call] = calls {
            return vec![self.run(call, deadline).await];
        }
        let mut decisions = Vec::with_capacity(calls.len());
        for (reply, call) in self.replies(calls, deadline).await.into_iter().zip(calls) {
            let marked = reply.as_ref().is_ok_and(wire::is_marked) && !call.looks_at_holds();
            decisions.push(match marked || self.must_ask_again(&reply) {
                true => self.run(&Questions { marked, ..(*call).clone() }, deadline).await,
                false => decision(reply, call),
            });
        }
        decisions
    }

    /// Whether a script was not sent the numbers of the server's time: the windows of a calendar, or a limit that has changed. It has
    /// written nothing then, and is asked once more, with those of that time.
    fn must_ask_again(&self, reply: &Result<Value, StoreError>) -> bool {
        let outside = reply.as_ref().ok().and_then(wire::outside);
        if let Some(now) = outside {
            self.server_time.learn(now);
        }
        outside.is_some()
    }

    /// The reply to each call of one run.
    async fn replies(&self, calls: &[&Questions], deadline: Deadline) -> Vec<Result<Value, StoreError>> {
        match self.run_script(calls, deadline).await {
            Ok(reply) if calls.len() == 1 => vec![Ok(reply)],
            Ok(Value::Array(replies)) if replies.len() == calls.len() => replies.into_iter().map(Ok).collect(),
            // A state that cannot be read, said of all.
            Ok(Value::BulkString(text)) => vec![Ok(Value::BulkString(text)); calls.len()],
            Ok(other) => vec![Err(corrupt(&format!("it answered {other:?} to {} calls", calls.len()))); calls.len()],
            Err(error) => vec![Err(error); calls.len()],
        }
    }

    async fn run_script(&self, calls: &[&Questions], deadline: Deadline) -> Result<Value, StoreError> {
        // One reading of the clock for all, and none without a calendar.
        let about = OnceCell::new();
        let about = || *about.get_or_init(|| self.server_time.about());
        let (needs, keys, args) = match Common::of(calls) {
            Some(common) => (Needs::common(common.kind()), common.keys(), vec![common.argument(about)]),
            None => (Needs::of(calls), keys(calls), arguments(calls, about)),
        };
        let args = self.with_time(args);
        let keys: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
        let gives_back = calls.iter().all(|call| call.verb.effect() == Effect::GivesBack);
        let effect = if gives_back { Effect::GivesBack } else { Effect::Charges };
        let repeatable = calls.iter().all(|call| call.is_repeatable());
        let of = Calls { count: calls.len(), effect, repeatable };
        self.client.run_of(of, self.scripts.call(needs), &keys, &args, deadline).await
    }

    /// The arguments, and the time of a manual clock: seconds and microseconds, as `TIME` replies.
    pub(crate) fn with_time(&self, args: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
        let args = args.into_iter();
        #[cfg(feature = "manual-clock")]
        let args = args.chain(self.clock.iter().flat_map(|clock| {
            let now = clock.now().as_micros();
            [now / 1_000_000, now % 1_000_000].map(|part| part.to_string().into_bytes())
        }));
        args.collect()
    }

    /// The positions of checks, grouped by slot.
    pub(crate) fn by_slot(&self, asked: &[Asked], places: &[usize]) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for &place in places {
            let key = asked[place].key.as_bytes();
            let same = |group: &&mut Vec<usize>| self.client.same_slot(asked[group[0]].key.as_bytes(), key);
            match groups.iter_mut().find(same) {
                Some(group) => group.push(place),
                None => groups.push(vec![place]),
            }
        }
        groups
    }

    /// Finds out on connecting which commands the user may not run, instead of on the first call that needs one.
    pub(crate) async fn check_permissions(&self) -> Result<(), StoreError> {
        // EVAL is needed only when a script is unknown, for example after a restart. Check now that it is permitted.
        let mut eval = redis::cmd("EVAL");
        eval.arg("return 1").arg(0);
        for server in self.client.masters().await {
            server
                .send(Request::Command(&eval), Deadline::for_command())
                .await
                .map_err(|failure| failure.at(server.address()))?;
        }
        // In a cluster every server has its own ACL. This many keys are likely to reach all of them.
        let keys = if self.client.is_cluster() { 16 } else { 1 };
        for subject in 0..keys {
            self.check_permissions_at(&subject.to_string()).await?;
        }
        Ok(())
    }

    async fn check_permissions_at(&self, subject: &str) -> Result<(), StoreError> {
        let key = Key::new("permissions", subject).map_err(|error| corrupt(&error.to_string()))?;
        let (keys, script) = ([key.encode(&self.prefix, "r")], &self.scripts.check_permissions);
        let reply = self.client.run::<_, &str>(script, &keys, &[], self.client.connect_deadline()).await?;
        let refused: Vec<String> =
            redis::from_redis_value(reply).map_err(|error| corrupt(&format!("the reply is invalid: {error}")))?;
        let missing: Vec<String> = refused.iter().map(|name| format!("+{name}")).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(StoreError::refused(
            "the user may not run some commands of the scripts".to_owned(),
            format!("add the missing rules: ACL SETUSER <user> {}", missing.join(" ")),
        ))
    }
}

fn decision(reply: Result<Value, StoreError>, call: &Questions) -> Result<Decision, StoreError> {
    reply.and_then(|reply| wire::read_call(&reply, call)).map_err(|error| naming(error, &keys_of(call)))
}

/// The keys of calls, as `call.lua` takes them.
fn keys<'c>(calls: &[&'c Questions]) -> Vec<Cow<'c, str>> {
    let mut keys = Vec::new();
    for call in calls {
        keys.extend(call.asked.iter().map(|asked| Cow::from(&asked.key)));
        if call.looks_at_holds() {
            keys.extend(call.asked.iter().map(|asked| Cow::from(asked.opens())));
        }
        let record = |reservation: &Reservation| Cow::from(holds::record(&call.asked[0].key, reservation.id()));
        keys.extend(call.reservation.as_deref().map(record));
        keys.extend(call.request().map(|request| Cow::from(of_request(&call.asked[0].key, &request.name()))));
    }
    keys
}

/// The arguments, as `call.lua` takes them.
fn arguments(calls: &[&Questions], about: impl Fn() -> u64) -> Vec<Vec<u8>> {
    let mut args = vec![calls.len().to_string().into_bytes()];
    for call in calls {
        let changes = call.asked.iter().any(|asked| asked.changes.is_some());
        let now = if changes { about() } else { 0 };
        let asked = wire::all_at(&call.asked, Timestamp::from_micros(now), call.verb);
        let mut heads = Vec::with_capacity(13 * asked.len());
        asked.iter().for_each(|asked| asked.head(&mut heads));
        let looks = if call.looks_at_holds() { b'h' } else { b'-' };
        let standing = match (call.denied, call.request()) {
            (true, _) => b'1',
            (false, Some(_)) => b'i',
            (false, None) => b'0',
        };
        let valid = wire::valid(&asked, &about);
        let calendars = if valid.is_some() { b'c' } else { b'-' };
        let mut terms = vec![standing, looks, calendars];
        terms.extend(call.at_most.iter().flat_map(|&most| wire::double(most)));
        if let Some(reservation) = &call.reservation {
            terms.extend(reservation.id().as_bytes());
            terms.extend([reservation.ttl_micros(), reservation.life_micros()].into_iter().flat_map(wire::double));
            asked.iter().for_each(|asked| asked.grants(&mut terms));
        }
        terms.extend(valid.into_iter().flatten().flat_map(wire::double));
        if let Some(request) = call.request() {
            terms.extend(request.fingerprint());
            terms.extend(wire::double(request.kept_micros()));
        }
        args.extend([call.verb.name().as_bytes().to_vec(), terms, heads]);
        args.extend(asked.iter().map(|asked| wire::pack(asked.cost, &asked.limit, &about)));
    }
    args
}

fn keys_of(call: &Questions) -> Vec<&str> {
    call.asked.iter().map(|asked| asked.key.as_str()).collect()
}

/// Names the keys to inspect when a script could not read a state, by a pattern: the text ends up in logs, and the hash tag of
/// a key is its subject.
pub(crate) fn naming(error: StoreError, keys: &[impl AsRef<str>]) -> StoreError {
    if error.kind() != StoreErrorKind::Corrupt {
        return error;
    }
    let pattern = |key: &str| match (key.find('{'), key.find('}')) {
        (Some(open), Some(close)) => format!("{}*{}", &key[..=open], &key[close..]),
        _ => key.to_owned(),
    };
    let keys: Vec<String> = keys.iter().map(|key| pattern(key.as_ref())).collect();
    let (reason, keys) = (error.reason(), keys.join(", "));
    corrupt(&format!("{reason} (inspect the key of the subject among {keys}: reset the state, or delete the key)"))
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("prefix", &self.engine.prefix).finish_non_exhaustive()
    }
}
