//! The entries of `X-Forwarded-For` and `Forwarded`, read from the right.
//!
//! An attacker may have written everything left of what a trusted proxy wrote, quotes included. So lines are split from
//! the right, where the trusted text is: nothing further left can change how it is read.

use std::net::{IpAddr, SocketAddr};

/// The members of a comma-separated line, the last first; commas in quotes do not separate.
pub(super) fn from_the_right(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let open = rest?;
        let mut in_quotes = false;
        for (at, byte) in open.iter().enumerate().rev() {
            match byte {
                b'"' if !is_escaped(open, at) => in_quotes = !in_quotes,
                b',' if !in_quotes => {
                    rest = Some(&open[..at]);
                    return Some(&open[at + 1..]);
                }
                _ => {}
            }
        }
        rest = None;
        Some(open)
    })
}

/// Whether an odd number of backslashes precedes it.
fn is_escaped(line: &[u8], at: usize) -> bool {
    line[..at].iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 1
}

/// The address of an entry: `192.0.2.7`, `192.0.2.7:4711`, `[2001:db8::1]:4711`, any of them in quotes. `None` for
/// `unknown`, `_hidden` and anything else.
pub(super) fn address(entry: &[u8]) -> Option<IpAddr> {
    let entry = unquoted(str::from_utf8(entry).ok()?.trim_matches([' ', '\t']))?;
    let address = entry.parse().ok().or_else(|| with_port(entry));
    address.map(|address: IpAddr| address.to_canonical())
}

/// The address in an element of `Forwarded`: that of its one `for`.
pub(super) fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let element = str::from_utf8(element).ok()?;
    let mut found = None;
    for pair in pairs(element) {
        let (name, value) = pair.split_once('=')?;
        // Given twice, neither is trusted.
        if name.trim_matches([' ', '\t']).eq_ignore_ascii_case("for") && found.replace(value).is_some() {
            return None;
        }
    }
    address(found?.as_bytes())
}

/// `a=b;c="d;e"` cut at the semicolons outside of quotes.
fn pairs(element: &str) -> impl Iterator<Item = &str> {
    let (mut in_quotes, mut escaped) = (false, false);
    element.split(move |c| {
        let was_escaped = escaped;
        escaped = in_quotes && !was_escaped && c == '\\';
        if c == '"' && !was_escaped {
            in_quotes = !in_quotes;
        }
        c == ';' && !in_quotes
    })
}

/// Without its quotes. Addresses have no escapes.
fn unquoted(entry: &str) -> Option<&str> {
    match entry.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"'),
        None => Some(entry),
    }
}

/// Ignores the port. In `Forwarded` it may be obfuscated: `192.0.2.7:_port`.
fn with_port(entry: &str) -> Option<IpAddr> {
    if let Ok(socket) = entry.parse::<SocketAddr>() {
        return Some(socket.ip());
    }
    let host = match entry.rsplit_once(':') {
        Some((host, port)) if port.starts_with('_') => host,
        _ => entry,
    };
    match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.parse().ok().filter(IpAddr::is_ipv6),
        None => host.parse().ok().filter(IpAddr::is_ipv4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_every_form_proxies_write() {
        for (entry, expected) in [
            ("192.0.2.7", "192.0.2.7"),
            (" \t192.0.2.7 ", "192.0.2.7"),
            ("192.0.2.7:4711", "192.0.2.7"),
            ("\"192.0.2.7:4711\"", "192.0.2.7"),
            ("192.0.2.7:_hidden", "192.0.2.7"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("\"[2001:DB8::1]:4711\"", "2001:db8::1"),
            ("[2001:db8::1]:_hidden", "2001:db8::1"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("[::ffff:c000:207]:5", "192.0.2.7"),
        ] {
            assert_eq!(address(entry.as_bytes()), Some(expected.parse().unwrap()), "{entry}");
        }
    }

    #[test]
    fn anything_that_is_not_an_address_is_none() {
        for entry in [
            "",
            " ",
            "unknown",
            "_hidden",
            "\"_hidden\"",
            "192.0.2",
            "192.0.2.7:",
            "192.0.2.7:99999",
            "192.0.2.7:x",
            "192.0.2.07",
            "[192.0.2.7]",
            "[2001:db8::1",
            "2001:db8::1]",
            "[2001:db8::1]x",
            "\"192.0.2.7",
            "192.0.2.7\"",
            "example.com",
            "192.0.2.7 192.0.2.8",
            "fe80::1%eth0",
            "\"",
            "\"\"",
            ":",
            "_",
            "[]",
            "[]:_",
        ] {
            assert_eq!(address(entry.as_bytes()), None, "{entry}");
        }
        assert_eq!(address(b"192.0.2.7\xff"), None);
    }

    #[test]
    fn an_element_has_one_for() {
        let read = |element: &str| forwarded_for(element.as_bytes()).map(|address| address.to_string());
        let found = |text: &str| Some(text.to_owned());
        assert_eq!(read("for=192.0.2.7"), found("192.0.2.7"));
        assert_eq!(read(" by=unknown; FOR=\"[2001:db8::1]:80\" ;proto=https"), found("2001:db8::1"));
        assert_eq!(read("host=\"a;for=6.6.6.6\";for=192.0.2.7"), found("192.0.2.7"));
        assert_eq!(read("host=\"a\\\";for=6.6.6.6\";for=192.0.2.7"), found("192.0.2.7"));
        assert_eq!(read("for=192.0.2.7;for=6.6.6.6"), None);
        assert_eq!(read("for=unknown"), None);
        assert_eq!(read("proto=https"), None);
        assert_eq!(read("192.0.2.7"), None);
        assert_eq!(read(""), None);
    }

    #[test]
    fn members_come_from_the_right_and_commas_in_quotes_do_not_count() {
        let members = |line: &'static str| from_the_right(line.as_bytes()).collect::<Vec<_>>();
        assert_eq!(members("a, b,c"), [&b"c"[..], b" b", b"a"]);
        assert_eq!(members(""), [b""]);
        assert_eq!(members(",a,"), [&b""[..], b"a", b""]);
        assert_eq!(members("a,h=\"x, y\""), [&b"h=\"x, y\""[..], b"a"]);
        assert_eq!(members("a,h=\"x\\\", y\""), [&b"h=\"x\\\", y\""[..], b"a"]);
        assert_eq!(members("for=6.6.6.6;x=\", for=192.0.2.7"), [&b" for=192.0.2.7"[..], b"for=6.6.6.6;x=\""]);
    }
}
