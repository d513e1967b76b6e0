//! The embedded store's idea of time. (Redis stores use the server's `TIME`, inside the scripts.)

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

/// A clock for [`Store::memory_with_clock`](crate::Store::memory_with_clock).
///
/// [`Clock::system`] follows tokio's clock, so `tokio::time::pause` stops it too;
/// [`Clock::manual`] stands still until told otherwise.
#[derive(Clone)]
pub struct Clock(ClockSource);

#[derive(Clone)]
enum ClockSource {
    System { started: Instant, offset_us: u64 },
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// Real time, monotonic from the moment this is called.
    #[must_use]
    pub fn system() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(ClockSource::System { started: Instant::now(), offset_us: saturating_micros(since) })
    }

    /// A clock that stands still, for tests: at the whole second in which it is made, until it is moved.
    #[must_use]
    pub fn manual() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::manual_at(Duration::from_secs(since.as_secs()))
    }

    /// One that stands so long after 1970.
    pub(crate) fn manual_at(since: Duration) -> Self {
        Self(ClockSource::Manual(Arc::new(AtomicU64::new(saturating_micros(since)))))
    }

    /// Moves a manual clock on, by a hundred years (of 365 days) at most. A system clock moves by itself: there this does
    /// nothing.
    pub fn advance(&self, by: Duration) {
        if let ClockSource::Manual(now) = &self.0 {
            now.fetch_add(saturating_micros(by.min(MAX_DELAY)), Ordering::SeqCst);
        }
    }

    /// Puts a manual clock back.
    #[cfg(test)]
    pub(crate) fn rewind(&self, by: Duration) {
        if let ClockSource::Manual(now) = &self.0 {
            now.fetch_sub(saturating_micros(by), Ordering::SeqCst);
        }
    }

    /// Whether it stands still until it is told to go on.
    pub(crate) fn is_manual(&self) -> bool {
        matches!(self.0, ClockSource::Manual(_))
    }

    /// Microseconds since 1970.
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

/// Longest span of time a setting can have: beyond a year, arithmetic on instants is all that is left
/// to go wrong.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Farthest a moment can be away that somebody names. As microseconds since 1970 it is below 2^53, as far as whole numbers
/// go in a script and in the score of a sorted set; and a clock that is moved by it is not back where it was.
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(100 * MAX_DURATION.as_secs());

/// Whole microseconds; a duration beyond half a million years counts as that.
pub(crate) fn saturating_micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, rounded up, at least 1: what goes over the wire for a deadline.
pub(crate) fn ceil_millis(d: Duration) -> u64 {
    // Not of 128 bits, which are divided by a function; it is told to each request, several times.
    let part = d.subsec_micros().div_ceil(1000);
    d.as_secs().saturating_mul(1000).saturating_add(part.into()).max(1)
}

/// Whole seconds, rounded up, at least 1: what goes into `Retry-After`.
pub(crate) fn ceil_secs(d: Duration) -> u64 {
    d.as_secs().saturating_add((d.subsec_nanos() > 0).into()).max(1)
}
