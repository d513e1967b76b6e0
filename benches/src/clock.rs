//! One clock for all processes of a run: `CLOCK_MONOTONIC` is the same for every process of a host, which
//! `std::time::Instant` reads too, but does not show.

use std::{thread, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since some moment that is the same for all processes.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let whole = |part: i64| u64::try_from(part).unwrap_or(0);
    whole(now.tv_sec) * 1_000_000_000 + whole(now.tv_nsec)
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Blocks this thread.
pub(crate) fn sleep_until(moment: u64) {
    loop {
        match moment.checked_sub(now()) {
            None | Some(0) => return,
            Some(left) => thread::sleep(Duration::from_nanos(left)),
        }
    }
}
