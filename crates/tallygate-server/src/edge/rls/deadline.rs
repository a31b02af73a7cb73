//! The caller's deadline, from gRPC's timeout header.

use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;

/// The least that is reserved for the response.
const WAY_BACK: Duration = Duration::from_millis(2);

/// When the store must have answered for the response to reach the caller in time; `None` without a timeout.
pub(super) fn deadline(headers: &HeaderMap, began: Instant) -> Option<Instant> {
    let timeout = timeout(headers.get("grpc-timeout")?.to_str().ok()?)?;
    // A timeout beyond the range of the clock is none.
    began.checked_add(timeout - spare(timeout))
}

/// A fifth of the timeout, at least [`WAY_BACK`], and at most half.
fn spare(timeout: Duration) -> Duration {
    (timeout / 5).max(WAY_BACK).min(timeout / 2)
}

/// One to eight digits and a unit.
fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_unit_is_read() {
        let seconds = |text: &str| timeout(text).map(|timeout| timeout.as_secs_f64());
        assert_eq!(seconds("2H"), Some(7200.0));
        assert_eq!(seconds("2M"), Some(120.0));
        assert_eq!(seconds("2S"), Some(2.0));
        assert_eq!(seconds("20m"), Some(0.02));
        assert_eq!(seconds("20000u"), Some(0.02));
        assert_eq!(seconds("99999999n"), Some(0.099_999_999));
        assert_eq!(seconds("99999999H"), Some(99_999_999.0 * 3600.0));
        for wrong in ["", "m", "20", "20ms", "-1S", "+1S", "1.5S", "123456789m", "20é", "é", "٣S"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn of_envoys_20_ms_four_are_kept() {
        assert_eq!(spare(Duration::from_millis(20)), Duration::from_millis(4));
        assert_eq!(spare(Duration::from_millis(5)), WAY_BACK);
        assert_eq!(spare(Duration::from_millis(2)), Duration::from_millis(1));
        assert_eq!(spare(Duration::ZERO), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn it_is_never_after_the_callers(text in "[0-9]{0,9}[HMSmunx]?") {
            let began = Instant::now();
            let headers = HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), text.parse().unwrap())]);
            if let Some(deadline) = deadline(&headers, began) {
                prop_assert!(deadline >= began);
                prop_assert!(deadline - began <= timeout(&text).unwrap());
            }
        }
    }
}
