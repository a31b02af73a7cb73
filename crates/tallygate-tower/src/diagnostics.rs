//! Common misconfiguration, each reported once.

use std::fmt;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use http::header::{FORWARDED, HeaderMap, HeaderName};
use tallygate::clock::Clock;
use tallygate::decision::Source;
use tallygate::policy::{PolicySet, Verdict};
use tallygate_http::Trust;
use tracing::subscriber::NoSubscriber;

/// The headers in which proxies report client addresses.
static FORWARDED_BY: [HeaderName; 3] =
    [HeaderName::from_static("x-forwarded-for"), FORWARDED, HeaderName::from_static("x-real-ip")];

/// After this many calls from a single private address it is probably a proxy.
const SUSPICIOUS: u64 = 1000;

/// How many calls are inspected: a proxy adds its headers to all of them.
const INSPECTED: u64 = 10_000;

/// How long a store must not have failed before it counts as back, in microseconds.
const QUIET: u64 = 10_000_000;

/// What has been reported already, and what was seen of callers.
#[derive(Debug, Default)]
pub(crate) struct Diagnostics {
    no_peer: AtomicBool,
    header_ignored: AtomicBool,
    everybody_trusted: AtomicBool,
    one_caller: AtomicBool,
    nothing_to_limit: AtomicBool,
    /// When the store last failed, on the clock beside it; 0 once it was reported to answer again.
    failed_at: AtomicU64,
    clock: OnceLock<Clock>,
    /// How many calls were inspected.
    inspected: AtomicU64,
    /// A digest of the first private peer, and how often it called without another in between.
    first: AtomicU64,
    calls: AtomicU64,
}

impl Diagnostics {
    /// The peer's address is unknown.
    pub(crate) fn no_peer(&self) {
        if first_time(&self.no_peer) {
            report(format_args!(
                "the address of the peer is unknown, so all callers share one limit: serve with \
                 `app.into_make_service_with_connect_info::<SocketAddr>()` (axum, with the feature `axum` of tallygate-tower), or \
                 name the extension that holds it with `RateLimit::peer`"
            ));
        }
    }

    #[inline(always)]
    pub(crate) fn are_active(&self) -> bool {
        self.inspected.load(Relaxed) < INSPECTED
    }

    /// Inspects one call.
    pub(crate) fn inspect(&self, headers: &HeaderMap, peer: IpAddr, trust: &Trust) {
        self.inspected.fetch_add(1, Relaxed);
        let header = FORWARDED_BY.iter().find(|name| headers.contains_key(*name));
        if !trust.proxies.is_none() {
            return self.inspect_trusting(headers, header, peer, trust);
        }
        if let Some(header) = header
            && first_time(&self.header_ignored)
        {
            tracing::warn!(
                "requests from {peer} carry `{header}`, but no proxy is trusted: if a proxy is in front, add its network to \
                 `RateLimit::trust`; otherwise a client may be spoofing its address"
            );
        }
        if self.one_caller.load(Relaxed) {
            return;
        }
        if !is_private(peer) {
            // There are direct callers, so this is never reported.
            self.one_caller.store(true, Relaxed);
        } else if self.calls_of(peer) == SUSPICIOUS && first_time(&self.one_caller) {
            tracing::warn!(
                "the first {SUSPICIOUS} calls all came from one private address, {peer}, and share one limit: if that is your proxy, \
                 add its network to `RateLimit::trust`"
            );
        }
    }

    fn inspect_trusting(&self, headers: &HeaderMap, header: Option<&HeaderName>, peer: IpAddr, trust: &Trust) {
        if trust.proxies.trusts_everybody() && first_time(&self.everybody_trusted) {
            tracing::warn!(
                "every address is a trusted proxy, so clients can spoof their address: trust only your proxies' networks"
            );
        }
        let read = trust.header.name();
        let is_read = headers.contains_key(read);
        let Some(header) = (if is_read { Some(read) } else { header }) else { return };
        if !trust.proxies.trusts(peer) {
            // A public client may send any header.
            if is_private(peer) && first_time(&self.header_ignored) {
                tracing::warn!(
                    "{peer} sends `{header}`, but is not a trusted proxy, so all clients behind it share one limit: if it is your \
                     proxy, add its network to `RateLimit::trust`"
                );
            }
        } else if !is_read && first_time(&self.header_ignored) {
            tracing::warn!(
                "the trusted proxy {peer} sends `{header}`, but `{read}` is read, so all clients behind it share one limit: set \
                 `Trust::header` to the header that your proxies write"
            );
        }
    }

    /// Nothing is limited: the domain has no policies.
    pub(crate) fn no_domain(&self, domain: &str, set: &PolicySet) {
        if first_time(&self.nothing_to_limit) {
            let known: Vec<&str> = set.domains().iter().map(|domain| domain.name()).collect();
            report(format_args!(
                "unknown domain `{domain}`, so nothing is limited: name one of {known:?} in `RateLimit::policies`"
            ));
        }
    }

    /// Nothing is limited: there are no rules.
    pub(crate) fn no_rules(&self) {
        if first_time(&self.nothing_to_limit) {
            report(format_args!("the layer has no rules, so nothing is limited: add one with `RateLimit::rule`"));
        }
    }

    /// Reports when the store becomes unreachable, and when it is back.
    #[inline]
    pub(crate) fn decided(&self, verdict: &Verdict) {
        if let Some(error) = verdict.store_error() {
            if self.fails_at(self.now()) {
                tracing::warn!("{error}; until the store answers again, the `on_error` of each rule applies");
            }
        } else if self.failed_at.load(Relaxed) != 0
            && verdict.rulings().iter().any(|ruling| ruling.source() == Source::Store)
            && self.answers_at(self.now())
        {
            tracing::info!("the store answers again");
        }
    }

    fn now(&self) -> u64 {
        self.clock.get_or_init(Clock::monotonic).now().as_micros()
    }

    /// Whether this is the first failure since the store was reported to answer.
    fn fails_at(&self, now: u64) -> bool {
        self.failed_at.swap(now.max(1), Relaxed) == 0
    }

    /// Whether the store has not failed for a while. Not sooner: one that fails now and then, as with one dead shard, would
    /// fill the log.
    fn answers_at(&self, now: u64) -> bool {
        let failed_at = self.failed_at.load(Relaxed);
        let quiet = failed_at != 0 && now.saturating_sub(failed_at) >= QUIET;
        quiet && self.failed_at.compare_exchange(failed_at, 0, Relaxed, Relaxed).is_ok()
    }

    fn calls_of(&self, peer: IpAddr) -> u64 {
        let digest = match peer {
            IpAddr::V4(peer) => u64::from(peer.to_bits()) | 1 << 40,
            IpAddr::V6(peer) => (peer.to_bits() >> 64 ^ peer.to_bits()) as u64 | 1 << 41,
        };
        let first = self.first.compare_exchange(0, digest, Relaxed, Relaxed).unwrap_or_else(|first| first);
        match first == 0 || first == digest {
            true => self.calls.fetch_add(1, Relaxed) + 1,
            // There are others, so this is never reported.
            false => {
                self.one_caller.store(true, Relaxed);
                0
            }
        }
    }
}

/// Logs an error that makes the limits wrong. Without a subscriber it goes to stderr, because nobody would see it.
fn report(error: fmt::Arguments<'_>) {
    if tracing::dispatcher::get_default(|current| current.is::<NoSubscriber>()) {
        // A closed stderr must not stop the service.
        let _ = writeln!(io::stderr(), "tallygate-tower: {error}");
    }
    tracing::error!("{error}");
}

fn first_time(reported: &AtomicBool) -> bool {
    !reported.load(Relaxed) && !reported.swap(true, Relaxed)
}

fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_private() || address.is_loopback(),
        IpAddr::V6(address) => address.is_unique_local() || address.is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tallygate::call::Verb;
    use tallygate::clock::ManualClock;
    use tallygate::policy::{Action, Evaluation, Match, Policy, Stores, Subject};
    use tallygate::{Cost, MemoryStore};

    use super::*;

    /// Calls that the store was not asked about said that it is back.
    #[test]
    fn a_store_is_back_once_it_has_answered() {
        let clock = ManualClock::default();
        let diagnostics = Diagnostics { clock: OnceLock::from(Clock::from(clock.clone())), ..Diagnostics::default() };
        assert!(diagnostics.fails_at(0));
        clock.advance(Duration::from_secs(11));
        diagnostics.decided(&Verdict::unlimited());
        assert_ne!(diagnostics.failed_at.load(Relaxed), 0);
        let found = Match::new(Arc::new(Policy::new("p", "d", "1/s").unwrap()), 0, Subject::new([]));
        let mut asked = Evaluation::new([found], Action::new(Verb::Check, Cost::ONE));
        diagnostics.decided(&asked.decide_now(&Stores::new(MemoryStore::new())).unwrap());
        assert_eq!(diagnostics.failed_at.load(Relaxed), 0);
    }

    /// With one dead shard, every other call said that the store was gone, and the next that it was back.
    #[test]
    fn a_store_that_fails_now_and_then_is_reported_once() {
        let diagnostics = Diagnostics::default();
        assert!(!diagnostics.answers_at(1), "it has never failed");
        let said: Vec<(bool, bool)> =
            (0..100).map(|at| (diagnostics.fails_at(at), diagnostics.answers_at(at + 1))).collect();
        assert_eq!(said.iter().filter(|said| said.0 || said.1).count(), 1);
        assert!(!diagnostics.answers_at(99 + QUIET - 1));
        assert!(diagnostics.answers_at(99 + QUIET) && !diagnostics.answers_at(100 + QUIET));
        assert!(diagnostics.fails_at(101 + QUIET));
    }
}
