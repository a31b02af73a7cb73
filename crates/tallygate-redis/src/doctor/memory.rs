//! Memory: eviction, the maximum, and what is left of it.

use super::facts::Facts;
use super::finding::{DoctorCheck, Finding};

/// Percent of `maxmemory` from which on it is time to act.
const NEARLY_FULL: u64 = 80;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    use DoctorCheck::{EvictionPolicy, Evictions, Memory};
    let info = match &facts.info {
        Ok(info) => info,
        Err(missing) => {
            let unknown = |check| Finding::unknown(check, &missing.why).fix(&missing.remedy);
            return [EvictionPolicy, Evictions, Memory].map(unknown).into();
        }
    };
    let policy = info.text("maxmemory_policy").or(facts.setting("maxmemory-policy"));
    let most = info.number("maxmemory");
    let evicts = policy.is_some_and(|policy| policy != "noeviction");
    let mut findings = vec![match policy {
        None => Finding::unknown(EvictionPolicy, "the server does not say its maxmemory-policy"),
        Some(_) if !evicts => Finding::ok(EvictionPolicy, "noeviction"),
        Some(policy) => {
            let found = format!("maxmemory-policy {policy}");
            let finding = match most {
                Some(0) => Finding::warning(EvictionPolicy, found + ", without a maxmemory so far"),
                _ => Finding::problem(EvictionPolicy, found),
            };
            finding
                .means(7, "when its memory is full it evicts keys, and each evicted key is a limit that starts over")
                .fix("CONFIG SET maxmemory-policy noeviction, and the same in its configuration file")
        }
    }];
    findings.push(match info.number("evicted_keys") {
        None => Finding::unknown(Evictions, "the server does not say how many keys it has evicted"),
        Some(0) => Finding::ok(Evictions, "none since the server started"),
        Some(keys) => {
            let found = format!("{keys} keys evicted since the server started");
            let finding = if evicts {
                Finding::problem(Evictions, found)
            } else {
                Finding::warning(Evictions, found + ", before the policy was noeviction")
            };
            finding
                .means(7, "each eviction reset a limit: it admitted up to one capacity more")
                .fix("use a dedicated server or more memory, with maxmemory-policy noeviction; CONFIG RESETSTAT forgets the count")
        }
    });
    findings.push(headroom(most, info.number("used_memory"), evicts));
    findings
}

fn headroom(most: Option<u64>, used: Option<u64>, evicts: bool) -> Finding {
    let check = DoctorCheck::Memory;
    let (Some(most), Some(used)) = (most, used) else {
        return Finding::unknown(check, "the server does not say how much memory it uses");
    };
    if most == 0 {
        return Finding::warning(check, format!("no maxmemory, {} used", megabytes(used)))
            .means(7, "it grows until the system kills it, and a restart without persistence forgets every limit")
            .fix("CONFIG SET maxmemory to about three quarters of the memory of the machine or container");
    }
    let percent = u64::try_from(u128::from(used) * 100 / u128::from(most)).unwrap_or(u64::MAX);
    let found = format!("{percent} % of maxmemory used ({} of {})", megabytes(used), megabytes(most));
    let full = if evicts {
        "when it is full it evicts keys, which resets limits"
    } else {
        "when it is full, no call can be charged"
    };
    let fix = "raise maxmemory, or move other data away; `tallygate audit` shows which policies use it";
    match percent {
        100.. if !evicts => Finding::problem(check, found)
            .means(7, "no call can be charged: calls that would be allowed end in an error")
            .fix(fix),
        NEARLY_FULL.. => Finding::warning(check, found).means(7, full).fix(fix),
        _ => Finding::ok(check, found),
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{}.{} MiB", bytes >> 20, (bytes >> 10) % 1024 * 10 / 1024)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{self, Ok, Problem, Unknown, Warning};
    use super::*;

    fn severities(info: &str) -> Vec<Severity> {
        judge(&Facts::of(info, "")).iter().map(|finding| finding.severity).collect()
    }

    #[test]
    fn memory_is_judged_with_its_policy() {
        let info = |policy: &str, most: u64, used: u64, evicted: u64| {
            severities(&format!(
                "maxmemory_policy:{policy}\nmaxmemory:{most}\nused_memory:{used}\nevicted_keys:{evicted}\n"
            ))
        };
        assert_eq!(info("noeviction", 1000, 799, 0), [Ok, Ok, Ok]);
        assert_eq!(info("noeviction", 1000, 800, 0), [Ok, Ok, Warning]);
        assert_eq!(info("noeviction", 1000, 1000, 0), [Ok, Ok, Problem]);
        assert_eq!(info("noeviction", 0, 800, 5), [Ok, Warning, Warning]);
        assert_eq!(info("allkeys-lru", 0, 800, 0), [Warning, Ok, Warning]);
        assert_eq!(info("volatile-ttl", 1000, 1100, 7), [Problem, Problem, Warning]);
        assert_eq!(severities("garbage"), [Unknown, Unknown, Unknown]);
        assert_eq!(info("noeviction", u64::MAX, u64::MAX, u64::MAX), [Ok, Warning, Problem]);
    }
}
