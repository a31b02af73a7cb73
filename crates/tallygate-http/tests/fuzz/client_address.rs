//! The walk over forwarded addresses: nothing left of what a trusted proxy wrote changes the answer, and nothing at all does
//! where nobody is trusted.

use std::net::IpAddr;
use std::sync::LazyLock;

use http::{HeaderMap, HeaderName, HeaderValue};
use tallygate_http::{ForwardedHeader, Prefixes, Trust, TrustedProxies, client_address};

const SINGLE: HeaderName = HeaderName::from_static("x-real-ip");

/// A proxy, a second one that stands before it, and the client that called that.
struct Cast {
    peer: IpAddr,
    inner: &'static str,
    client: IpAddr,
    networks: TrustedProxies,
}

static CAST: LazyLock<[Cast; 2]> = LazyLock::new(|| {
    let cast = |peer: &str, inner, client: &str, networks: &str| Cast {
        peer: peer.parse().expect("an address"),
        inner,
        client: client.parse().expect("an address"),
        networks: networks.parse().expect("networks"),
    };
    [
        cast("10.0.0.1", "10.0.0.2", "203.0.113.7", "10.0.0.0/8"),
        cast("fd00::1", "fd00::2", "2001:db8::7", "fd00::/8, 10.0.0.0/8"),
    ]
});

/// The first byte chooses the header and the cast; the rest is what the client sent, line by line.
pub fn run(input: &[u8]) {
    let Some((&choice, sent)) = input.split_first() else { return };
    let header = if choice & 1 == 0 { ForwardedHeader::XForwardedFor } else { ForwardedHeader::Forwarded };
    let cast = &CAST[usize::from(choice >> 1 & 1)];
    let name = HeaderName::from_static(if choice & 1 == 0 { "x-forwarded-for" } else { "forwarded" });
    let lines: Vec<&[u8]> = sent.split(|&byte| byte == b'\n').collect();

    let headers = all(&name, &lines);
    nobody_is_believed_unless_trusted(cast, &header, &headers);
    whoever_is_named_is_named_by_an_address(cast, &header, &headers);
    a_header_of_one_address_is_one(cast, &lines);
    networks_are_read_or_refused(&lines);

    // As the first proxy found it, the first proxy adds its client to the last line, or a line of its own; so does the second.
    for own_line in [false, true] {
        let client = element(choice, &cast.client.to_string());
        let Some(once) = added(&name, &lines, &[&client], own_line) else { continue };
        says(cast, &header, &once, &cast.networks.clone(), "through one proxy");
        says(cast, &header, &once, &TrustedProxies::hops(1), "through one hop");
        let inner = element(choice, cast.inner);
        let Some(twice) = added(&name, &lines, &[&client, &inner], own_line) else { continue };
        says(cast, &header, &twice, &cast.networks.clone(), "through two proxies");
        says(cast, &header, &twice, &TrustedProxies::hops(2), "through two hops");
    }
}

fn says(cast: &Cast, header: &ForwardedHeader, headers: &HeaderMap, proxies: &TrustedProxies, how: &str) {
    let trust = Trust { proxies: proxies.clone(), header: header.clone() };
    assert_eq!(client_address(cast.peer, headers, &trust), cast.client, "{how}: {headers:?}");
}

fn nobody_is_believed_unless_trusted(cast: &Cast, header: &ForwardedHeader, headers: &HeaderMap) {
    let nobody = Trust { proxies: TrustedProxies::none(), header: header.clone() };
    assert_eq!(client_address(cast.peer, headers, &nobody), cast.peer);
    let others = Trust { proxies: cast.networks.clone(), header: header.clone() };
    assert_eq!(client_address(cast.client, headers, &others), cast.client, "a stranger names another: {headers:?}");
}

fn whoever_is_named_is_named_by_an_address(cast: &Cast, header: &ForwardedHeader, headers: &HeaderMap) {
    for proxies in [cast.networks.clone(), TrustedProxies::hops(1), TrustedProxies::hops(3)] {
        let found = client_address(cast.peer, headers, &Trust { proxies, header: header.clone() });
        assert_eq!(found, found.to_canonical());
        assert!(!Prefixes::default().mask(found).is_empty());
    }
}

fn a_header_of_one_address_is_one(cast: &Cast, lines: &[&[u8]]) {
    let headers = all(&SINGLE, lines);
    let trust = Trust { proxies: cast.networks.clone(), header: ForwardedHeader::Single(SINGLE) };
    let found = client_address(cast.peer, &headers, &trust);
    assert!(headers.get_all(SINGLE).iter().count() == 1 || found == cast.peer, "none or two are believed: {headers:?}");
}

/// The operator's part: the networks of the proxies.
fn networks_are_read_or_refused(lines: &[&[u8]]) {
    for line in lines.iter().take(8) {
        let text = String::from_utf8_lossy(line);
        if let Err(error) = text.parse::<TrustedProxies>() {
            assert!(!error.to_string().is_empty() && error.to_string().len() <= 300 + 8 * text.len(), "{error}");
        }
    }
}

fn all(name: &HeaderName, lines: &[&[u8]]) -> HeaderMap {
    let valid = lines.iter().filter_map(|line| HeaderValue::from_bytes(line).ok());
    valid.map(|value| (name.clone(), value)).collect()
}

/// What the client sent, and what proxies added behind it; `None` if no server would have taken it.
fn added(name: &HeaderName, lines: &[&[u8]], elements: &[&str], own_line: bool) -> Option<HeaderMap> {
    let mut headers = all(name, lines);
    let behind = elements.join(", ");
    if own_line {
        headers.append(name, HeaderValue::from_str(&behind).ok()?);
        return Some(headers);
    }
    let (last, before) = lines.split_last()?;
    let mut headers = all(name, before);
    let joined = [last, &b", "[..], behind.as_bytes()].concat();
    headers.append(name, HeaderValue::from_bytes(&joined).ok()?);
    Some(headers)
}

/// The ways in which proxies write an address.
fn element(choice: u8, address: &str) -> String {
    let v6 = address.contains(':');
    let text = match (v6, choice >> 2 & 1 == 1) {
        (true, true) => format!("[{address}]:4711"),
        (true, false) if choice & 1 == 1 => format!("[{address}]"),
        (false, true) => format!("{address}:4711"),
        (_, false) => address.to_owned(),
    };
    match (choice & 1 == 1, choice >> 3 & 3) {
        (false, _) => text,
        (true, 0) => format!("for=\"{text}\""),
        (true, 1) => format!("for=\"{text}\";proto=https"),
        (true, 2) => format!("by=10.9.9.9;host=\"a;b,c\";For=\"{text}\""),
        (true, _) => format!("host=\"\\\"\";for=\"{text}\""),
    }
}
