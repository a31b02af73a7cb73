//! Replicas and persistence: what survives the loss of a server, and what a restart forgets.

use super::facts::{Facts, Fields};
use super::finding::{DoctorCheck, Finding};

/// Seconds behind the master from which on a replica lags.
const LAGS: u64 = 10;

/// A replica, as the master lists it: `slave0:ip=…,port=…,state=online,offset=…,lag=0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Replica {
    pub(super) host: String,
    pub(super) port: u16,
    online: bool,
    lag: u64,
}

pub(super) fn replicas(info: &Fields) -> Vec<Replica> {
    // A server that claims a billion replicas must not make us look for them all.
    let count = info.number("connected_slaves").unwrap_or(0).min(100);
    (0..count).filter_map(|number| replica(info.text(&format!("slave{number}"))?)).collect()
}

fn replica(text: &str) -> Option<Replica> {
    let field = |name: &str| text.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    Some(Replica {
        host: field("ip")?.to_owned(),
        port: field("port")?.parse().ok()?,
        online: field("state") == Some("online"),
        lag: field("lag").and_then(|lag| lag.parse().ok()).unwrap_or(0),
    })
}

/// `needs_replicas`: under Sentinel and in a cluster, which are there to fail over.
pub(super) fn judge(facts: &Facts, needs_replicas: bool) -> Finding {
    let check = DoctorCheck::Replication;
    let info = match &facts.info {
        Ok(info) => info,
        Err(missing) => return Finding::unknown(check, &missing.why).fix(&missing.remedy),
    };
    let Some(count) = info.number("connected_slaves") else {
        return Finding::unknown(check, "the server does not say whether it has replicas");
    };
    if count == 0 {
        if !needs_replicas {
            return Finding::ok(check, "one server without replicas");
        }
        return Finding::warning(check, "no replica is connected")
            .means(7, "if this server is lost, its limits start over, and its keys have no store until it is back")
            .fix("connect a replica: REPLICAOF <master> <port> on it, or CLUSTER REPLICATE <id> in a cluster");
    }
    let replicas = replicas(info);
    let behind = replicas.iter().find(|replica| !replica.online || replica.lag > LAGS);
    if let Some(Replica { host, port, online, lag }) = behind {
        let found = if *online {
            format!("the replica {host}:{port} is {lag} s behind")
        } else {
            format!("the replica {host}:{port} is not in sync")
        };
        return Finding::warning(check, found)
            .means(7, "a failover forgets what was admitted within the lag")
            .fix("find out what slows it: network, disk, or a client-output-buffer-limit that is too small");
    }
    // `min_slaves_good_slaves` is there only if the setting is not 0.
    let least = facts.setting("min-replicas-to-write").and_then(|least| least.parse::<u64>().ok());
    let bounded = least.map_or_else(|| info.text("min_slaves_good_slaves").is_some(), |least| least > 0);
    let spare = least.is_none_or(|least| count > least);
    let count = format!("{count} replica{}", if count == 1 { "" } else { "s" });
    if !bounded {
        return Finding::warning(check, format!("{count}, and min-replicas-to-write 0"))
            .means(7, "a master that is cut off goes on counting by itself while a replica is promoted")
            .fix("CONFIG SET min-replicas-to-write 1 and CONFIG SET min-replicas-max-lag 2, on replicas too; then a master without a replica refuses charges");
    }
    if facts.setting("min-replicas-max-lag").and_then(|lag| lag.parse::<u64>().ok()).is_some_and(|lag| lag > LAGS) {
        return Finding::warning(check, format!("{count}, and min-replicas-max-lag above {LAGS} s"))
            .means(7, "a master that is cut off goes on counting by itself for that long")
            .fix("CONFIG SET min-replicas-max-lag 2");
    }
    if needs_replicas && !spare {
        return Finding::warning(check, format!("{count}, and min-replicas-to-write needs as many"))
            .means(
                6,
                "a promoted replica has one less: it refuses to charge until the old master is back as its replica",
            )
            .fix("connect one more replica: two for each master with min-replicas-to-write 1");
    }
    Finding::ok(check, format!("{count}, and min-replicas-to-write is set"))
}

pub(super) fn persistence(facts: &Facts) -> Finding {
    let check = DoctorCheck::Persistence;
    let info = match &facts.info {
        Ok(info) => info,
        Err(missing) => return Finding::unknown(check, &missing.why).fix(&missing.remedy),
    };
    let (appends, saves) = (info.is("aof_enabled", "1"), facts.setting("save").map(|save| !save.is_empty()));
    if info.is("aof_last_write_status", "err") && appends {
        return Finding::problem(check, "the last write to the AOF failed")
            .means(6, "the server refuses to charge (MISCONF) until it can write again")
            .fix("free its disk, or correct the permissions of its folder");
    }
    if info.is("rdb_last_bgsave_status", "err") {
        let tolerant = facts.setting("stop-writes-on-bgsave-error") == Some("no");
        let finding = if tolerant {
            Finding::warning(check, "the last snapshot failed")
                .means(7, "a restart forgets what came after the last good one")
        } else {
            Finding::problem(check, "the last snapshot failed")
                .means(6, "the server refuses to charge (MISCONF) until a snapshot succeeds")
        };
        return finding.fix("free its disk or memory, then BGSAVE; or CONFIG SET save \"\" if it needs no snapshots");
    }
    if info.text("aof_enabled").is_none() {
        return Finding::unknown(check, "the server does not say whether it is persistent");
    }
    match (appends, saves) {
        (true, _) => Finding::ok(check, "append-only file"),
        (false, Some(true)) => Finding::ok(check, "snapshots: a restart forgets what came after the last one"),
        (false, Some(false)) => Finding::warning(check, "neither an append-only file nor snapshots")
            .means(7, "a restart forgets every limit: each admits up to one capacity more")
            .fix("CONFIG SET appendonly yes (appendfsync everysec), or accept it for limits of a minute or less"),
        (false, None) => Finding::unknown(check, "no append-only file; whether there are snapshots is not known")
            .fix("to have it checked, give the user of the doctor the rule +config|get"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{Ok, Problem, Unknown, Warning};
    use super::*;

    #[test]
    fn replicas_are_judged_by_lag_and_min_replicas() {
        let one = |lag: u64, state: &str| {
            format!("connected_slaves:1\nslave0:ip=::1,port=6380,state={state},offset=1,lag={lag}\n")
        };
        let two =
            "connected_slaves:2\nslave0:ip=::1,port=1,state=online,lag=0\nslave1:ip=::1,port=2,state=online,lag=0\n";
        for (info, settings, needs, severity) in [
            ("connected_slaves:0".to_owned(), "", false, Ok),
            ("connected_slaves:0".to_owned(), "", true, Warning),
            (two.to_owned(), "min-replicas-to-write:1\nmin-replicas-max-lag:2", true, Ok),
            (two.to_owned(), "min-replicas-to-write:2\nmin-replicas-max-lag:2", true, Warning),
            (one(0, "online"), "min-replicas-to-write:1\nmin-replicas-max-lag:2", true, Warning),
            (one(0, "online"), "min-replicas-to-write:1\nmin-replicas-max-lag:2", false, Ok),
            (one(0, "online"), "min-replicas-to-write:1\nmin-replicas-max-lag:60", true, Warning),
            (one(0, "online"), "min-replicas-to-write:0", false, Warning),
            (one(0, "online") + "min_slaves_good_slaves:1\n", "", true, Ok),
            (one(60, "online"), "min-replicas-to-write:1", true, Warning),
            (one(0, "wait_bgsave"), "min-replicas-to-write:1", true, Warning),
            ("connected_slaves:many".to_owned(), "", true, Unknown),
            ("connected_slaves:18446744073709551615\nslave0:x,y=,port=-1".to_owned(), "", true, Warning),
        ] {
            assert_eq!(judge(&Facts::of(&info, settings), needs).severity, severity, "{info} {settings}");
        }
    }

    #[test]
    fn persistence_is_judged_by_what_a_restart_forgets() {
        for (info, settings, severity) in [
            ("aof_enabled:1\naof_last_write_status:ok", "", Ok),
            ("aof_enabled:1\naof_last_write_status:err", "", Problem),
            ("aof_enabled:0", "save:", Warning),
            ("aof_enabled:0", "save:3600 1", Ok),
            ("aof_enabled:0", "other:1", Unknown),
            ("aof_enabled:0\nrdb_last_bgsave_status:err", "save:3600 1", Problem),
            ("aof_enabled:0\nrdb_last_bgsave_status:err", "stop-writes-on-bgsave-error:no", Warning),
            ("", "", Unknown),
        ] {
            assert_eq!(persistence(&Facts::of(info, settings)).severity, severity, "{info} {settings}");
        }
    }
}
