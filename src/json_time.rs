//! Times and durations as whole milliseconds in the JSON forms of views.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serializer;

use crate::durations::saturating_millis;

/// Serializes a time as milliseconds since 1970.
pub(crate) fn time_ms<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(millis_since_1970(*time))
}

/// Serializes a time as milliseconds since 1970, or null.
pub(crate) fn optional_time_ms<S: Serializer>(
    time: &Option<SystemTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => time_ms(time, serializer),
        None => serializer.serialize_none(),
    }
}

/// Serializes a duration as milliseconds.
pub(crate) fn duration_ms<S: Serializer>(
    duration: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(saturating_millis(*duration))
}

/// Serializes a duration as milliseconds, or null.
pub(crate) fn optional_duration_ms<S: Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => duration_ms(duration, serializer),
        None => serializer.serialize_none(),
    }
}

fn millis_since_1970(time: SystemTime) -> u64 {
    saturating_millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}
