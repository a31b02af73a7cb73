//! Limits and what is left of them as response headers. The only code that knows the syntax of the drafts.

mod dialect;

use std::fmt::Write as _;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tallygate::{Algorithm, Limit, Status};

pub use dialect::Dialect;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// One limit that was evaluated, and what it answered.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// The policy's name. Characters that a header cannot contain are percent-encoded.
    pub policy: &'a str,
    /// The limit that applied.
    pub limit: &'a Limit,
    /// Its answer.
    pub status: &'a Status,
}

/// The headers of one response.
///
/// All waits come from one number, rounded up, so `t`, the older `reset`s and `Retry-After` never disagree. It is
/// - on a denial, the wait after which the same call would pass. If waiting does not help, `t` and `Retry-After` are left
///   out, and `reset` is the window;
/// - with nothing left, the wait for the next unit, or for all units where the algorithm does not say (the sliding ones);
/// - otherwise the wait until all units are back. A client that spreads what remains over it stays below the limit.
///
/// ```
/// use std::time::Duration;
/// use tallygate::{Limit, Status};
/// use tallygate_http::{Dialect, Headers, Line};
///
/// let limit: Limit = "100/min".parse()?;
/// let denied = Status::from_parts(&limit, false, 0, 2_300_000, 60_000_000);
/// let headers = Headers {
///     dialect: Dialect::Draft10,
///     lines: &[Line { policy: "burst", limit: &limit, status: &denied }],
///     binding: Some(0),
///     allowed: false,
///     unix_now: Duration::ZERO,
/// };
/// let written: Vec<String> =
///     headers.render().iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
/// assert_eq!(
///     written,
///     [r#"ratelimit-policy: "burst";q=100;w=60"#, r#"ratelimit: "burst";r=0;t=3"#, "retry-after: 3"]
/// );
/// # Ok::<(), tallygate::limit::LimitError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Headers<'a> {
    /// Which headers to write.
    pub dialect: Dialect,
    /// The limits to report. Leave out policies in shadow mode.
    pub lines: &'a [Line<'a>],
    /// Which of the lines binds. Without one, only the policies are listed.
    pub binding: Option<usize>,
    /// Whether the call may proceed.
    pub allowed: bool,
    /// The time since 1970, with its fraction. Only [`Dialect::XEpoch`] uses it.
    pub unix_now: Duration,
}

impl Headers<'_> {
    /// Sets them on a response.
    ///
    /// The lists of [`Dialect::Draft10`] are appended to those of the service behind; all other headers hold one value,
    /// and replace it.
    pub fn apply(&self, to: &mut HeaderMap) {
        self.apply_with(None, to);
    }

    /// The same, with the constant part of the only line, if it is known.
    pub(crate) fn apply_with(&self, constant: Option<&Constant>, to: &mut HeaderMap) {
        self.each(constant, |name, value| {
            if self.dialect.is_list() && name != RETRY_AFTER {
                to.append(name, value);
            } else {
                to.insert(name, value);
            }
        });
    }

    /// Each header with its value.
    pub fn render(&self) -> Vec<(HeaderName, HeaderValue)> {
        let mut rendered = Vec::with_capacity(5);
        self.each(None, |name, value| rendered.push((name, value)));
        rendered
    }

    fn each(&self, constant: Option<&Constant>, mut write: impl FnMut(HeaderName, HeaderValue)) {
        let binding = self.binding.and_then(|index| self.lines.get(index));
        if self.dialect == Dialect::Draft10 {
            self.policies(constant, &mut write);
        }
        if let Some(line) = binding {
            let (limit, left) = (line.limit.capacity(), line.status.remaining());
            match self.dialect {
                Dialect::Draft10 => {
                    let parameters = [(";r=", Some(left)), (";t=", self.wait(line).map(seconds_up))];
                    let text = match constant {
                        Some(constant) => item(&constant.quoted, parameters),
                        None => item(&quoted(line.policy), parameters),
                    };
                    write(RATE_LIMIT, value(text));
                }
                Dialect::Draft7 => {
                    let text = format!("limit={limit}, remaining={left}, reset={}", seconds_up(self.reset(line)));
                    write(RATE_LIMIT, value(text));
                }
                Dialect::Draft6 => triple([LIMIT, REMAINING, RESET], line, None, self.reset(line), &mut write),
                // Added before rounding: two halves of a second rounded apart would end before the wait does.
                Dialect::XEpoch => {
                    triple(X_NAMES, line, constant, self.unix_now.saturating_add(self.reset(line)), &mut write);
                }
                Dialect::XDelta => triple(X_NAMES, line, constant, self.reset(line), &mut write),
                Dialect::Off => {}
            }
        }
        if matches!(self.dialect, Dialect::Draft7 | Dialect::Draft6) {
            self.policies(constant, &mut write);
        }
        if !self.allowed
            && let Some(wait) = binding.and_then(|line| self.wait(line))
        {
            write(RETRY_AFTER, number(seconds_up(wait)));
        }
    }

    /// One item for each policy, also if it applied to several subjects.
    fn policies(&self, constant: Option<&Constant>, mut write: impl FnMut(HeaderName, HeaderValue)) {
        let item = |line: &Line<'_>| policy_item(self.dialect, line.policy, line.limit);
        if let [line] = self.lines {
            return write(POLICY, constant.map_or_else(|| value(item(line)), |constant| constant.value.clone()));
        }
        let mut items: Vec<String> = Vec::with_capacity(self.lines.len());
        for item in self.lines.iter().map(item) {
            if !items.contains(&item) {
                items.push(item);
            }
        }
        if !items.is_empty() {
            write(POLICY, value(items.join(", ")));
        }
    }

    /// How long to wait; `None` if waiting does not help, or nothing is used.
    fn wait(&self, line: &Line<'_>) -> Option<Duration> {
        let status = line.status;
        if !self.allowed || !status.allowed() {
            // Never zero: a denied caller would retry at once.
            return status.retry_after().map(|wait| wait.max(Duration::from_micros(1)));
        }
        let wait = if status.remaining() == 0 { next_unit(line) } else { status.reset_after() };
        (!wait.is_zero()).then_some(wait)
    }

    /// The older drafts and the `X-` headers cannot leave it out. Zero would invite a denied caller to retry at once.
    fn reset(&self, line: &Line<'_>) -> Duration {
        let denied = !self.allowed || !line.status.allowed();
        self.wait(line).unwrap_or_else(|| if denied { line.limit.window() } else { line.status.reset_after() })
    }
}

/// The unit of a quota of what is in flight.
const CONCURRENT: &str = ";qu=\"concurrent-requests\"";
const SECOND: Duration = Duration::from_secs(1);
const X_NAMES: [HeaderName; 3] = [X_LIMIT, X_REMAINING, X_RESET];

/// Whole seconds, rounded up, so that a wait is never too short.
///
/// ```
/// use std::time::Duration;
/// use tallygate_http::seconds_up;
///
/// assert_eq!(seconds_up(Duration::from_millis(2001)), 3);
/// assert_eq!(seconds_up(Duration::ZERO), 0);
/// ```
pub fn seconds_up(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}

/// The period of the capacity: the time to fill an empty bucket, or the window.
fn period(limit: &Limit) -> Duration {
    match limit.algorithm() {
        Algorithm::TokenBucket => limit.full_after(),
        _ => limit.window(),
    }
}

/// With nothing left: the time until the next unit, or until all units if the next is not known.
fn next_unit(line: &Line<'_>) -> Duration {
    let (limit, reset) = (line.limit, line.status.reset_after());
    if limit.algorithm() != Algorithm::TokenBucket {
        return reset;
    }
    // All units but one take this long, rounded down; what is left of `reset` is for the next one.
    let all_but_one = u128::from(limit.capacity().saturating_sub(1)) * limit.window().as_micros();
    let all_but_one = all_but_one.checked_div(u128::from(limit.amount())).unwrap_or(0);
    let all_but_one = Duration::from_micros(u64::try_from(all_but_one).unwrap_or(u64::MAX));
    reset.saturating_sub(all_but_one).max(Duration::from_micros(1))
}

fn triple(
    [limit, remaining, reset]: [HeaderName; 3],
    line: &Line<'_>,
    constant: Option<&Constant>,
    wait: Duration,
    mut write: impl FnMut(HeaderName, HeaderValue),
) {
    write(limit, constant.map_or_else(|| number(line.limit.capacity()), |constant| constant.value.clone()));
    write(remaining, number(line.status.remaining()));
    write(reset, number(seconds_up(wait)));
}

/// The part of the headers of a single line that does not depend on what is left.
#[derive(Debug, Clone)]
pub(crate) struct Constant {
    /// The policy, or in the `X-` dialects the limit.
    value: HeaderValue,
    quoted: String,
}

impl Constant {
    /// `None` if the dialect has no headers.
    pub(crate) fn new(dialect: Dialect, policy: &str, limit: &Limit) -> Option<Self> {
        let value = match dialect {
            Dialect::Draft10 | Dialect::Draft7 | Dialect::Draft6 => value(policy_item(dialect, policy, limit)),
            Dialect::XEpoch | Dialect::XDelta => number(limit.capacity()),
            Dialect::Off => return None,
        };
        Some(Self { value, quoted: quoted(policy) })
    }
}

fn policy_item(dialect: Dialect, policy: &str, limit: &Limit) -> String {
    if limit.is_concurrency() {
        // It has no window. Of the dialects, one can say what is counted.
        return match dialect {
            Dialect::Draft10 => {
                [&item(&quoted(policy), [(";q=", Some(limit.capacity())), ("", None)]), CONCURRENT].concat()
            }
            _ => limit.capacity().to_string(),
        };
    }
    let period = period(limit);
    if dialect == Dialect::Draft10 {
        // A window below a second cannot be written, and rounded to a second it would be another policy.
        let window = Some(period).filter(|period| *period >= SECOND).map(seconds_up);
        return item(&quoted(policy), [(";q=", Some(limit.capacity())), (";w=", window)]);
    }
    // `100;w=60`. The older drafts require a window, so one below a second is rounded up.
    format!("{};w={}", limit.capacity(), seconds_up(period))
}

/// `"name";a=1;b=2`, allocated in its exact size, so that it becomes a header value without a copy.
fn item(quoted: &str, [first, second]: [(&str, Option<u64>); 2]) -> String {
    let mut digits = [itoa::Buffer::new(); 2];
    let [one, two] = &mut digits;
    let one = first.1.map_or(["", ""], |number| [first.0, one.format(number)]);
    let two = second.1.map_or(["", ""], |number| [second.0, two.format(number)]);
    [quoted, one[0], one[1], two[0], two[1]].concat()
}

/// A String of a structured field.
fn quoted(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 2);
    text.push('"');
    for byte in name.bytes() {
        if matches!(byte, b'"' | b'\\') {
            text.push('\\');
        }
        push_encoded(&mut text, byte);
    }
    text.push('"');
    text
}

/// A name as the headers have it, without its quotes.
pub(crate) fn header_name(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    name.bytes().for_each(|byte| push_encoded(&mut text, byte));
    text
}

/// Headers hold printable ASCII. The rest is percent-encoded, and so is `%`, so that no two names become one.
fn push_encoded(text: &mut String, byte: u8) {
    match byte {
        b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
        _ => {
            let _ = write!(text, "%{byte:02X}");
        }
    }
}

/// One allocation, where `HeaderValue::from` makes two.
fn number(number: u64) -> HeaderValue {
    HeaderValue::from_str(itoa::Buffer::new().format(number)).expect("digits can be in a header")
}

fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("names are quoted to printable ASCII, all else is digits")
}
