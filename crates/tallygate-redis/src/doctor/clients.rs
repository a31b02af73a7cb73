//! Connections that are left, connections that the server closes by itself, and when scripts make it answer `BUSY`.

use super::facts::{Facts, Missing};
use super::finding::{DoctorCheck, Finding};

pub(super) fn judge(facts: &Facts) -> Finding {
    let check = DoctorCheck::Clients;
    let info = match &facts.info {
        Ok(info) => info,
        Err(missing) => return Finding::unknown(check, &missing.why).fix(&missing.remedy),
    };
    let number = |name: &str| facts.setting(name).and_then(|value| value.parse::<u64>().ok());
    let (Some(open), Some(most)) = (info.number("connected_clients"), info.number("maxclients")) else {
        return Finding::unknown(check, "the server does not say how many clients it has and may have");
    };
    let found = format!("{open} of {most} connections open");
    if u128::from(open) * 10 >= u128::from(most) * 8 {
        return Finding::warning(check, found)
            .means(6, "when none is left, an instance that connects anew cannot ask, and answers by on_error")
            .fix("CONFIG SET maxclients to a higher number (and LimitNOFILE with it), or find who opens so many: CLIENT LIST");
    }
    match (number("timeout"), number("tcp-keepalive")) {
        (Some(idle @ 1..60), _) => {
            Finding::warning(check, format!("{found}; idle ones are closed after {idle} s (timeout)"))
                .means(6, "the first call after a quiet moment waits for a new connection")
                .fix("CONFIG SET timeout 0, or at least 60")
        }
        (_, Some(0)) => Finding::warning(check, format!("{found}; tcp-keepalive is off"))
            .means(6, "connections of machines that vanished stay open and count towards maxclients")
            .fix("CONFIG SET tcp-keepalive 300"),
        _ => Finding::ok(check, found),
    }
}

/// After this many milliseconds a running script makes the server answer `BUSY` to others.
pub(super) fn script_limit(facts: &Facts) -> Finding {
    let check = DoctorCheck::ScriptLimit;
    if let Err(Missing { why, remedy, .. }) = &facts.settings {
        return Finding::unknown(check, why).fix(remedy);
    }
    // The newer name first; both are there from Redis 7 on.
    let names = ["busy-reply-threshold", "lua-time-limit"];
    let set = names.into_iter().find_map(|name| Some((name, facts.setting(name)?.parse::<i64>().ok()?)));
    match set {
        None => Finding::unknown(check, "the server does not say after how long it answers BUSY"),
        Some((name, limit)) if limit <= 0 => Finding::warning(
            check,
            format!("{name} {limit}: a script may run for ever"),
        )
        .means(
            6,
            "a script of another client that does not end hangs the server for good, and nobody gets the reply BUSY",
        )
        .fix(format!("CONFIG SET {name} 5000")),
        Some((name, limit @ 1..100)) => Finding::warning(check, format!("{name} {limit} ms"))
            .means(6, "a short pause of the server is answered with BUSY, an error, instead of a late decision")
            .fix(format!("CONFIG SET {name} 5000")),
        Some((name, limit)) => Finding::ok(check, format!("{name} {limit} ms")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{Ok, Unknown, Warning};
    use super::*;

    #[test]
    fn connections_are_judged_by_what_is_left() {
        for (info, settings, severity) in [
            ("connected_clients:5\nmaxclients:10000", "timeout:0\ntcp-keepalive:300", Ok),
            ("connected_clients:8000\nmaxclients:10000", "", Warning),
            ("connected_clients:5\nmaxclients:10000", "timeout:10", Warning),
            ("connected_clients:5\nmaxclients:10000", "timeout:60", Ok),
            ("connected_clients:5\nmaxclients:10000", "tcp-keepalive:0", Warning),
            ("connected_clients:18446744073709551615\nmaxclients:0", "", Warning),
            ("connected_clients:-1", "", Unknown),
        ] {
            assert_eq!(judge(&Facts::of(info, settings)).severity, severity, "{info} {settings}");
        }
    }

    #[test]
    fn an_odd_script_limit_is_found() {
        for (settings, severity) in [
            ("lua-time-limit:5000", Ok),
            ("lua-time-limit:5000\nbusy-reply-threshold:10", Warning),
            ("busy-reply-threshold:0", Warning),
            ("busy-reply-threshold:-5", Warning),
            ("busy-reply-threshold:soon", Unknown),
        ] {
            assert_eq!(script_limit(&Facts::of("", settings)).severity, severity, "{settings}");
        }
    }
}
