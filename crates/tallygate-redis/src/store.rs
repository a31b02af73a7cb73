//! The store itself: checks become one script call, its answer becomes a decision.

use std::str::FromStr;
use std::time::Duration;

use redis::Value;
use tallygate::{
    Check, CounterError, CounterName, CounterOp, CounterValue, Decision, Key, ManualClock, Source, Status, Store,
    StoreError, Timestamp,
};

use crate::connection::{Client, Request, Settings};
use crate::script::{self, Scripts, corrupt};
use crate::url::{StoreUrl, UrlError};

/// Keeps states in Redis or Valkey: one server, a master watched by Sentinels, or a cluster.
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
pub struct RedisStore {
    pub(crate) client: Client,
    pub(crate) prefix: String,
    scripts: Scripts,
    clock: Option<ManualClock>,
}

/// Waits are cut to this: nobody means longer ones.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Whether checks are charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Take,
    Look,
}

impl Verb {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Take => b"take",
            Self::Look => b"look",
        }
    }
}

/// The settings of a [`RedisStore`].
#[derive(Clone)]
#[must_use = "call `.connect().await`"]
pub struct RedisStoreBuilder {
    url: String,
    prefix: String,
    settings: Settings,
    clock: Option<ManualClock>,
}

/// Why there is no store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is wrong.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The prefix cannot begin a key.
    #[error("`{prefix}` cannot begin a key: use 1 to 64 letters, digits, `-`, `_`, `.` or `/`")]
    Prefix {
        /// What was asked.
        prefix: String,
    },
    /// The server cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl RedisStore {
    /// Connects with the default settings; see [`StoreUrl`] for the forms of the URL.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect().await
    }

    /// A store with other settings.
    pub fn builder(url: &str) -> RedisStoreBuilder {
        RedisStoreBuilder {
            url: url.to_owned(),
            prefix: "tallygate".to_owned(),
            settings: Settings::default(),
            clock: None,
        }
    }

    fn key(&self, check: &Check<'_>) -> String {
        check.key.encode(&self.prefix, check.limit.algorithm().kind())
    }

    /// Decides checks that share a slot.
    async fn decide(&self, verb: Verb, checks: &[&Check<'_>]) -> Result<Decision, StoreError> {
        let mut args = Vec::with_capacity(4 + checks.len());
        let script = match (verb, checks) {
            (Verb::Take, [check]) => self.scripts.check(check.limit.algorithm()),
            _ => {
                args.push(verb.name().to_vec());
                args.push(script::kinds(checks));
                &self.scripts.check_all
            }
        };
        args.extend(checks.iter().map(|check| script::pack(check)));
        args.extend(self.time());
        let keys: Vec<String> = checks.iter().map(|check| self.key(check)).collect();
        let reply = self
            .client
            .run(script, &keys, &args, self.client.default_deadline())
            .await
            .map_err(|error| naming(error, &keys))?;
        script::read_decision(&reply, checks.iter().map(|check| check.limit))
    }

    async fn give_back(&self, check: &Check<'_>, charged_at: Option<Timestamp>) -> Result<u64, StoreError> {
        let charged_at = charged_at.map_or(String::new(), |at| at.as_micros().to_string());
        self.run_refund("refund", check, charged_at).await
    }

    async fn run_refund(&self, verb: &str, check: &Check<'_>, charged_at: String) -> Result<u64, StoreError> {
        let kind = script::kinds(&[check]);
        let mut args = vec![verb.as_bytes().to_vec(), kind, script::pack(check), charged_at.into_bytes()];
        args.extend(self.time());
        let keys = [self.key(check)];
        let reply = self
            .client
            .run(&self.scripts.refund, &keys, &args, self.client.default_deadline())
            .await
            .map_err(|error| naming(error, &keys))?;
        script::read_number(&reply)
    }

    /// What the scripts of the tests take for the time.
    fn time(&self) -> impl Iterator<Item = Vec<u8>> {
        self.clock.iter().flat_map(script::time_of)
    }

    /// The checks by slot, each group with the places its checks have in the call.
    fn groups<'c>(&self, checks: &'c [Check<'c>]) -> Vec<Vec<(usize, &'c Check<'c>)>> {
        let mut groups: Vec<(String, Vec<(usize, &Check<'_>)>)> = Vec::new();
        for (place, check) in checks.iter().enumerate() {
            let key = self.key(check);
            match groups.iter_mut().find(|(other, _)| self.client.same_slot(other.as_bytes(), key.as_bytes())) {
                Some((_, group)) => group.push((place, check)),
                None => groups.push((key, vec![(place, check)])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    async fn decide_all(&self, verb: Verb, checks: &[Check<'_>]) -> Result<Decision, StoreError> {
        let groups = self.groups(checks);
        if let [group] = groups.as_slice() {
            let group: Vec<&Check<'_>> = group.iter().map(|(_, check)| *check).collect();
            return self.decide(verb, &group).await;
        }
        self.decide_split(verb, checks.len(), &groups).await
    }

    /// Charges the groups one after the other; the first that is denied ends it, and what was charged is given back. In
    /// between too much is charged, never too little.
    async fn decide_split(
        &self,
        verb: Verb,
        count: usize,
        groups: &[Vec<(usize, &Check<'_>)>],
    ) -> Result<Decision, StoreError> {
        let mut statuses: Vec<Option<Status>> = vec![None; count];
        // Each group is decided by the clock of its own server; the earliest is the one no refund can profit from.
        let mut decided_at: Option<Timestamp> = None;
        let mut charged: Vec<(usize, &Check<'_>, Timestamp)> = Vec::new();
        let mut verb = verb;
        for group in groups {
            let asked: Vec<&Check<'_>> = group.iter().map(|(_, check)| *check).collect();
            let decision = match self.decide(verb, &asked).await {
                Ok(decision) => decision,
                Err(error) => {
                    self.undo(&charged, &mut statuses).await;
                    return Err(error);
                }
            };
            let at = decision.decided_at();
            decided_at = Some(decided_at.map_or(at, |earliest| earliest.min(at)));
            for ((place, check), status) in group.iter().zip(decision.statuses()) {
                statuses[*place] = Some(*status);
                if verb == Verb::Take && decision.allowed() {
                    charged.push((*place, *check, at));
                }
            }
            if verb == Verb::Take && !decision.allowed() {
                self.undo(&charged, &mut statuses).await;
                charged.clear();
                verb = Verb::Look;
            }
        }
        let statuses = statuses.into_iter().flatten().collect();
        let decided_at = decided_at.unwrap_or(Timestamp::from_micros(0));
        Ok(Decision::from_statuses(statuses, Source::Store, decided_at).into_split())
    }

    /// Gives back what a split call charged. What cannot be given back stays charged until it stops counting.
    async fn undo(&self, charged: &[(usize, &Check<'_>, Timestamp)], statuses: &mut [Option<Status>]) {
        for (place, check, at) in charged {
            let given = self.give_back(check, Some(*at)).await.unwrap_or(0);
            if let Some(status) = &mut statuses[*place] {
                *status = status.with_given_back(given);
            }
        }
    }

    /// Finds out now, by name, which commands the server does not let us run, and not on the first call that needs one.
    async fn rehearse(&self) -> Result<(), StoreError> {
        // EVAL is needed only where a script is unknown: after a restart, when nobody wants to learn that it is forbidden.
        for server in self.client.masters().await {
            let reply = server.send(Request::Command(redis::cmd("EVAL").arg("return 1").arg(0))).await;
            reply.map_err(|failure| failure.at(server.address()))?;
        }
        // In a cluster every server has rights of its own; as many keys as this are likely to meet all of them.
        let keys = if self.client.is_cluster() { 16 } else { 1 };
        for key in 0..keys {
            self.rehearse_at(&key.to_string()).await?;
        }
        Ok(())
    }

    async fn rehearse_at(&self, subject: &str) -> Result<(), StoreError> {
        let key = Key::new("rehearsal", subject).map_err(|error| corrupt(&error.to_string()))?;
        let no_args: [&str; 0] = [];
        let reply = self
            .client
            .run(&self.scripts.rehearse, &[key.encode(&self.prefix, "r")], &no_args, self.client.default_deadline())
            .await?;
        let Value::Array(refused) = reply else { return Err(corrupt(&format!("it answered {reply:?}"))) };
        let missing: Vec<String> = refused.iter().filter_map(command_name).map(|name| format!("+{name}")).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(StoreError::Refused {
            reason: "this user may not run some commands of the scripts".to_owned(),
            remedy: format!("add the missing rules: ACL SETUSER <user> {}", missing.join(" ")),
        })
    }
}

/// Says which keys to look at when a script could not read what it found.
fn naming(error: StoreError, keys: &[String]) -> StoreError {
    match error {
        StoreError::Corrupt { reason } => {
            let keys = keys.join(", ");
            corrupt(&format!("{reason} (look at {keys}: `reset` forgets a state, or delete the key)"))
        }
        other => other,
    }
}

fn command_name(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(name) => Some(String::from_utf8_lossy(name).into_owned()),
        _ => None,
    }
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // As it was written the URL may hold a password; as it is read it prints none.
        f.debug_struct("RedisStoreBuilder")
            .field("url", &StoreUrl::from_str(&self.url))
            .field("prefix", &self.prefix)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl RedisStoreBuilder {
    /// What every key begins with. `tallygate` unless said.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// How long a decision may take: connecting, waiting, redirections and retries included. 50 ms unless said.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline.min(LONGEST_WAIT);
        self
    }

    /// How many calls may be under way at once. 1024 unless said.
    pub fn in_flight(mut self, calls: usize) -> Self {
        self.settings.in_flight = calls;
        self
    }

    /// How long opening a connection may take. One second unless said.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout.min(LONGEST_WAIT);
        self
    }

    /// Decides by a clock that is moved by hand: for tests only, every client must share it.
    #[doc(hidden)]
    pub fn manual_clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// What is wrong with the URL or the prefix, if anything: all that no server needs to be asked for.
    pub fn validate(&self) -> Result<(), ConnectError> {
        StoreUrl::from_str(&self.url)?;
        self.validate_prefix()
    }

    pub(crate) fn validate_prefix(&self) -> Result<(), ConnectError> {
        check_prefix(&self.prefix)
    }

    /// Connects, and makes sure that the server can be used.
    pub async fn connect(self) -> Result<RedisStore, ConnectError> {
        let url = StoreUrl::from_str(&self.url)?;
        self.validate_prefix()?;
        let scripts = if self.clock.is_some() { Scripts::on_manual_clock() } else { Scripts::new() };
        let client = Client::connect(&url, self.settings).await?;
        let store = RedisStore { client, prefix: self.prefix, scripts, clock: self.clock };
        store.rehearse().await?;
        Ok(store)
    }
}

/// Nothing that a pattern, a hash tag or the parts of a key could trip over.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), ConnectError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    if prefix.is_empty() || prefix.len() > 64 || !prefix.bytes().all(plain) {
        return Err(ConnectError::Prefix { prefix: prefix.to_owned() });
    }
    Ok(())
}

impl Store for RedisStore {
    async fn check(&self, checks: &[Check<'_>]) -> Result<Decision, StoreError> {
        match checks {
            [check] => self.decide(Verb::Take, &[check]).await,
            _ => self.decide_all(Verb::Take, checks).await,
        }
    }

    async fn peek(&self, checks: &[Check<'_>]) -> Result<Decision, StoreError> {
        self.decide_all(Verb::Look, checks).await
    }

    async fn refund(&self, check: &Check<'_>, charged_at: Option<Timestamp>) -> Result<u64, StoreError> {
        self.give_back(check, charged_at).await
    }

    async fn reset(&self, check: &Check<'_>) -> Result<bool, StoreError> {
        Ok(self.run_refund("reset", check, String::new()).await? > 0)
    }

    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        let millis =
            |ttl: Option<Duration>| ttl.map_or(String::new(), |ttl| ttl.as_micros().div_ceil(1000).to_string());
        let (verb, delta, ttl) = match op {
            CounterOp::Add { delta, ttl } => ("add", delta.to_string(), millis(ttl)),
            CounterOp::AddFloat { delta, ttl } => ("add_float", format!("{delta:e}"), millis(ttl)),
            CounterOp::Get => ("get", String::new(), String::new()),
            CounterOp::Delete => ("delete", String::new(), String::new()),
        };
        let too_long = |_| CounterError::Name { bytes: name.as_str().len() };
        let key = Key::new("counter", name.as_str()).map_err(too_long)?;
        let key = key.encode(&self.prefix, "n");
        let reply = self
            .client
            .run(&self.scripts.counter, &[key], &[verb, &delta, &ttl], self.client.default_deadline())
            .await?;
        let (outcome, text) = match &reply {
            Value::Array(parts) => match parts.as_slice() {
                [Value::BulkString(outcome), Value::BulkString(text)] => (outcome, String::from_utf8_lossy(text)),
                _ => return Err(corrupt(&format!("it answered {reply:?}")).into()),
            },
            _ => return Err(corrupt(&format!("it answered {reply:?}")).into()),
        };
        // In the words of the embedded store, which writes fractions its own way.
        let told = || match CounterValue::from_text(&text) {
            Ok(CounterValue::Float(value)) => value.to_string(),
            _ => text.to_string(),
        };
        let delta = if let CounterOp::AddFloat { delta, .. } = op { delta.to_string() } else { delta };
        match outcome.as_slice() {
            // What is gone need not have been a number.
            b"ok" if op == CounterOp::Delete => Ok(CounterValue::from_text(&text).unwrap_or(CounterValue::Integer(0))),
            b"ok" => CounterValue::from_text(&text),
            b"overflow" => Err(CounterError::Overflow { value: told(), delta }),
            b"not_an_integer" => Err(CounterError::NotAnInteger { value: told() }),
            b"not_a_number" => Err(CounterError::NotANumber { value: text.into_owned() }),
            _ => Err(corrupt(&format!("it answered {reply:?}")).into()),
        }
    }
}
