//! `CLOCK_MONOTONIC`, the clock that all processes of a host share. `std::time::Instant` reads it
//! too, but does not expose the number.

use std::{thread, time::Duration};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns nanoseconds since an arbitrary time that is the same for all processes.
pub(crate) fn now() -> u64 {
    timespec_nanos(clock_gettime(ClockId::Monotonic))
}

pub(crate) fn timespec_nanos(time: Timespec) -> u64 {
    let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
    unsigned(time.tv_sec) * 1_000_000_000 + unsigned(time.tv_nsec)
}

pub(crate) fn duration_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Blocks this thread until `deadline`, a time of [`now`].
pub(crate) fn sleep_until(deadline: u64) {
    loop {
        match deadline.checked_sub(now()) {
            None | Some(0) => return,
            Some(remaining) => thread::sleep(Duration::from_nanos(remaining)),
        }
    }
}
