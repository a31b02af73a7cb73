//! The version of a server: whether it is supported, and whether its Lua has a known hole.

use super::facts::{Facts, Fields};
use super::finding::{DoctorCheck, Finding};

const CHECK: DoctorCheck = DoctorCheck::Version;

/// Of each branch the first version without CVE-2025-49844: a client that may run scripts could run any code on the server.
const FIXED_REDIS: [[u32; 3]; 5] = [[6, 2, 20], [7, 2, 11], [7, 4, 6], [8, 0, 4], [8, 2, 2]];
const FIXED_VALKEY: [[u32; 3]; 4] = [[7, 2, 11], [8, 0, 6], [8, 1, 4], [9, 0, 0]];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Version {
    valkey: bool,
    /// Major, minor, patch.
    number: Option<[u32; 3]>,
    written: String,
}

impl Version {
    pub(super) fn of(info: &Fields) -> Self {
        // Valkey also reports a `redis_version`, the Redis version that it is compatible with.
        let valkey = info.text("valkey_version");
        let written = valkey.or(info.text("redis_version")).unwrap_or("unknown").to_owned();
        Self { valkey: valkey.is_some(), number: parse(&written), written }
    }

    /// `Redis 7.0.15`, `Valkey 9.1.2`.
    pub(super) fn name(&self) -> String {
        format!("{} {}", if self.valkey { "Valkey" } else { "Redis" }, self.written)
    }

    fn is_fixed(&self, number: [u32; 3]) -> bool {
        let fixed: &[[u32; 3]] = if self.valkey { &FIXED_VALKEY } else { &FIXED_REDIS };
        let newest = fixed.last().is_some_and(|newest| number >= *newest);
        newest || fixed.iter().any(|fixed| number[..2] == fixed[..2] && number >= *fixed)
    }
}

/// `7.0.15`, `8.0-rc1`; missing parts are zero.
fn parse(text: &str) -> Option<[u32; 3]> {
    let mut parts = text.split(['.', '-', '+', ' ']).map(|part| part.parse::<u32>().ok());
    Some([parts.next()??, parts.next().flatten().unwrap_or(0), parts.next().flatten().unwrap_or(0)])
}

pub(super) fn judge(facts: &Facts) -> Finding {
    let info = match &facts.info {
        Ok(info) => info,
        Err(missing) => return Finding::unknown(CHECK, &missing.why).fix(&missing.remedy),
    };
    let version = Version::of(info);
    let Some(number) = version.number else {
        return Finding::unknown(CHECK, format!("the server does not say its version (`{}`)", version.written))
            .fix("tallygate is tested on Redis 6.2 to 8 and Valkey 8 and 9: compatible servers may differ");
    };
    let (oldest, named) = if version.valkey { ([8, 0, 0], "Valkey 8") } else { ([6, 2, 0], "Redis 6.2") };
    if number < oldest {
        let old = format!("{} is older than {named}, the oldest supported version", version.name());
        let old = if version.valkey { Finding::warning(CHECK, old) } else { Finding::problem(CHECK, old) };
        return old.means(1, "the scripts were never tested there and may fail").fix("upgrade the server");
    }
    if !version.is_fixed(number) {
        let fixed = if version.valkey { "8.0.6, 8.1.4 or 9" } else { "6.2.20, 7.2.11, 7.4.6, 8.0.4 or 8.2.2" };
        return Finding::warning(CHECK, format!("{} has CVE-2025-49844, unless it was patched", version.name()))
            .means(10, "a client that may run scripts on it can run any code there, and change any limit")
            .fix(format!(
                "upgrade to {fixed} or later. Distributions such as Debian patch old versions without changing the \
                 number: check the security tracker of yours"
            ));
    }
    Finding::ok(CHECK, version.name())
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;

    #[test]
    fn versions_are_judged_by_their_branch() {
        for (info, severity) in [
            ("redis_version:6.0.16", Severity::Problem),
            ("redis_version:6.2.19", Severity::Warning),
            ("redis_version:6.2.20", Severity::Ok),
            ("redis_version:7.0.15", Severity::Warning),
            ("redis_version:7.2.10", Severity::Warning),
            ("redis_version:7.2.11", Severity::Ok),
            ("redis_version:7.4.5", Severity::Warning),
            ("redis_version:7.4.6", Severity::Ok),
            ("redis_version:8.0.3", Severity::Warning),
            ("redis_version:8.0.4", Severity::Ok),
            ("redis_version:8.2.1", Severity::Warning),
            ("redis_version:8.2.2", Severity::Ok),
            ("redis_version:8.4.0", Severity::Ok),
            ("redis_version:7.2.4\nvalkey_version:7.2.11", Severity::Warning),
            ("redis_version:7.2.4\nvalkey_version:8.0.5", Severity::Warning),
            ("redis_version:7.2.4\nvalkey_version:8.0.6", Severity::Ok),
            ("redis_version:7.2.4\nvalkey_version:8.1.4", Severity::Ok),
            ("redis_version:7.2.4\nvalkey_version:9.0.1", Severity::Ok),
            ("redis_version:255.255.255", Severity::Ok),
            ("redis_version:99999999999999.1", Severity::Unknown),
            ("redis_version:", Severity::Unknown),
            ("nothing", Severity::Unknown),
        ] {
            assert_eq!(judge(&Facts::of(info, "")).severity, severity, "{info}");
        }
    }
}
