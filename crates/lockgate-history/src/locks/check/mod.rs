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
    let mut stats = LockCheckStats::default();
    let mut violations = Vec::new();
    for lock in history.lock_names() {
        let holds = history.hold_intervals(&lock);
        stats.hold_count += holds.len();
        violations.extend(exclusion::check_exclusion(history, &holds));
        violations.extend(fences::check_fences(history, &lock));
    }
    for register in &history.registers {
        violations.extend(register_writes::check_register(history, register));
    }
    violations.extend(overtaking::check_overtaking(history, &mut stats));
    violations.extend(liveness::check_liveness(history, &mut stats));
    (stats, violations)
}
