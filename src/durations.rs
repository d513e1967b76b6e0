//! Limits of durations in the settings, and conversions to whole micros, millis and seconds.

use std::time::Duration;

/// Maximum of a duration in the settings. Longer ones have no use and risk an overflow in
/// arithmetic on instants.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Maximum delay of a time given by the application. In microseconds since 1970, such a time is
/// below 2^53, so Lua numbers and scores of sorted sets hold it exactly. A clock advanced by it
/// does not wrap around.
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(100 * MAX_DURATION.as_secs());

/// Converts to whole milliseconds, rounded down: for log records.
pub(crate) fn saturating_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Converts to whole microseconds. Durations over half a million years saturate.
pub(crate) fn saturating_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Converts to whole milliseconds, rounded up, at least 1: the unit of deadlines on the wire.
pub(crate) fn ceil_millis(duration: Duration) -> u64 {
    // `as_millis` would divide 128-bit numbers by a function call, several times in each request.
    let subsec_millis = duration.subsec_micros().div_ceil(1000);
    duration.as_secs().saturating_mul(1000).saturating_add(subsec_millis.into()).max(1)
}

/// Converts to whole seconds, rounded up, at least 1: the unit of `Retry-After`.
pub(crate) fn ceil_secs(duration: Duration) -> u64 {
    duration.as_secs().saturating_add((duration.subsec_nanos() > 0).into()).max(1)
}
