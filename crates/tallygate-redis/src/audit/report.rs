//! The report of an audit.

use redis::InfoDict;
use serde::Serialize;

/// What a store holds under a prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AuditReport {
    /// Keys seen.
    pub keys: u64,
    /// Their estimated memory use on the servers.
    pub bytes: u64,
    /// Keys without a TTL, except lasting counters: something other than Tallygate wrote them or removed their TTL.
    pub orphans: u64,
    /// How many of them do not have the form of Tallygate's keys. These are never repaired.
    pub foreign: u64,
    /// Orphans that were given a TTL.
    pub repaired: u64,
    /// Counters that were created without a TTL, on purpose.
    pub lasting_counters: u64,
    /// The names of the first orphans. Users choose names: escape them before printing to a terminal.
    pub listed: Vec<String>,
    /// By policy and kind, the largest first.
    pub usage: Vec<Usage>,
    /// The largest keys, the largest first.
    pub largest: Vec<LargeKey>,
    /// Every server that was scanned.
    pub servers: Vec<ServerReport>,
    /// Whether all keys were scanned. False if the scan stopped at the maximum.
    #[serde(skip)]
    pub complete: bool,
}

/// What the keys of one policy use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Usage {
    /// The encoded policy name. `None` for keys that are not ours, and for policies beyond the maximum number counted.
    pub policy: Option<String>,
    /// The name of the algorithm, `counter`, `holds`, or `other`.
    #[serde(rename = "algorithm")]
    pub kind: &'static str,
    /// The number of keys.
    pub keys: u64,
    /// Their memory use.
    pub bytes: u64,
    /// How many of them have no TTL.
    pub orphans: u64,
    /// Open holds under the policy. Only the kind `holds` has any.
    pub open_holds: u64,
    /// The units that they hold.
    pub held: u64,
}

/// A key and its memory use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LargeKey {
    /// The name. Users choose names: escape it before printing to a terminal.
    pub key: String,
    /// Its memory use.
    pub bytes: u64,
}

/// What a server reports about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ServerReport {
    /// `host:port`, or the path of the socket.
    pub address: String,
    /// `Redis 7.0.15` or `Valkey 9.1.2`.
    pub version: String,
    /// Keys scanned there.
    pub keys: u64,
    /// Bytes in use.
    pub used_memory: u64,
    /// The maximum in bytes; 0 means no limit.
    pub maxmemory: u64,
    /// The eviction policy.
    pub maxmemory_policy: String,
    /// Keys evicted since it started.
    pub evicted_keys: u64,
    /// Why it may evict, or has evicted, states; `None` if it does not.
    pub warning: Option<String>,
}

impl ServerReport {
    pub(super) fn read(address: String, info: &str) -> Self {
        let info = InfoDict::new(info);
        let field = |name: &str| info.get::<String>(name);
        let number = |name: &str| info.get(name).unwrap_or(0);
        // Valkey also reports a `redis_version`, the Redis version that it is compatible with.
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

    /// Whether it evicts states when its memory is full.
    pub fn evicts(&self) -> bool {
        self.maxmemory_policy != "noeviction" && self.maxmemory_policy != "unknown"
    }

    fn reason_to_warn(&self) -> Option<String> {
        let Self { address, maxmemory_policy, evicted_keys, .. } = self;
        if *evicted_keys > 0 {
            return Some(format!(
                "{address} has evicted {evicted_keys} keys since it started: each eviction resets a limit. \
                 Use a dedicated server or more memory, with maxmemory-policy noeviction"
            ));
        }
        if !self.evicts() {
            let full = self.maxmemory > 0 && self.used_memory >= self.maxmemory;
            return full.then(|| format!("{address} is at its maxmemory and refuses charges: give it more memory"));
        }
        let when = if self.maxmemory == 0 { "if a maxmemory is set," } else { "when its memory is full," };
        Some(format!(
            "{address} has maxmemory-policy {maxmemory_policy}: {when} it evicts keys, and each eviction \
             resets a limit. Run CONFIG SET maxmemory-policy noeviction"
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
