//! Where a process did not run: the machine had no time for it.

use std::time::Duration;

use crate::history::clock::{self, ns};

/// How long after a fault its traces are looked for: a lease and the time to notice.
pub(super) const AFTERMATH: Duration = Duration::from_secs(4);

const TICK: Duration = Duration::from_millis(50);

/// So late is late: far more than a machine with other things to do takes, and less than a lease.
const LATE: Duration = Duration::from_millis(500);

/// Waits for the next tick. If that was late: when the one before it was, and until when that may have traces, ns. For
/// a thread of its own, which nothing but the machine holds up.
pub(super) fn tick() -> Option<(u64, u64)> {
    let before = clock::now();
    std::thread::sleep(TICK);
    stalled(before, clock::now())
}

fn stalled(before: u64, now: u64) -> Option<(u64, u64)> {
    (now.saturating_sub(before) > ns(TICK + LATE)).then(|| (before, now + ns(AFTERMATH)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_that_is_late_is_a_stall() {
        const MS: u64 = clock::MS;
        assert_eq!(stalled(1000 * MS, 1050 * MS), None);
        assert_eq!(stalled(1000 * MS, 1550 * MS), None);
        assert_eq!(stalled(1000 * MS, 1551 * MS), Some((1000 * MS, 5551 * MS)));
    }
}
