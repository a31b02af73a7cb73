//! Known traps, each named once in the log.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use http::header::{FORWARDED, HeaderMap, HeaderName};
use tallygate::{PolicySet, StoreError};
use tallygate_http::Trust;

/// What proxies name callers in.
static FORWARDED_BY: [HeaderName; 3] =
    [HeaderName::from_static("x-forwarded-for"), FORWARDED, HeaderName::from_static("x-real-ip")];

/// From how many calls of a single private address on that is worth a word.
const SUSPICIOUS: u64 = 1000;

/// How many calls are looked at: what a proxy adds, it adds to all of them.
const LOOKS: u64 = 10_000;

/// What has been said already, and what was request of callers.
#[derive(Debug, Default)]
pub(crate) struct Traps {
    no_peer: AtomicBool,
    header_ignored: AtomicBool,
    everybody_trusted: AtomicBool,
    one_caller: AtomicBool,
    nothing_to_limit: AtomicBool,
    store_away: AtomicBool,
    /// How many calls were looked at.
    looks: AtomicU64,
    /// A digest of the first private peer, and how often it called without another in between.
    first: AtomicU64,
    calls: AtomicU64,
}

impl Traps {
    /// There is no address to be found.
    pub(crate) fn no_peer(&self) {
        if first_time(&self.no_peer) {
            tracing::error!(
                "the address of the peer is unknown, so all callers share one limit: serve with \
                 `app.into_make_service_with_connect_info::<SocketAddr>()` (axum, with the feature `axum` of tallygate-tower), or \
                 name the extension that holds it with `RateLimit::peer`"
            );
        }
    }

    #[inline(always)]
    pub(crate) fn are_looked_for(&self) -> bool {
        self.looks.load(Relaxed) < LOOKS
    }

    /// Looks at a call for the traps that can be request in it.
    pub(crate) fn look_at(&self, headers: &HeaderMap, peer: IpAddr, trust: &Trust) {
        self.looks.fetch_add(1, Relaxed);
        let header = FORWARDED_BY.iter().find(|name| headers.contains_key(*name));
        if !trust.proxies.is_none() {
            return self.look_at_trusting(headers, header, peer, trust);
        }
        if let Some(header) = header
            && first_time(&self.header_ignored)
        {
            tracing::warn!(
                "requests from {peer} name whom they were forwarded for in `{header}`, and nobody is trusted to say so: if a proxy stands \
                 in front, set `RateLimit::trust` to its network; if none does, somebody tries to pass for others"
            );
        }
        if self.one_caller.load(Relaxed) {
            return;
        }
        if !is_private(peer) {
            // Some call directly: nothing to say, ever.
            self.one_caller.store(true, Relaxed);
        } else if self.calls_of(peer) == SUSPICIOUS && first_time(&self.one_caller) {
            tracing::warn!(
                "the first {SUSPICIOUS} calls all came from one private address, {peer}, and share one limit: if that is your proxy, set \
                 `RateLimit::trust` to its network"
            );
        }
    }

    fn look_at_trusting(&self, headers: &HeaderMap, header: Option<&HeaderName>, peer: IpAddr, trust: &Trust) {
        if trust.proxies.trusts_everybody() && first_time(&self.everybody_trusted) {
            tracing::warn!(
                "every address is a trusted proxy, so callers can name themselves: trust only your proxies' networks"
            );
        }
        let read = trust.header.name();
        let is_read = headers.contains_key(read);
        let Some(header) = (if is_read { Some(read) } else { header }) else { return };
        if !trust.proxies.trusts(peer) {
            // Somebody on the internet may write what it likes.
            if is_private(peer) && first_time(&self.header_ignored) {
                tracing::warn!(
                    "{peer} names whom it forwards for in `{header}`, and is not one of the trusted proxies, so all of them share one \
                     limit: if it is yours, add its network to `RateLimit::trust`"
                );
            }
        } else if !is_read && first_time(&self.header_ignored) {
            tracing::warn!(
                "{peer} is a trusted proxy, and names whom it forwards for in `{header}`, but `{read}` is read, so all of them share one \
                 limit: set `Trust::header` to what your proxies write"
            );
        }
    }

    /// Nothing is limited, as there are no policies to look at.
    pub(crate) fn no_domain(&self, domain: &str, set: &PolicySet) {
        if first_time(&self.nothing_to_limit) {
            let known: Vec<&str> = set.domains().iter().map(|domain| domain.name()).collect();
            tracing::error!(
                "there are no policies of the domain `{domain}`, so nothing is limited: name one of {known:?} in `RateLimit::policies`"
            );
        }
    }

    /// Nothing is limited, as there are no rules.
    pub(crate) fn no_rules(&self) {
        if first_time(&self.nothing_to_limit) {
            tracing::error!("the layer has no rules, so nothing is limited: add one with `RateLimit::rule`");
        }
    }

    /// Says when the store goes away, and when it is back.
    pub(crate) fn store_answered(&self, error: Option<&StoreError>) {
        match error {
            Some(error) if !self.store_away.load(Relaxed) && !self.store_away.swap(true, Relaxed) => {
                tracing::warn!("{error}; until it answers again, each rule does as its `on_error` says");
            }
            None if self.store_away.load(Relaxed) && self.store_away.swap(false, Relaxed) => {
                tracing::info!("the store answers again");
            }
            _ => {}
        }
    }

    fn calls_of(&self, peer: IpAddr) -> u64 {
        let digest = match peer {
            IpAddr::V4(peer) => u64::from(peer.to_bits()) | 1 << 40,
            IpAddr::V6(peer) => (peer.to_bits() >> 64 ^ peer.to_bits()) as u64 | 1 << 41,
        };
        let first = self.first.compare_exchange(0, digest, Relaxed, Relaxed).unwrap_or_else(|first| first);
        match first == 0 || first == digest {
            true => self.calls.fetch_add(1, Relaxed) + 1,
            // There are others: nothing to say, ever.
            false => {
                self.one_caller.store(true, Relaxed);
                0
            }
        }
    }
}

fn first_time(said: &AtomicBool) -> bool {
    !said.load(Relaxed) && !said.swap(true, Relaxed)
}

fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_private() || address.is_loopback(),
        IpAddr::V6(address) => address.is_unique_local() || address.is_loopback(),
    }
}
