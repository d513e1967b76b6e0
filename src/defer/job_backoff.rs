//! `JobBackoff`: the delay between a failed run and the next attempt.

use std::time::{Duration, SystemTime};

use super::envelope::HeaderPairs;

/// Exponential backoff with full jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JobBackoff {
    /// Longest delay before the second run; doubles before each further one.
    pub(super) base: Duration,
    /// Upper bound of the doubled delay.
    pub(super) cap: Duration,
    /// Longest `Retry-After` of a handler that is honoured.
    pub(super) max_retry_after: Duration,
}

impl Default for JobBackoff {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            cap: Duration::from_secs(300),
            max_retry_after: Duration::from_secs(3600),
        }
    }
}

impl JobBackoff {
    /// Returns the delay after the run with this number.
    ///
    /// The delay that a handler asks for is a lower bound with jitter on top: jobs that were given
    /// the same time would otherwise all return at once.
    pub(super) fn delay_after(&self, attempt: u32, requested_delay: Option<Duration>) -> Duration {
        let doubled = 2u32.saturating_pow(attempt.saturating_sub(1));
        let max_jitter = self.base.saturating_mul(doubled).min(self.cap);
        let min_delay = requested_delay.unwrap_or_default().min(self.max_retry_after);
        min_delay + random_delay(max_jitter)
    }
}

/// At least 1 ms: a job that is due at once would be claimed again before any other job.
fn random_delay(max: Duration) -> Duration {
    let max_us = u64::try_from(max.as_micros()).unwrap_or(u64::MAX).max(1);
    // The fixed bits of a random UUID are at the top of its lower half, where they do not affect
    // the remainder.
    let random = uuid::Uuid::new_v4().as_u64_pair().1;
    Duration::from_micros(random % max_us).max(Duration::from_millis(1))
}

/// Parses `Retry-After` (RFC 9110 section 10.2.3): seconds or a date.
pub(super) fn parse_retry_after(headers: &HeaderPairs, now: SystemTime) -> Option<Duration> {
    let (_, value) = headers.iter().find(|(name, _)| name == "retry-after")?;
    let text = str::from_utf8(value).ok()?.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        // Digits that overflow: longer than any limit.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    // A date in the past means now.
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn backoff_doubles_up_to_its_cap_with_full_jitter() {
        let backoff = JobBackoff { base: SECOND, cap: 10 * SECOND, max_retry_after: 60 * SECOND };
        for (attempt, most) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (40, 10), (u32::MAX, 10)] {
            let most = most * SECOND;
            let waits: Vec<_> = (0..400).map(|_| backoff.delay_after(attempt, None)).collect();
            assert!(waits.iter().all(|wait| *wait <= most && !wait.is_zero()), "{attempt}");
            assert!(waits.iter().any(|wait| *wait < most / 4), "{attempt}");
            assert!(waits.iter().any(|wait| *wait > most / 4 * 3), "{attempt}");
        }
    }

    #[test]
    fn retry_after_is_honored_up_to_its_maximum() {
        let backoff = JobBackoff { base: SECOND, cap: SECOND, max_retry_after: 60 * SECOND };
        let wait = backoff.delay_after(1, Some(20 * SECOND));
        assert!((20 * SECOND..=21 * SECOND).contains(&wait), "{wait:?}");
        let wait = backoff.delay_after(1, Some(Duration::MAX));
        assert!((60 * SECOND..=61 * SECOND).contains(&wait), "{wait:?}");
    }

    #[test]
    fn zero_and_unbounded_settings_do_not_panic() {
        let none = JobBackoff {
            base: Duration::ZERO,
            cap: Duration::ZERO,
            max_retry_after: Duration::ZERO,
        };
        assert_eq!(none.delay_after(3, Some(SECOND)), Duration::from_millis(1));
        let endless =
            JobBackoff { base: Duration::MAX, cap: Duration::MAX, max_retry_after: SECOND };
        let _ = endless.delay_after(u32::MAX, Some(SECOND));
    }

    #[test]
    fn retry_after_parses_seconds_and_dates() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let parse = |text: &str| {
            let value = vec![("retry-after".to_owned(), text.as_bytes().to_vec())];
            parse_retry_after(&value, now)
        };
        assert_eq!(parse("120"), Some(120 * SECOND));
        assert_eq!(parse(" 0 "), Some(Duration::ZERO));
        assert_eq!(parse("99999999999999999999999"), Some(Duration::from_secs(u64::MAX)));
        assert_eq!(parse("Sun, 06 Nov 1994 08:49:47 GMT"), Some(10 * SECOND));
        assert_eq!(parse("Sunday, 06-Nov-94 08:49:47 GMT"), Some(10 * SECOND));
        assert_eq!(parse("Sun Nov  6 08:49:47 1994"), Some(10 * SECOND));
        assert_eq!(parse("Sun, 06 Nov 1994 08:49:07 GMT"), Some(Duration::ZERO), "it has passed");
        for none in ["", "-1", "1.5", "soon", "+3"] {
            assert_eq!(parse(none), None, "{none:?}");
        }
        assert_eq!(parse_retry_after(&Vec::new(), now), None);
    }
}
