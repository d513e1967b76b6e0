//! Best retry delay per peer and load: the one with the most holder changes per second, out of 0,
//! 1, 5 and 20 ms on an idle machine.

use std::time::Duration;

use super::ContenderKind;

/// Kind of load that a retry delay is chosen for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockLoad {
    /// One key, one process, no work under the lock.
    HotKey,
    /// One key, four processes, no work under the lock.
    FourProcesses,
    /// One key, one process, 5 ms of work under the lock.
    Work,
    /// One key, four processes, 5 ms of work under the lock.
    SplitWork,
    /// Keys of one task each: no retries.
    Uncontended,
}

pub(super) fn best_retry_delay(kind: ContenderKind, load: LockLoad) -> Duration {
    let millis = match (kind, load) {
        (ContenderKind::Rslock, _) => 5,
        (ContenderKind::Distkit, _) => 1,
        // Retry loops of this benchmark do not pause.
        _ => 0,
    };
    Duration::from_millis(millis)
}
