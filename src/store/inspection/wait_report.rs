//! [`WaitReport`]: who waits for a lock, for operators.

use std::{cmp::Reverse, collections::HashMap};

use serde::{Deserialize, Serialize};

/// Most locks in a report: those with the longest waits.
const MAX_WAITS: usize = 20;

/// Requests and tasks that wait for a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WaitReport {
    /// Name of the lock, as in [`Key::operator_name`](crate::Key::operator_name).
    pub lock: String,
    /// Number of waiters.
    pub waiters: u64,
    /// Longest wait of them so far, in milliseconds.
    pub longest_ms: u64,
}

impl WaitReport {
    /// Creates a report of at least one waiter.
    pub(crate) fn new(lock: String, waiters: u64, longest_ms: u64) -> Self {
        Self { lock, waiters, longest_ms }
    }

    /// Merges reports by lock and returns the 20 with the longest waits, the longest first.
    pub(crate) fn longest(reports: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut locks: HashMap<String, Self> = HashMap::new();
        for report in reports {
            let merged = locks
                .entry(report.lock.clone())
                .or_insert_with(|| Self::new(report.lock, 0, report.longest_ms));
            merged.waiters += report.waiters;
            merged.longest_ms = merged.longest_ms.max(report.longest_ms);
        }
        let mut locks: Vec<_> = locks.into_values().collect();
        locks.sort_unstable_by(|left, right| {
            let order = |report: &Self| (Reverse(report.longest_ms), Reverse(report.waiters));
            order(left).cmp(&order(right)).then_with(|| left.lock.cmp(&right.lock))
        });
        locks.truncate(MAX_WAITS);
        locks
    }
}
