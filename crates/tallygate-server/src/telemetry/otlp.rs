//! Where spans go, and of how many calls.

use std::str::FromStr;

use http::Uri;

use super::TelemetryError;

/// Where spans go, and of how many calls.
#[derive(Debug, Clone)]
pub struct OtlpSettings {
    pub(super) endpoint: Endpoint,
    pub(super) ratio: SampleRatio,
    /// Spans that wait to be sent; more are dropped and counted.
    pub(super) queue: usize,
}

impl OtlpSettings {
    /// To the collector at `url`, as in `http://127.0.0.1:4318`. Of calls that belong to no trace, one in a hundred.
    pub fn new(url: &str) -> Result<Self, TelemetryError> {
        Ok(Self { endpoint: Endpoint::new(url)?, ratio: SampleRatio::default(), queue: 4_096 })
    }

    /// Traces another share of the calls that belong to no trace. Those that do follow their caller.
    #[must_use]
    pub fn with_ratio(mut self, ratio: SampleRatio) -> Self {
        self.ratio = ratio;
        self
    }
}

/// A collector that takes OTLP over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// Host and port, as a header and as an address.
    pub(super) authority: String,
    pub(super) path: String,
}

impl Endpoint {
    fn new(url: &str) -> Result<Self, TelemetryError> {
        let fail = |reason| TelemetryError::Endpoint { url: url.to_owned(), reason };
        let uri: Uri = url.parse().map_err(|_| fail("is not a URL: write one like http://127.0.0.1:4318"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(fail("https is not spoken here: point it at a collector on this machine or network"));
            }
            _ => return Err(fail("does not begin with http://: write one like http://127.0.0.1:4318")),
        }
        let authority = uri.authority().ok_or_else(|| fail("names no host"))?;
        if authority.as_str().contains('@') {
            // Not repeated: it may be a password.
            let url = "http://...@...".to_owned();
            return Err(TelemetryError::Endpoint { url, reason: "names a user, and none can be sent: leave it out" });
        }
        if uri.query().is_some() {
            return Err(fail("has a query, and none can be sent: leave it out"));
        }
        if authority.host().is_empty() {
            return Err(fail("names no host"));
        }
        let port = match (authority.port_u16(), authority.as_str().len() == authority.host().len()) {
            (Some(port), _) => port,
            // The port of OTLP over HTTP.
            (None, true) => 4318,
            (None, false) => return Err(fail("has a port that is no number from 0 to 65535")),
        };
        let base = uri.path().trim_end_matches('/');
        let path = if base.ends_with("/v1/traces") { base.to_owned() } else { format!("{base}/v1/traces") };
        Ok(Self { authority: format!("{}:{port}", authority.host()), path })
    }
}

/// Of how many calls a span is sent: from 0 to 1, one in a hundred unless said.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleRatio(f64);

impl Default for SampleRatio {
    fn default() -> Self {
        Self(0.01)
    }
}

impl FromStr for SampleRatio {
    type Err = TelemetryError;

    fn from_str(written: &str) -> Result<Self, TelemetryError> {
        let number = |text: &str| text.trim_end().parse::<f64>().ok();
        let ratio = match written.strip_suffix('%') {
            Some(percent) => number(percent).map(|percent| percent / 100.0),
            None => number(written),
        };
        let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
        ratio.map(Self).ok_or_else(|| TelemetryError::Ratio { written: written.to_owned() })
    }
}

impl SampleRatio {
    /// The random part of a trace's id, as W3C defines it: its last 56 bits.
    const RANDOM: u64 = (1 << 56) - 1;

    /// Whether a new trace with these last 64 bits is taken. The same for everyone who asks, and whoever takes a larger
    /// share takes it too: traces stay whole.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "from 0 to 2^56, and a sample need not be exact"
    )]
    pub(super) fn takes(self, low: u64) -> bool {
        let threshold = ((1.0 - self.0) * (Self::RANDOM + 1) as f64) as u64;
        low & Self::RANDOM >= threshold
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_collector_is_a_host_and_maybe_a_port_and_a_path() {
        let expected = [
            ("http://127.0.0.1:4318", "127.0.0.1:4318", "/v1/traces"),
            ("http://collector", "collector:4318", "/v1/traces"),
            ("http://[::1]:80/", "[::1]:80", "/v1/traces"),
            ("http://[::1]", "[::1]:4318", "/v1/traces"),
            ("http://collector/otlp/", "collector:4318", "/otlp/v1/traces"),
            ("http://collector/otlp/v1/traces", "collector:4318", "/otlp/v1/traces"),
        ];
        for (url, authority, path) in expected {
            let endpoint = Endpoint { authority: authority.to_owned(), path: path.to_owned() };
            assert_eq!(Endpoint::new(url), Ok(endpoint), "{url}");
        }
    }

    #[test]
    fn a_collector_that_cannot_be_reached_so_is_refused_with_the_remedy() {
        let expected = [
            ("https://collector:4318", "point it at a collector on this machine or network"),
            ("collector:4318", "http://127.0.0.1:4318"),
            ("127.0.0.1:4318", "http://127.0.0.1:4318"),
            ("grpc://collector", "http://127.0.0.1:4318"),
            ("http://collector?key=x", "leave it out"),
            ("http://collector:99999", "0 to 65535"),
            ("http://col lector", "is not a URL"),
            ("", "is not a URL"),
        ];
        for (url, remedy) in expected {
            let error = Endpoint::new(url).unwrap_err().to_string();
            assert!(error.contains(remedy), "{url}: {error}");
        }
        let error = Endpoint::new("http://me:secret@collector").unwrap_err().to_string();
        assert!(error.contains("leave it out") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn a_share_is_written_as_a_number_or_in_percent() {
        let share = |written: &str| written.parse::<SampleRatio>().map(|ratio| ratio.0);
        assert_eq!(
            ["0", "1", "0.25", "25%", "100 %"].map(|written| share(written).unwrap()),
            [0.0, 1.0, 0.25, 0.25, 1.0]
        );
        for written in ["", "2", "-1", "101%", "NaN", "inf", "half"] {
            assert!(share(written).is_err(), "{written}");
        }
    }

    #[test]
    fn the_default_takes_one_in_a_hundred() {
        let step = SampleRatio::RANDOM / 100_000;
        let taken = (0..100_000).filter(|at| SampleRatio::default().takes(at * step)).count();
        assert!((999..=1_001).contains(&taken), "{taken}");
    }

    proptest! {
        #[test]
        fn all_none_and_never_fewer_with_a_larger_share(low: u64, a in 0.0..=1.0, b in 0.0..=1.0) {
            prop_assert!(SampleRatio(1.0).takes(low));
            prop_assert!(!SampleRatio(0.0).takes(low));
            let (less, more) = if a < b { (a, b) } else { (b, a) };
            prop_assert!(!SampleRatio(less).takes(low) || SampleRatio(more).takes(low));
        }
    }
}
