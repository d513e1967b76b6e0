//! F1: a waiter is overtaken by at most one series of handovers of each other process.
//!
//! The moment at which a request joins the store's wait queue is not visible. [`JOIN_DELAY`] after
//! the request it is assumed to be in the queue and announced to the holder, which takes far less
//! time in an undisturbed period; disturbed periods are not checked. After that a holder makes at
//! most 16 handovers within its process before it calls the store, which gives 17 holders with
//! itself. A larger number of later requests of one process have barged in.

use std::collections::BTreeMap;

use super::LockCheckStats;
use crate::{
    Guarantee, NANOS_PER_MILLI, Violation,
    locks::{
        RecordedLockMode,
        lock_history::{LockAcquisition, LockHistory, RecordedGrant},
    },
};

const JOIN_DELAY: u64 = 150 * NANOS_PER_MILLI;

/// The holder and its 16 handovers after a queue snapshot.
const MAX_OVERTAKES: usize = 17;

/// Checks locks that are always exclusive, since readers overtake each other by design.
pub(super) fn check_overtaking(
    history: &LockHistory,
    stats: &mut LockCheckStats,
) -> Option<Violation> {
    let mut locks = history.lock_names();
    locks.retain(|lock| {
        let mut acquisitions = history.acquisitions.iter().filter(|a| a.lock == *lock);
        acquisitions.all(|a| a.mode == RecordedLockMode::Exclusive)
    });
    locks.iter().find_map(|lock| check_overtaking_of_lock(history, lock, stats))
}

#[expect(clippy::indexing_slicing, reason = "an index of the same list")]
fn check_overtaking_of_lock(
    history: &LockHistory,
    lock: &str,
    stats: &mut LockCheckStats,
) -> Option<Violation> {
    let acquisitions = history.acquisitions.iter().filter(|a| a.lock == lock);
    let mut granted: Vec<(&LockAcquisition, &RecordedGrant)> =
        acquisitions.filter_map(|a| a.grant.as_ref().map(|grant| (a, grant))).collect();
    granted.sort_by_key(|(_, grant)| grant.granted_at);
    for (index, (waiter, grant)) in granted.iter().enumerate() {
        let joined_at = waiter.requested_at + JOIN_DELAY;
        if grant.granted_at < joined_at
            || history.is_disturbed(waiter.requested_at, grant.granted_at)
        {
            continue;
        }
        stats.checked_waits += 1;
        let granted_during_wait =
            granted[..index].iter().rev().take_while(|(_, earlier)| earlier.granted_at > joined_at);
        let mut overtakes: BTreeMap<usize, Vec<&LockAcquisition>> = BTreeMap::new();
        for (other, _) in granted_during_wait.filter(|(other, _)| other.requested_at > joined_at) {
            if other.incarnation != waiter.incarnation {
                overtakes.entry(other.incarnation.process).or_default().push(other);
            }
        }
        let overtaking = overtakes.into_values().max_by_key(Vec::len).unwrap_or_default();
        let overtake_count = overtaking.len();
        stats.max_overtakes = stats.max_overtakes.max(overtake_count);
        if overtake_count > MAX_OVERTAKES {
            let excerpt = history.format_acquisitions(overtaking.into_iter().chain([*waiter]));
            return Some(Violation::new(
                Guarantee::F1,
                format!(
                    "waiter overtaken by {overtake_count} later requests of one process, at most \
                     {MAX_OVERTAKES}:{excerpt}"
                ),
            ));
        }
    }
    None
}

impl LockHistory {
    fn is_disturbed(&self, from: u64, to: u64) -> bool {
        self.disturbances.iter().any(|disturbance| disturbance.from < to && from < disturbance.to)
    }
}
