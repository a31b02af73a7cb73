//! W3C's `traceparent`: which trace a call belongs to.

use std::fmt;

use http::HeaderMap;

const SAMPLED: u8 = 1;
/// Version, trace, parent and flags, with dashes between.
const LENGTH: usize = 55;

/// The span of the caller that a call is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    pub(super) trace_id: u128,
    pub(super) span_id: u64,
    flags: u8,
}

impl TraceParent {
    /// Reads the header `traceparent`. What is not exactly as W3C writes it, or is there twice, is as good as absent.
    pub fn parse(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all("traceparent").iter();
        let value = values.next()?.as_bytes();
        if values.next().is_some() {
            return None;
        }
        Self::from_bytes(value)
    }

    fn from_bytes(value: &[u8]) -> Option<Self> {
        let (known, more) = value.split_at_checked(LENGTH)?;
        if [2, 35, 52].iter().any(|dash| known[*dash] != b'-') {
            return None;
        }
        let version = hex(&known[..2])?;
        // Later versions may append fields, this one may not; ff is no version.
        let ends = more.is_empty() || (version > 0 && more[0] == b'-');
        let trace_id = hex(&known[3..35])?;
        let span_id = u64::try_from(hex(&known[36..52])?).ok()?;
        let flags = u8::try_from(hex(&known[53..])?).ok()?;
        (ends && version < 0xff && trace_id != 0 && span_id != 0).then_some(Self { trace_id, span_id, flags })
    }

    /// Whether the caller records its span.
    pub fn sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

/// As version 00 writes it.
impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

/// Lower-case digits only, as the standard wants them.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn parse(value: &[u8]) -> Option<TraceParent> {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", HeaderValue::from_bytes(value).ok()?);
        TraceParent::parse(&headers)
    }

    const EXAMPLE: &str = "00-0123456789abcdef0123456789abcdef-00000000000000ff-01";

    #[test]
    fn a_parent_is_read() {
        let parent = parse(EXAMPLE.as_bytes()).unwrap();
        assert_eq!((parent.trace_id, parent.span_id), (0x0123_4567_89ab_cdef_0123_4567_89ab_cdef, 0xff));
        assert!(parent.sampled());
    }

    #[test]
    fn what_the_standard_forbids_is_no_parent() {
        let bad = [
            "",
            "00",
            "ff-0123456789abcdef0123456789abcdef-00000000000000ff-01",
            "00-0123456789ABCDEF0123456789abcdef-00000000000000ff-01",
            "00-00000000000000000000000000000000-00000000000000ff-01",
            "00-0123456789abcdef0123456789abcdef-0000000000000000-01",
            "00-0123456789abcdef0123456789abcdef-00000000000000ff-01-more",
            "01-0123456789abcdef0123456789abcdef-00000000000000ff-01more",
            "00-+123456789abcdef0123456789abcdef-00000000000000ff-01",
            "00-0123456789abcdef0123456789abcdef_00000000000000ff-01",
        ];
        for value in bad {
            assert_eq!(parse(value.as_bytes()), None, "{value}");
        }
        let mut twice = HeaderMap::new();
        twice.append("traceparent", HeaderValue::from_static(EXAMPLE));
        twice.append("traceparent", HeaderValue::from_static(EXAMPLE));
        assert_eq!(TraceParent::parse(&twice), None);
    }

    #[test]
    fn a_later_version_may_say_more() {
        let later = EXAMPLE.replacen("00", "01", 1);
        assert_eq!(parse(format!("{later}-more").as_bytes()), parse(EXAMPLE.as_bytes()));
        assert_eq!(parse(later.as_bytes()), parse(EXAMPLE.as_bytes()));
    }

    proptest! {
        #[test]
        fn valid_parents_survive_a_round_trip(trace_id in 1u128.., span_id in 1u64.., flags: u8) {
            let parent = TraceParent { trace_id, span_id, flags };
            prop_assert_eq!(parse(parent.to_string().as_bytes()), Some(parent));
        }

        #[test]
        fn any_bytes_are_a_parent_that_reads_back_or_none(
            mut value in prop_oneof![Just(EXAMPLE.as_bytes().to_vec()), prop::collection::vec(any::<u8>(), 0..80)],
            at: prop::sample::Index,
            byte: u8,
        ) {
            if !value.is_empty() {
                let at = at.index(value.len());
                value[at] = byte;
            }
            if let Some(parent) = TraceParent::from_bytes(&value) {
                prop_assert_eq!(parse(parent.to_string().as_bytes()), Some(parent));
            }
        }
    }
}
