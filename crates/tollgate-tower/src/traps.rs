//! Known traps, each named once in the log.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use http::header::{FORWARDED, HeaderMap, HeaderName};
use tollgate_http::Trust;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// From how many calls of a single private address on that is worth a word.
const SUSPICIOUS: u64 = 1000;

/// How many calls are looked at: what a proxy adds, it adds to all of them.
const LOOKS: u64 = 10_000;

/// What has been said already, and what was seen of callers.
#[derive(Debug, Default)]
pub(crate) struct Traps {
    no_peer: AtomicBool,
    header_ignored: AtomicBool,
    everybody_trusted: AtomicBool,
    one_caller: AtomicBool,
    /// How many calls were looked at, more or less: threads may count one together.
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
                 `app.into_make_service_with_connect_info::<SocketAddr>()` (axum, with the feature `axum` of tollgate-tower), or \
                 name the extension that holds it with `RateLimit::peer`"
            );
        }
    }

    /// Looks at a call for the traps that can be seen in it, unless enough were looked at.
    #[inline(always)]
    pub(crate) fn look_at(&self, headers: &HeaderMap, peer: IpAddr, trust: &Trust) {
        if self.looks.load(Relaxed) < LOOKS {
            self.look_closely_at(headers, peer, trust);
        }
    }

    #[cold]
    fn look_closely_at(&self, headers: &HeaderMap, peer: IpAddr, trust: &Trust) {
        self.looks.store(self.looks.load(Relaxed) + 1, Relaxed);
        let forwarded = headers.contains_key(X_FORWARDED_FOR) || headers.contains_key(FORWARDED);
        if !trust.proxies.is_none() {
            if trust.proxies.trusts_everybody() && first_time(&self.everybody_trusted) {
                tracing::warn!(
                    "every address is a trusted proxy, so callers can name themselves: trust only your proxies' networks"
                );
            }
            if forwarded && is_private(peer) && !trust.proxies.trusts(peer) && first_time(&self.header_ignored) {
                tracing::warn!(
                    "{peer} names whom it forwards for, and is not one of the trusted proxies, so all of them share one limit: if it \
                     is yours, add its network to `RateLimit::trust`"
                );
            }
            return;
        }
        if forwarded && first_time(&self.header_ignored) {
            tracing::warn!(
                "requests name whom they were forwarded for, and nobody is trusted to say so: if a proxy stands in front, set \
                 `RateLimit::trust` to its network; if none does, somebody tries to pass for others"
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
                "all calls so far came from one private address, and share one limit: if that is your proxy, set \
                 `RateLimit::trust` to its network"
            );
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
