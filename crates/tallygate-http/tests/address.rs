//! Nobody but a trusted proxy can say who is calling.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use tallygate_http::{ForwardedHeader, Prefixes, Trust, TrustedProxies, client_address};

const NAMES: [&str; 3] = ["x-forwarded-for", "forwarded", "cf-connecting-ip"];

fn kinds() -> [ForwardedHeader; 3] {
    let single = HeaderName::from_static("cf-connecting-ip");
    [ForwardedHeader::XForwardedFor, ForwardedHeader::Forwarded, ForwardedHeader::Single(single)]
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn trust(proxies: &str, header: ForwardedHeader) -> Trust {
    Trust { proxies: proxies.parse().unwrap(), header }
}

fn lines(name: &'static str, values: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

fn found(peer: &str, values: &[&str], trust: &Trust) -> String {
    let name = match trust.header {
        ForwardedHeader::Forwarded => "forwarded",
        ForwardedHeader::XForwardedFor => "x-forwarded-for",
        _ => "cf-connecting-ip",
    };
    client_address(ip(peer), &lines(name, values), trust).to_string()
}

#[test]
fn the_walk_ends_at_the_first_that_is_not_trusted() {
    let trust = trust("10.0.0.0/8, fd00::/8", ForwardedHeader::XForwardedFor);
    for (peer, values, expected) in [
        ("198.51.100.9", &["6.6.6.6"][..], "198.51.100.9"),
        ("10.0.0.1", &[], "10.0.0.1"),
        ("10.0.0.1", &["203.0.113.7"], "203.0.113.7"),
        ("::ffff:10.0.0.1", &["203.0.113.7"], "203.0.113.7"),
        ("fd00::1", &["6.6.6.6, 2001:db8::7, [fd00::2]:80"], "2001:db8::7"),
        ("10.0.0.1", &["6.6.6.6, 203.0.113.7:4711, 10.0.0.2"], "203.0.113.7"),
        ("10.0.0.1", &["6.6.6.6", "203.0.113.7", "10.0.0.3, 10.0.0.2"], "203.0.113.7"),
        ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", &["6.6.6.6, unknown, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", &["6.6.6.6, _hidden"], "10.0.0.1"),
        ("10.0.0.1", &["6.6.6.6,"], "10.0.0.1"),
        ("10.0.0.1", &["6.6.6.6", ""], "10.0.0.1"),
    ] {
        assert_eq!(found(peer, values, &trust), expected, "{peer} {values:?}");
    }
}

#[test]
fn forwarded_is_walked_alike() {
    let trust = trust("10.0.0.0/8", ForwardedHeader::Forwarded);
    for (values, expected) in [
        (&["for=6.6.6.6, for=\"[2001:db8::7]:4711\";proto=https, for=10.0.0.2"][..], "2001:db8::7"),
        (&["for=6.6.6.6;x=\"", "for=203.0.113.7"], "203.0.113.7"),
        (&["for=6.6.6.6;x=\", for=203.0.113.7"], "203.0.113.7"),
        (&["for=6.6.6.6, for=203.0.113.7;host=\"a, for=7.7.7.7\""], "203.0.113.7"),
        (&["for=203.0.113.7, for=\"_hidden\", for=10.0.0.2"], "10.0.0.2"),
        (&["203.0.113.7"], "10.0.0.1"),
    ] {
        assert_eq!(found("10.0.0.1", values, &trust), expected, "{values:?}");
    }
}

#[test]
fn hops_are_counted_from_the_right_and_exactly() {
    let walk = |hops: &str, values: &[&str]| found("192.0.2.1", values, &trust(hops, ForwardedHeader::XForwardedFor));
    assert_eq!(walk("1", &["6.6.6.6, 203.0.113.7"]), "203.0.113.7");
    assert_eq!(walk("2", &["6.6.6.6, 203.0.113.7", "198.51.100.2"]), "203.0.113.7");
    assert_eq!(walk("3", &["203.0.113.7, 198.51.100.2"]), "192.0.2.1");
    assert_eq!(walk("2", &["6.6.6.6, unknown, 198.51.100.2"]), "192.0.2.1");
    assert_eq!(walk("0", &["6.6.6.6"]), "192.0.2.1");
}

#[test]
fn a_single_header_is_believed_once() {
    let [_, _, single] = kinds();
    let networks = trust("10.0.0.0/8", single);
    assert_eq!(found("10.0.0.1", &["203.0.113.7"], &networks), "203.0.113.7");
    assert_eq!(found("192.0.2.1", &["203.0.113.7"], &networks), "192.0.2.1");
    assert_eq!(found("10.0.0.1", &["6.6.6.6", "203.0.113.7"], &networks), "10.0.0.1");
    assert_eq!(found("10.0.0.1", &["6.6.6.6, 203.0.113.7"], &networks), "10.0.0.1");
}

#[test]
fn proxies_read_back_as_written() {
    for (text, canonical) in [
        ("", "none"),
        ("none", "none"),
        ("0", "none"),
        ("2", "2"),
        (" 10.1.2.3/8 , ::1", "10.0.0.0/8,::1/128"),
        ("::ffff:10.0.0.0/104, ::ffff:192.0.2.1", "10.0.0.0/8,192.0.2.1/32"),
        ("::/0", "::/0"),
    ] {
        let proxies: TrustedProxies = text.parse().unwrap();
        assert_eq!(proxies.to_string(), canonical, "{text}");
        assert_eq!(canonical.parse(), Ok(proxies), "{text}");
    }
    for (text, part) in [("10.0.0/8", "10.0.0/8"), ("10.0.0.0/8,,::1", ""), ("::1, proxy", "proxy"), ("-1", "-1")] {
        assert_eq!(text.parse::<TrustedProxies>().unwrap_err().part, part, "{text}");
    }
    assert!(
        "10.0.0.0/33".parse::<TrustedProxies>().unwrap_err().to_string().starts_with("invalid proxy `10.0.0.0/33`")
    );
}

fn addresses() -> impl Strategy<Value = IpAddr> {
    let mapped = any::<Ipv4Addr>().prop_map(|address| address.to_ipv6_mapped().into());
    prop_oneof![any::<Ipv4Addr>().prop_map(IpAddr::V4), any::<Ipv6Addr>().prop_map(IpAddr::V6), mapped]
}

/// Text as attackers write it: addresses, near misses, and any bytes a header can hold.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::sample::select(vec![
        ",", ";", "\"", "\\", "for=", "for=\"", "=", "[", "]", ":", " ", "10.0.0.9", "6.6.6.6", "::1", "unknown", "_x",
    ]);
    let pieces = prop::collection::vec(pieces, 0..12).prop_map(|pieces| pieces.concat().into_bytes());
    let bytes = prop::collection::vec(prop_oneof![Just(b'\t'), 32_u8..127, 128_u8..=255], 0..40);
    prop_oneof![pieces, bytes]
}

fn append(headers: &mut HeaderMap, name: &'static str, value: &[u8]) {
    headers.append(name, HeaderValue::from_bytes(value).unwrap());
}

/// As proxies write it; RFC 7239 demands quotes and brackets around IPv6.
fn entry(address: IpAddr, kind: &ForwardedHeader, port: Option<u16>) -> String {
    let plain = match (address, port) {
        (IpAddr::V6(v6), Some(port)) => format!("[{v6}]:{port}"),
        (IpAddr::V4(v4), Some(port)) => format!("{v4}:{port}"),
        (IpAddr::V6(v6), None) if *kind == ForwardedHeader::Forwarded => format!("[{v6}]"),
        _ => address.to_string(),
    };
    match kind {
        ForwardedHeader::Forwarded => format!("proto=https;for=\"{plain}\";host=\"a,b;\\\"c\""),
        _ => plain,
    }
}

proptest! {
    #[test]
    fn without_trust_no_header_changes_the_answer(
        peer in addresses(), headers in prop::collection::vec((0_usize..3, hostile()), 0..5), kind in 0_usize..3,
    ) {
        let mut map = HeaderMap::new();
        for (name, value) in &headers {
            append(&mut map, NAMES[*name], value);
        }
        let header = kinds()[kind].clone();
        let nobody = Trust { proxies: TrustedProxies::none(), header: header.clone() };
        prop_assert_eq!(client_address(peer, &map, &nobody), peer.to_canonical());
        // Nor does the header of a peer that is not among the trusted.
        prop_assume!(peer.to_canonical() != ip("10.0.0.9"));
        prop_assert_eq!(client_address(peer, &map, &trust("10.0.0.9", header)), peer.to_canonical());
    }

    #[test]
    fn what_the_caller_writes_never_changes_the_answer(
        before in prop::collection::vec(hostile(), 0..4), caller in addresses(), port: Option<u16>,
        hops in prop::collection::vec((1_u8..255, any::<bool>()), 0..4), glued: bool, forwarded: bool, counted: bool,
    ) {
        prop_assume!(!matches!(caller.to_canonical(), IpAddr::V4(v4) if v4.octets()[0] == 10));
        let kind = kinds()[usize::from(forwarded)].clone();
        let name = NAMES[usize::from(forwarded)];
        // The caller's lines, then what each proxy appends, to the last line or as a line of its own.
        let mut written = before.clone();
        let honest = std::iter::once((entry(caller, &kind, port), glued)).chain(
            hops.iter().map(|&(host, glued)| (entry(IpAddr::from([10, 0, 0, host]), &kind, None), glued)));
        for (entry, glued) in honest {
            match written.last_mut() {
                Some(line) if glued => {
                    line.extend(b", ");
                    line.extend(entry.as_bytes());
                }
                _ => written.push(entry.into_bytes()),
            }
        }
        let mut map = HeaderMap::new();
        for line in &written {
            append(&mut map, name, line);
        }
        let proxies = if counted { TrustedProxies::hops(hops.len() + 1) } else { "10.0.0.0/8".parse().unwrap() };
        let answer = client_address(ip("10.0.0.1"), &map, &Trust { proxies, header: kind });
        prop_assert_eq!(answer, caller.to_canonical(), "{:?}", map);
    }

    /// Whatever they say, trusted proxies included: it ends, and with an address in canonical form.
    #[test]
    fn no_bytes_make_it_panic(
        values in prop::collection::vec(hostile(), 0..4), kind in 0_usize..3, hops in 0_usize..4,
    ) {
        let mut map = HeaderMap::new();
        for value in &values {
            append(&mut map, NAMES[kind], value);
        }
        for proxies in [TrustedProxies::hops(hops), "0.0.0.0/0, ::/0".parse().unwrap()] {
            let answer = client_address(ip("10.0.0.1"), &map, &Trust { proxies, header: kinds()[kind].clone() });
            prop_assert_eq!(answer, answer.to_canonical());
        }
    }

    #[test]
    fn proxies_of_any_text_are_read_or_refused(text in "\\PC{0,20}|[0-9a-f:./, ]{0,30}") {
        if let Ok(proxies) = text.parse::<TrustedProxies>() {
            prop_assert_eq!(proxies.to_string().parse(), Ok(proxies));
        }
    }

    #[test]
    fn a_network_of_ipv6_is_one_caller(network: u64, one: u64, other: u64) {
        let address = |host: u64| IpAddr::from(Ipv6Addr::from_bits(u128::from(network) << 64 | u128::from(host)));
        prop_assume!(network != 0);
        let text = Prefixes::default().mask(address(one));
        prop_assert_eq!(&text, &Prefixes::default().mask(address(other)));
        prop_assert!(text.ends_with("::/64"), "{text}");
        let next = IpAddr::from(Ipv6Addr::from_bits(u128::from(network ^ 1) << 64 | u128::from(one)));
        prop_assert_ne!(text, Prefixes::default().mask(next));
    }

    #[test]
    fn a_mapped_address_is_the_address(address: Ipv4Addr, v4: u8, v6: u8) {
        let prefixes = Prefixes { v4, v6 };
        prop_assert_eq!(prefixes.mask(address.into()), prefixes.mask(address.to_ipv6_mapped().into()));
        prop_assert_eq!(Prefixes::default().mask(address.into()), address.to_string());
    }

    #[test]
    fn more_bits_than_there_are_count_as_all(address in addresses(), more in 128_u8..) {
        prop_assert_eq!(Prefixes { v4: more, v6: more }.mask(address), address.to_canonical().to_string());
    }
}
