//! Which set of response headers reports the limits.

use std::time::{Duration, SystemTime};

use tallygate::words::words;

words! {
    /// A set of response headers. A denial also has `Retry-After`, whatever the dialect.
    ///
    /// ```
    /// use tallygate_http::Dialect;
    ///
    /// assert_eq!("draft7".parse(), Ok(Dialect::Draft7));
    /// let error = "draft9".parse::<Dialect>().unwrap_err();
    /// assert!(error.to_string().contains("did you mean"), "{error}");
    /// ```
    #[derive(Default)]
    #[non_exhaustive]
    pub enum Dialect, "set of headers" {
        /// `RateLimit: "api";r=50;t=30` and `RateLimit-Policy: "api";q=100;w=60`: the IETF draft since its eighth version.
        #[default]
        Draft10 = "draft10",
        /// `RateLimit: limit=100, remaining=50, reset=30` and `RateLimit-Policy: 100;w=60`.
        Draft7 = "draft7",
        /// `RateLimit-Limit`, `-Remaining`, `-Reset` in seconds from now, and `RateLimit-Policy: 100;w=60`.
        Draft6 = "draft6",
        /// `X-RateLimit-Limit`, `-Remaining`, and `-Reset` in seconds since 1970, as GitHub sends them.
        XEpoch = "x-epoch",
        /// `X-RateLimit-Limit`, `-Remaining`, and `-Reset` in seconds from now, as Envoy sends them.
        XDelta = "x-delta",
        /// None but `Retry-After` on a denial.
        Off = "off",
    }
}

impl Dialect {
    /// Whether its headers are lists that every layer on the way appends to.
    pub fn is_list(self) -> bool {
        self == Self::Draft10
    }

    /// The time since 1970 for [`Headers::unix_now`](crate::Headers) in the dialect that reports an instant; zero in others.
    pub fn unix_now(self) -> Duration {
        match self {
            #[expect(clippy::disallowed_methods, reason = "the header reports an instant; no decision depends on it")]
            Self::XEpoch => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }

    /// The value of `Access-Control-Expose-Headers` that lets scripts in a browser read the headers.
    ///
    /// ```
    /// use tallygate_http::Dialect;
    ///
    /// assert_eq!(Dialect::Draft10.expose_headers(), "RateLimit, RateLimit-Policy, Retry-After");
    /// ```
    pub fn expose_headers(self) -> &'static str {
        match self {
            Self::Draft10 | Self::Draft7 => "RateLimit, RateLimit-Policy, Retry-After",
            Self::Draft6 => "RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, RateLimit-Policy, Retry-After",
            Self::XEpoch | Self::XDelta => "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, Retry-After",
            Self::Off => "Retry-After",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for dialect in Dialect::ALL {
            assert_eq!(dialect.name().parse(), Ok(*dialect));
        }
    }

    #[test]
    fn a_mistyped_name_is_answered_with_the_nearest_one() {
        let error = |name: &str| name.parse::<Dialect>().unwrap_err().to_string();
        assert_eq!(error("x_epoch"), "unknown set of headers `x_epoch`: did you mean `x-epoch`?");
        let all = "use one of draft10, draft7, draft6, x-epoch, x-delta, off";
        assert_eq!(error("github"), format!("unknown set of headers `github`: {all}"));
    }
}
