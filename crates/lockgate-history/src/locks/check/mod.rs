//! The checks: each reads a history and says what is wrong with it, with the shortest part that shows it.

mod exclusion;
mod fences;
mod liveness;
mod overtaking;
mod register_writes;
#[cfg(test)]
mod tests;

use super::LockHistory;
use crate::Violation;

/// What was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LockCheckStats {
    /// Times in which somebody was sure to hold a lock.
    pub hold_count: usize,
    /// Waits that no trouble touched, so that their order could be judged.
    pub judged_waits: usize,
    /// Most grants to one process by which a wait was passed.
    pub max_overtakes: usize,
    /// The longest wait after the faults, in ns.
    pub longest_wait: u64,
}

/// All checks of a history; what is wrong is empty for a good one.
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
