//! `Clock`: the clock of the embedded store, real or moved by a test. Redis stores use the server's
//! `TIME` inside the scripts instead.

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
use crate::durations::{MAX_DELAY, saturating_micros};

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
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(ClockSource::System {
            started: Instant::now(),
            offset_us: saturating_micros(since_epoch),
        })
    }

    /// Creates a clock for tests. It starts at the current time, rounded down to a whole second,
    /// and stands still until it is advanced.
    #[must_use]
    pub fn manual() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::manual_at(Duration::from_secs(since_epoch.as_secs()))
    }

    /// Creates a manual clock at this time since the Unix epoch.
    pub(crate) fn manual_at(since_epoch: Duration) -> Self {
        Self(ClockSource::Manual(Arc::new(AtomicU64::new(saturating_micros(since_epoch)))))
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
