//! The retry delay that suits each peer best, load by load: what gives it the most holder changes a second.
//! These were the best of 0, 1, 5 and 20 ms on a quiet machine.

use std::time::Duration;

use super::Who;

/// The loads for which settings are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// One key, one process, nothing inside.
    HotKey,
    /// One key, four processes, nothing inside.
    Processes,
    /// One key, one process, 5 ms of work inside.
    Work,
    /// One key, four processes, 5 ms of work inside.
    SplitWork,
    /// Keys of one's own: nobody ever retries.
    Uncontended,
}

pub(super) fn best(who: Who, load: Load) -> Duration {
    let millis = match (who, load) {
        (Who::Rslock, _) => 5,
        (Who::Distkit, _) => 1,
        // Their loop is ours: no pause.
        _ => 0,
    };
    Duration::from_millis(millis)
}
