//! `QuotaDocument`: the form of a quota in the store's document of changed policies.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::quota::{MAX_LIMIT, Quota};
use crate::{
    durations::{MAX_DURATION, ceil_millis},
    store::QuotaRule,
};

/// Quota with its window in whole milliseconds. Values out of range are errors: a setter clamps
/// what a programmer has written, but a mistyped document must not become another quota.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "counting", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum QuotaDocument {
    Fixed { limit: u64, window_ms: u64 },
    Sliding { limit: u64, window_ms: u64 },
    Gcra { limit: u64, window_ms: u64, burst: u64 },
    // Braces, since serde ignores unknown fields of a unit variant.
    Unlimited {},
}

impl From<Quota> for QuotaDocument {
    fn from(quota: Quota) -> Self {
        match quota.to_rule() {
            Some(QuotaRule::Fixed { limit, window }) => {
                Self::Fixed { limit, window_ms: ceil_millis(window) }
            }
            Some(QuotaRule::Sliding { limit, window }) => {
                Self::Sliding { limit, window_ms: ceil_millis(window) }
            }
            Some(QuotaRule::Gcra { limit, window, burst }) => {
                Self::Gcra { limit, window_ms: ceil_millis(window), burst }
            }
            None => Self::Unlimited {},
        }
    }
}

impl TryFrom<QuotaDocument> for Quota {
    type Error = &'static str;

    fn try_from(document: QuotaDocument) -> Result<Self, Self::Error> {
        let with_window = |limit, window_ms| checked_quota(limit, Duration::from_millis(window_ms));
        match document {
            QuotaDocument::Fixed { limit, window_ms } => with_window(limit, window_ms),
            QuotaDocument::Sliding { limit, window_ms } => {
                with_window(limit, window_ms).map(Self::sliding)
            }
            // `requests(0).gcra()` has a burst of 0.
            QuotaDocument::Gcra { limit: 0, window_ms, burst: 0 } => {
                with_window(0, window_ms).map(Self::gcra)
            }
            QuotaDocument::Gcra { limit, window_ms, burst } => {
                checked_burst(with_window(limit, window_ms)?, burst)
            }
            QuotaDocument::Unlimited {} => Ok(Self::unlimited()),
        }
    }
}

/// Creates the quota of a fixed window from a limit and a window that may be out of range.
pub(super) fn checked_quota(limit: u64, window: Duration) -> Result<Quota, &'static str> {
    if limit > MAX_LIMIT {
        return Err("limit: at most 2^50");
    }
    if window < Duration::from_millis(1) || window > MAX_DURATION {
        return Err("window: 1 ms to a year");
    }
    Ok(Quota::requests(limit).per(window))
}

/// Sets a burst that may be out of range.
pub(super) fn checked_burst(quota: Quota, burst: u64) -> Result<Quota, &'static str> {
    if !(1..=MAX_LIMIT).contains(&burst) {
        return Err("burst: 1 to 2^50");
    }
    Ok(quota.burst(burst))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_survive_their_json_form() {
        let minute = Quota::requests(100).per(Duration::from_secs(60));
        let none = Quota::requests(0).per(Duration::from_secs(60));
        for quota in [minute, minute.sliding(), minute.burst(7), none.gcra(), Quota::unlimited()] {
            let json = serde_json::to_string(&QuotaDocument::from(quota)).expect("a JSON form");
            assert_eq!(serde_json::from_str::<Quota>(&json).expect(&json), quota);
        }
    }

    #[test]
    fn mistyped_quotas_are_errors() {
        for json in [
            r#"{"counting":"fixed","limit":1}"#,
            r#"{"counting":"fixed","limit":1,"window_ms":0}"#,
            r#"{"counting":"fixed","limit":-1,"window_ms":1000}"#,
            r#"{"counting":"fixed","limit":1,"window_ms":1000,"burst":2}"#,
            r#"{"counting":"fixed","limit":1125899906842625,"window_ms":1000}"#,
            r#"{"counting":"gcra","limit":1,"window_ms":1000,"burst":0}"#,
            r#"{"counting":"sliding","limit":1,"window_ms":99999999999999}"#,
            r#"{"counting":"unlimited","limit":1}"#,
            r#"{"limit":1,"window_ms":1000}"#,
        ] {
            assert!(serde_json::from_str::<Quota>(json).is_err(), "{json}");
        }
    }
}
