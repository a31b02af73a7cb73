//! The collector, and the share of calls to trace.

use std::io;
use std::str::FromStr;

use http::Uri;
use opentelemetry_otlp::ExporterBuildError;

/// Why spans cannot be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OtlpError {
    /// The collector's URL is invalid.
    #[error("OTLP collector {url:?}: {reason}")]
    Endpoint {
        /// What was written.
        url: String,
        /// What is invalid, and the remedy.
        reason: &'static str,
    },
    /// The share of calls to trace is invalid.
    #[error("OTLP ratio {0:?}: write a share from 0 to 1, or a percentage such as `1%`")]
    Ratio(String),
    /// There are no root certificates to verify the collector with.
    #[error("OTLP collector: the system's root certificates cannot be read: {0}; name a file in SSL_CERT_FILE")]
    Roots(io::Error),
    /// A variable `OTEL_*` is invalid.
    #[error("OTLP exporter: {0}; see the variables OTEL_EXPORTER_OTLP_*")]
    Exporter(ExporterBuildError),
}

/// Where requests go, from the base URL of a collector that takes OTLP over HTTP.
pub(super) fn endpoint(url: &str) -> Result<String, OtlpError> {
    const EXAMPLE: &str = "is not a URL of a collector: write one like http://127.0.0.1:4318";
    // Before an `@` there may be a password.
    let shown = url.rsplit_once('@').map_or(url.to_owned(), |(_, rest)| format!("...@{rest}"));
    let fail = |reason| OtlpError::Endpoint { url: shown.clone(), reason };
    let uri: Uri = url.parse().map_err(|_| fail(EXAMPLE))?;
    let (Some(scheme @ ("http" | "https")), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(fail(EXAMPLE));
    };
    if authority.as_str().contains('@') {
        return Err(fail("names a user: leave it out, and write credentials into OTEL_EXPORTER_OTLP_HEADERS"));
    }
    if authority.host().is_empty() {
        return Err(fail(EXAMPLE));
    }
    if uri.query().is_some() {
        return Err(fail("has a query: leave it out"));
    }
    let port = match (authority.port_u16(), authority.as_str().len() == authority.host().len()) {
        (Some(_), _) => "",
        // OTLP's port; with TLS, that of HTTPS.
        (None, true) if scheme == "http" => ":4318",
        (None, true) => "",
        (None, false) => return Err(fail("has an invalid port: use a number from 0 to 65535")),
    };
    let base = uri.path().trim_end_matches('/').trim_end_matches("/v1/traces");
    Ok(format!("{scheme}://{authority}{port}{base}/v1/traces"))
}

/// The share of calls to trace, from 0 to 1. Defaults to 0.01.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleRatio(pub(super) f64);

impl Default for SampleRatio {
    fn default() -> Self {
        Self(0.01)
    }
}

impl FromStr for SampleRatio {
    type Err = OtlpError;

    fn from_str(written: &str) -> Result<Self, OtlpError> {
        let number = |text: &str| text.trim_end().parse::<f64>().ok();
        let ratio = match written.strip_suffix('%') {
            Some(percent) => number(percent).map(|percent| percent / 100.0),
            None => number(written),
        };
        let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
        ratio.map(Self).ok_or_else(|| OtlpError::Ratio(written.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_a_host_and_maybe_a_port_and_a_path() {
        let expected = [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://collector", "http://collector:4318/v1/traces"),
            ("https://collector", "https://collector/v1/traces"),
            ("https://collector:4318", "https://collector:4318/v1/traces"),
            ("http://[::1]:80/", "http://[::1]:80/v1/traces"),
            ("http://[::1]", "http://[::1]:4318/v1/traces"),
            ("http://collector/otlp/", "http://collector:4318/otlp/v1/traces"),
            ("http://collector/otlp/v1/traces", "http://collector:4318/otlp/v1/traces"),
        ];
        for (url, expected) in expected {
            assert_eq!(endpoint(url).unwrap(), expected, "{url}");
        }
    }

    #[test]
    fn a_collector_that_cannot_be_reached_so_is_refused_with_the_remedy() {
        let expected = [
            ("collector:4318", "http://127.0.0.1:4318"),
            ("127.0.0.1:4318", "http://127.0.0.1:4318"),
            ("grpc://collector", "http://127.0.0.1:4318"),
            ("http://collector?key=x", "leave it out"),
            ("http://collector:99999", "0 to 65535"),
            ("http://col lector", "http://127.0.0.1:4318"),
            ("http://:4318", "http://127.0.0.1:4318"),
            ("", "http://127.0.0.1:4318"),
        ];
        for (url, remedy) in expected {
            let error = endpoint(url).unwrap_err().to_string();
            assert!(error.contains(remedy), "{url}: {error}");
        }
        let error = endpoint("http://me:secret@collector").unwrap_err().to_string();
        assert!(error.contains("OTEL_EXPORTER_OTLP_HEADERS") && !error.contains("secret"), "{error}");
    }

    /// A URL that could not be read was repeated with its password.
    #[test]
    fn a_password_is_not_repeated_even_if_the_rest_is_wrong() {
        for url in
            ["http://me:secret@col lector", "http://me:my secret@collector", "me:secret@collector", "//me:secret@"]
        {
            let error = endpoint(url).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
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
}
