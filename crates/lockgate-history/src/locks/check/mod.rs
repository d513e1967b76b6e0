//! Checks of locks. Each of them reads a history, and reports violations with the shortest part
//! that shows them.

mod exclusion;
mod fences;
mod liveness;
mod overtaking;
mod register_writes;
#[cfg(test)]
mod tests;

use super::LockHistory;
use crate::Violation;

/// Statistics of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LockCheckStats {
    /// Intervals in which a holder had a valid lock.
    pub hold_count: usize,
    /// Undisturbed waits, which were checked for their order.
    pub checked_waits: usize,
    /// Most grants to one other process that overtook a wait.
    pub max_overtakes: usize,
    /// Longest wait after the faults in ns.
    pub longest_wait: u64,
}

/// Runs all checks. A correct history has no violations.
pub(super) fn check_history(history: &LockHistory) -> (LockCheckStats, Vec<Violation>) {
    let mut looked = LockCheckStats::default();
    let mut wrong = Vec::new();
    for lock in history.lock_names() {
        let holds = history.hold_intervals(&lock);
        looked.hold_count += holds.len();
        wrong.extend(exclusion::check_exclusion(history, &holds));
        wrong.extend(fences::check_fences(history, &lock));
    }
    for register in &history.registers {
        wrong.extend(register_writes::check_register(history, register));
    }
    wrong.extend(overtaking::check_overtaking(history, &mut looked));
    wrong.extend(liveness::check_liveness(history, &mut looked));
    (looked, wrong)
}
