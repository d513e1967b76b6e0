//! Clock of the embedded store, and conversions of durations. Redis stores use the server's `TIME`
//! inside the scripts instead.

mod precise_timer;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::Instant;

pub(crate) use self::precise_timer::PreciseTimer;

/// Clock for [`Store::memory_with_clock`](crate::Store::memory_with_clock).
///
/// [`Clock::system`] follows tokio's clock, so `tokio::time::pause` stops it as well.
/// [`Clock::manual`] moves only by [`Clock::advance`].
#[derive(Clone)]
pub struct Clock(ClockSource);

#[derive(Clone)]
enum ClockSource {
    System { started: Instant, offset_us: u64 },
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// Creates a clock that starts at the real time and is monotonic from then on.
    #[must_use]
    pub fn system() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(ClockSource::System { started: Instant::now(), offset_us: saturating_micros(since) })
    }

    /// Creates a clock for tests. It starts at the current time, rounded down to a whole second,
    /// and stands still until it is advanced.
    #[must_use]
    pub fn manual() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::manual_at(Duration::from_secs(since.as_secs()))
    }

    /// Creates a manual clock at this time since the Unix epoch.
    pub(crate) fn manual_at(since: Duration) -> Self {
        Self(ClockSource::Manual(Arc::new(AtomicU64::new(saturating_micros(since)))))
    }

    /// Advances a manual clock, at most by 100 years of 365 days. Does nothing to a system clock.
    pub fn advance(&self, by: Duration) {
        if let ClockSource::Manual(now) = &self.0 {
            now.fetch_add(saturating_micros(by.min(MAX_DELAY)), Ordering::SeqCst);
        }
    }

    /// Moves a manual clock back.
    #[cfg(test)]
    pub(crate) fn rewind(&self, by: Duration) {
        if let ClockSource::Manual(now) = &self.0 {
            now.fetch_sub(saturating_micros(by), Ordering::SeqCst);
        }
    }

    /// Returns true if the clock moves only when it is advanced.
    pub(crate) fn is_manual(&self) -> bool {
        matches!(self.0, ClockSource::Manual(_))
    }

    /// Returns the microseconds since the Unix epoch.
    pub(crate) fn now_us(&self) -> u64 {
        match &self.0 {
            ClockSource::System { started, offset_us } => {
                offset_us + saturating_micros(started.elapsed())
            }
            ClockSource::Manual(now) => now.load(Ordering::SeqCst),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0 {
            ClockSource::System { .. } => "system",
            ClockSource::Manual(_) => "manual",
        };
        write!(f, "Clock::{kind}")
    }
}

/// Maximum of a duration in the settings. Longer ones have no use and risk an overflow in
/// arithmetic on instants.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Maximum delay of a time given by the application. In microseconds since 1970, such a time is
/// below 2^53, so Lua numbers and scores of sorted sets hold it exactly. A clock advanced by it
/// does not wrap around.
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(100 * MAX_DURATION.as_secs());

/// Converts to whole microseconds. Durations over half a million years saturate.
pub(crate) fn saturating_micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

/// Converts to whole milliseconds, rounded up, at least 1: the unit of deadlines on the wire.
pub(crate) fn ceil_millis(d: Duration) -> u64 {
    // `as_millis` would divide 128-bit numbers by a function call, several times in each request.
    let part = d.subsec_micros().div_ceil(1000);
    d.as_secs().saturating_mul(1000).saturating_add(part.into()).max(1)
}

/// Converts to whole seconds, rounded up, at least 1: the unit of `Retry-After`.
pub(crate) fn ceil_secs(d: Duration) -> u64 {
    d.as_secs().saturating_add((d.subsec_nanos() > 0).into()).max(1)
}
