//! The checks: each reads a history and says what is wrong with it, with the shortest part that shows it.

mod fences;
mod holds;
mod live;
mod order;
#[cfg(test)]
mod tests;
mod writes;

use super::History;
use crate::Violation;

/// What was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Looked {
    /// Times in which somebody was sure to hold a lock.
    pub holds: usize,
    /// Waits that no trouble touched, so that their order could be judged.
    pub waits: usize,
    /// Most grants to one process by which a wait was passed.
    pub passed: usize,
    /// The longest wait after the faults, in ns.
    pub longest: u64,
}

/// All checks of a history; what is wrong is empty for a good one.
pub(super) fn all(history: &History) -> (Looked, Vec<Violation>) {
    let mut looked = Looked::default();
    let mut wrong = Vec::new();
    for lock in history.locks() {
        let holds = history.holds(&lock);
        looked.holds += holds.len();
        wrong.extend(holds::exclude(history, &holds));
        wrong.extend(fences::grow(history, &lock));
    }
    for register in &history.registers {
        wrong.extend(writes::none_is_lost(history, register));
    }
    wrong.extend(order::in_turn(history, &mut looked));
    wrong.extend(live::all_are_answered(history, &mut looked));
    (looked, wrong)
}
