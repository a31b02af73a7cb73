//! What an audit found.

use redis::InfoDict;
use serde::Serialize;

/// What a store holds under a prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AuditReport {
    /// Keys seen.
    pub keys: u64,
    /// What they take on the servers, as those estimate it.
    pub bytes: u64,
    /// Keys that would never expire, lasting counters apart: something other than Tallygate wrote them, or took their end.
    pub orphans: u64,
    /// How many of them Tallygate did not write: they do not have the form of its keys, and are never repaired.
    pub foreign: u64,
    /// Orphans that were given an end.
    pub repaired: u64,
    /// Counters that were created without a time to live, on purpose.
    pub lasting_counters: u64,
    /// The first orphans, by name. Names are made by users: escape them before a terminal sees them.
    pub listed: Vec<String>,
    /// By policy and kind, the heaviest first.
    pub usage: Vec<Usage>,
    /// The heaviest keys, the heaviest first.
    pub largest: Vec<LargeKey>,
    /// Every server that was looked at.
    pub servers: Vec<ServerReport>,
    /// Whether all keys were seen; otherwise it stopped at the number it was given.
    #[serde(skip)]
    pub complete: bool,
}

/// What the keys of one policy take.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Usage {
    /// As written in the key. `None` for keys that are none of ours, and for policies beyond the number that is told apart.
    pub policy: Option<String>,
    /// The name of the algorithm, `counter`, or `other`.
    #[serde(rename = "algorithm")]
    pub kind: &'static str,
    /// How many.
    pub keys: u64,
    /// What they take.
    pub bytes: u64,
    /// How many of them would never expire.
    pub orphans: u64,
}

/// A key and what it takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LargeKey {
    /// Its name. Made by users: escape it before a terminal sees it.
    pub key: String,
    /// What it takes.
    pub bytes: u64,
}

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ServerReport {
    /// `host:port`, or the path of its socket.
    pub address: String,
    /// `Redis 7.0.15` or `Valkey 9.1.2`.
    pub version: String,
    /// Keys seen there.
    pub keys: u64,
    /// Bytes it uses.
    pub used_memory: u64,
    /// Bytes it may use; 0 is no bound.
    pub maxmemory: u64,
    /// What it does when they are used up.
    pub maxmemory_policy: String,
    /// Keys it has thrown out since it started.
    pub evicted_keys: u64,
    /// Why it may forget, or has forgotten, what was used; `None` if it does not.
    pub warning: Option<String>,
}

impl ServerReport {
    pub(super) fn read(address: String, info: &str) -> Self {
        let info = InfoDict::new(info);
        let field = |name: &str| info.get::<String>(name);
        let number = |name: &str| info.get(name).unwrap_or(0);
        // Valkey also gives a `redis_version`, that of the Redis it can stand in for.
        let version = match (field("valkey_version"), field("redis_version")) {
            (Some(version), _) => format!("Valkey {version}"),
            (None, Some(version)) => format!("Redis {version}"),
            (None, None) => "unknown".to_owned(),
        };
        let mut report = Self {
            address,
            version,
            keys: 0,
            used_memory: number("used_memory"),
            maxmemory: number("maxmemory"),
            maxmemory_policy: field("maxmemory_policy").unwrap_or_else(|| "unknown".to_owned()),
            evicted_keys: number("evicted_keys"),
            warning: None,
        };
        report.warning = report.reason_to_warn();
        report
    }

    /// Whether a full memory makes it forget limits.
    pub fn evicts(&self) -> bool {
        self.maxmemory_policy != "noeviction" && self.maxmemory_policy != "unknown"
    }

    fn reason_to_warn(&self) -> Option<String> {
        let Self { address, maxmemory_policy, evicted_keys, .. } = self;
        if *evicted_keys > 0 {
            return Some(format!(
                "{address} has evicted {evicted_keys} keys since it started: each was a limit that silently started \
                 over. Give tallygate a server of its own, or more memory, with maxmemory-policy noeviction"
            ));
        }
        if !self.evicts() {
            let full = self.maxmemory > 0 && self.used_memory >= self.maxmemory;
            return full.then(|| format!("{address} is at its maxmemory: it refuses to charge. Give it more memory"));
        }
        let when = if self.maxmemory == 0 { "if it ever gets a maxmemory" } else { "when its memory is full" };
        Some(format!(
            "{address} has maxmemory-policy {maxmemory_policy}: {when} it throws out keys, and each limit among them \
             silently starts over. CONFIG SET maxmemory-policy noeviction"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_as_they_are_written() {
        let info = "# Server\r\nredis_version:7.2.4\r\nvalkey_version:9.1.2\r\nused_memory:1000\r\n\
                    used_memory_human:1K\r\nmaxmemory:2000\r\nmaxmemory_policy:allkeys-lru\r\nevicted_keys:0\r\n";
        let server = ServerReport::read("h:1".into(), info);
        assert_eq!((server.version.as_str(), server.maxmemory, server.used_memory), ("Valkey 9.1.2", 2000, 1000));
        assert!(server.warning.unwrap().contains("allkeys-lru"));
        let evicted = ServerReport::read("h:1".into(), "maxmemory_policy:noeviction\r\nevicted_keys:7\r\n");
        assert!(evicted.warning.unwrap().contains("7 keys"));
        let sound = ServerReport::read("h:1".into(), "redis_version:7.0.15\nmaxmemory_policy:noeviction\n");
        assert_eq!((sound.version.as_str(), sound.warning), ("Redis 7.0.15", None));
    }
}
