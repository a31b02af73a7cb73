//! The scripts: the twins and the shell around them, and how questions and answers are written on the wire.

use std::borrow::Cow;

use redis::{Cmd, Value};
use tallygate::{Algorithm, Check, Decision, Limit, ManualClock, Source, Status, Statuses, StoreError, Timestamp};

macro_rules! lua {
    ($name:ident) => {
        include_str!(concat!("../lua/", stringify!($name), ".lua"))
    };
}

const CLOCK: &str = "redis.call('TIME')";
/// Milliseconds a state is kept beyond its end, for the rounding of clocks: a spent state means the same as none.
const SLACK: u32 = 1000;
/// What a twin gives back, in order.
const OUTPUTS: &str = "allowed, remaining, retry_after, reset_after, changed, given";

/// A Lua script and the digest a server knows it by.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    text: Cow<'static, str>,
    sha: String,
}

impl Script {
    pub(crate) fn new(text: impl Into<Cow<'static, str>>) -> Self {
        let text = text.into();
        let sha = sha1_smol::Sha1::from(text.as_bytes()).digest().to_string();
        Self { text, sha }
    }
}

/// One run of a script as a command: by digest, or by text for a server that does not have the script.
pub(crate) struct ScriptRun<'a> {
    script: &'a Script,
    command: Cmd,
    by_text: bool,
}

impl<'a> ScriptRun<'a> {
    pub(crate) fn new<K: AsRef<[u8]>, A: AsRef<[u8]>>(script: &'a Script, keys: &[K], args: &[A]) -> Self {
        let bytes = keys.iter().map(|key| key.as_ref().len()).sum::<usize>()
            + args.iter().map(|arg| arg.as_ref().len()).sum::<usize>();
        let mut command = Cmd::with_capacity(3 + keys.len() + args.len(), 60 + bytes);
        command.arg("EVALSHA").arg(&script.sha).arg(keys.len());
        for key in keys {
            command.arg(key.as_ref());
        }
        for arg in args {
            command.arg(arg.as_ref());
        }
        Self { script, command, by_text: false }
    }

    pub(crate) fn command(&self) -> &Cmd {
        &self.command
    }

    /// Sends the text from now on; false if it did so already.
    pub(crate) fn switch_to_text(&mut self) -> bool {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(self.script.text.as_bytes());
        for arg in self.command.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        self.command = command;
        !std::mem::replace(&mut self.by_text, true)
    }
}

/// All scripts of a store.
#[derive(Debug)]
pub(crate) struct Scripts {
    token_bucket: Script,
    fixed_window: Script,
    sliding_window: Script,
    sliding_counter: Script,
    sliding_log: Script,
    pub(crate) check_all: Script,
    pub(crate) refund: Script,
    pub(crate) counter: Script,
    pub(crate) rehearse: Script,
}

impl Scripts {
    /// The scripts as shipped, deciding by the server's clock.
    pub(crate) fn new() -> Self {
        Self::with(SLACK, str::to_owned)
    }

    /// For tests: the last two arguments are the seconds and microseconds of a clock that is moved by hand, and since
    /// keys expire by the server's own clock all the same, they get an hour more.
    pub(crate) fn on_manual_clock() -> Self {
        Self::with(3_600_000, |text| text.replace(CLOCK, "{ ARGV[#ARGV - 1], ARGV[#ARGV] }"))
    }

    fn with(slack: u32, finish: impl Fn(&str) -> String) -> Self {
        let script = |text: String| Script::new(finish(&format!("local SLACK = {slack}\n{text}")));
        Self {
            token_bucket: script(one(lua!(check), lua!(token_bucket))),
            fixed_window: script(one(lua!(check), lua!(fixed_window))),
            sliding_window: script(one(lua!(check), lua!(sliding_window))),
            sliding_counter: script(one(lua!(check), lua!(sliding_counter))),
            sliding_log: script(one(lua!(check_log), lua!(sliding_log))),
            check_all: script(all(lua!(check_all))),
            refund: script(all(lua!(refund))),
            counter: Script::new(lua!(counter)),
            rehearse: Script::new(lua!(rehearse)),
        }
    }

    /// The script that charges one check.
    pub(crate) fn check(&self, algorithm: Algorithm) -> &Script {
        match algorithm {
            Algorithm::TokenBucket => &self.token_bucket,
            Algorithm::FixedWindow | Algorithm::FixedWindowFromFirstCall => &self.fixed_window,
            Algorithm::SlidingWindow => &self.sliding_window,
            Algorithm::SlidingCounter => &self.sliding_counter,
            Algorithm::SlidingLog => &self.sliding_log,
            other => unreachable!("{other} has no script"),
        }
    }
}

/// One twin in its shell, in line: a server builds every function of a script anew on every call, so the common script
/// has none.
fn one(shell: &str, twin: &str) -> String {
    shell.replace("--[[twin]]", twin)
}

/// All twins in a shell, as functions by the letters that end a key.
fn all(shell: &str) -> String {
    let twins = [
        (Algorithm::TokenBucket, lua!(token_bucket)),
        (Algorithm::FixedWindow, lua!(fixed_window)),
        (Algorithm::SlidingWindow, lua!(sliding_window)),
        (Algorithm::SlidingCounter, lua!(sliding_counter)),
        (Algorithm::SlidingLog, lua!(sliding_log)),
    ];
    let function = |(algorithm, twin): (Algorithm, &str)| {
        format!(
            "twins.{} = function(key, value, packed, now, verb, charged_at)\n\
             local {OUTPUTS} = false, 0, 0, 0, false, 0\n{twin}return {OUTPUTS}\nend\n",
            algorithm.kind()
        )
    };
    shell.replace("--[[twins]]", &twins.map(function).concat())
}

/// A check as its twin reads it: the cost, then the twin's numbers.
pub(crate) fn pack(check: &Check<'_>) -> Vec<u8> {
    let n = check.limit.numbers();
    let numbers: &[u64] = match n.algorithm {
        Algorithm::TokenBucket => &[n.capacity, n.tick, n.refill, n.unit],
        Algorithm::FixedWindow => &[n.amount, n.window, 1],
        Algorithm::FixedWindowFromFirstCall => &[n.amount, n.window, 0],
        Algorithm::SlidingWindow => &[n.amount, n.window, n.slots],
        Algorithm::SlidingCounter => &[n.amount, n.window, n.tick],
        Algorithm::SlidingLog => &[n.amount, n.window],
        other => unreachable!("{other} has no script"),
    };
    let mut packed = Vec::with_capacity(8 * (1 + numbers.len()));
    for &number in std::iter::once(&check.cost.get()).chain(numbers) {
        packed.extend_from_slice(&exact(number).to_le_bytes());
    }
    packed
}

/// The two letters of each check's twin.
pub(crate) fn kinds(checks: &[&Check<'_>]) -> Vec<u8> {
    checks.iter().flat_map(|check| check.limit.algorithm().kind().bytes()).collect()
}

/// Seconds and microseconds as `TIME` answers them.
pub(crate) fn time_of(clock: &ManualClock) -> [Vec<u8>; 2] {
    let now = clock.now().as_micros();
    [(now / 1_000_000).to_string().into_bytes(), (now % 1_000_000).to_string().into_bytes()]
}

/// The answer to `take` or `look`.
pub(crate) fn read_decision<'l>(
    reply: &Value,
    limits: impl Iterator<Item = &'l Limit>,
) -> Result<Decision, StoreError> {
    let mut reader = Reader::new(reply)?;
    let now = Timestamp::from_micros(reader.number()?);
    let mut status = |limit: &Limit| -> Result<Status, StoreError> {
        let allowed = reader.flag()?;
        let (remaining, retry_after, reset_after) = (reader.number()?, reader.number()?, reader.number()?);
        Ok(Status::from_parts(limit, allowed, remaining, retry_after, reset_after))
    };
    let mut limits = limits.peekable();
    let first = limits.next().map(&mut status).transpose()?;
    let statuses: Statuses = match (first, limits.peek()) {
        (Some(only), None) => only.into(),
        (first, _) => first.map(Ok).into_iter().chain(limits.map(status)).collect::<Result<_, _>>()?,
    };
    reader.end()?;
    Ok(Decision::from_statuses(statuses, Source::Store, now))
}

/// The answer to `refund` or `reset`.
pub(crate) fn read_number(reply: &Value) -> Result<u64, StoreError> {
    let mut reader = Reader::new(reply)?;
    let number = reader.number()?;
    reader.end()?;
    Ok(number)
}

struct Reader<'r> {
    rest: &'r [u8],
}

impl<'r> Reader<'r> {
    fn new(reply: &'r Value) -> Result<Self, StoreError> {
        match reply {
            Value::BulkString(rest) => Ok(Self { rest }),
            other => Err(corrupt(&format!("it answered {other:?}"))),
        }
    }

    fn flag(&mut self) -> Result<bool, StoreError> {
        match self.rest.split_first() {
            Some((&flag @ (0 | 1), rest)) => {
                self.rest = rest;
                Ok(flag == 1)
            }
            _ => Err(corrupt("a flag is missing from its answer")),
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be a whole number in range"
    )]
    fn number(&mut self) -> Result<u64, StoreError> {
        let Some((bytes, rest)) = self.rest.split_first_chunk::<8>() else {
            return Err(corrupt("a number is missing from its answer"));
        };
        self.rest = rest;
        let number = f64::from_le_bytes(*bytes);
        if number.fract() != 0.0 || !(0.0..=MAX_EXACT).contains(&number) {
            return Err(corrupt(&format!("it answered the number {number}")));
        }
        Ok(number as u64)
    }

    fn end(self) -> Result<(), StoreError> {
        if self.rest.is_empty() { Ok(()) } else { Err(corrupt("its answer is too long")) }
    }
}

/// The largest whole number below which every whole number is a double.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

#[expect(clippy::cast_precision_loss, reason = "no number of a limit or a cost is above 2^53")]
fn exact(number: u64) -> f64 {
    number as f64
}

pub(crate) fn corrupt(reason: &str) -> StoreError {
    StoreError::Corrupt { reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_scripts_decide_by_one_reading_of_the_servers_clock() {
        let scripts = Scripts::new();
        let checks = Algorithm::ALL.map(|algorithm| scripts.check(algorithm));
        for script in checks.into_iter().chain([&scripts.check_all, &scripts.refund]) {
            assert_eq!(script.text.matches(CLOCK).count(), 1);
            assert!(!script.text.contains("ARGV[#ARGV"));
            assert!(!script.text.contains("[[twin"));
        }
    }

    #[test]
    fn packed_twins_do_not_call_the_server() {
        for text in [lua!(token_bucket), lua!(fixed_window), lua!(sliding_window), lua!(sliding_counter)] {
            assert!(!text.contains("redis."), "{text}");
        }
    }

    #[test]
    fn an_answer_that_is_not_ours_is_refused() {
        let limit: Limit = "5/min".parse().unwrap();
        for reply in [
            Value::Nil,
            Value::Int(1),
            Value::BulkString(vec![]),
            Value::BulkString(vec![0; 32]),
            Value::BulkString(vec![0; 34]),
            Value::BulkString(f64::NAN.to_le_bytes().to_vec()),
            Value::BulkString([f64::MAX.to_le_bytes().as_slice(), &[1; 25]].concat()),
        ] {
            let answer = read_decision(&reply, [&limit].into_iter());
            assert!(matches!(answer, Err(StoreError::Corrupt { .. })), "{reply:?}: {answer:?}");
        }
        let whole = [1.0_f64.to_le_bytes().as_slice(), &[1], &[0; 24]].concat();
        assert!(read_decision(&Value::BulkString(whole), [&limit].into_iter()).unwrap().allowed());
    }
}
