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
    looked: &mut LockCheckStats,
) -> Option<Violation> {
    let mut locks = history.lock_names();
    let only_exclusive = |lock: &String| {
        let mut of = history.acquisitions.iter().filter(|op| op.lock == *lock);
        of.all(|op| op.mode == RecordedLockMode::Exclusive)
    };
    locks.retain(only_exclusive);
    locks.iter().find_map(|lock| check_overtaking_of_lock(history, lock, looked))
}

#[expect(clippy::indexing_slicing, reason = "a place in it")]
fn check_overtaking_of_lock(
    history: &LockHistory,
    lock: &str,
    looked: &mut LockCheckStats,
) -> Option<Violation> {
    let ops = history.acquisitions.iter().filter(|op| op.lock == lock);
    let mut granted: Vec<(&LockAcquisition, &RecordedGrant)> =
        ops.filter_map(|op| op.grant.as_ref().map(|grant| (op, grant))).collect();
    granted.sort_by_key(|(_, grant)| grant.granted_at);
    for (at, (op, grant)) in granted.iter().enumerate() {
        if grant.granted_at < op.requested_at + JOIN_DELAY
            || history.is_disturbed(op.requested_at, grant.granted_at)
        {
            continue;
        }
        looked.checked_waits += 1;
        let since = op.requested_at + JOIN_DELAY;
        let during =
            granted[..at].iter().rev().take_while(|(_, earlier)| earlier.granted_at > since);
        let mut passed: BTreeMap<usize, Vec<&LockAcquisition>> = BTreeMap::new();
        for (other, _) in during.filter(|(other, _)| other.requested_at > since) {
            if other.incarnation != op.incarnation {
                passed.entry(other.incarnation.process).or_default().push(other);
            }
        }
        let most = passed.into_values().max_by_key(Vec::len).unwrap_or_default();
        looked.max_overtakes = looked.max_overtakes.max(most.len());
        if most.len() > MAX_OVERTAKES {
            let shown = history.format_acquisitions(most.iter().copied().chain([*op]));
            return Some(Violation::new(
                Guarantee::F1,
                format!("passed by {} of one process:{shown}", most.len()),
            ));
        }
    }
    None
}

impl LockHistory {
    fn is_disturbed(&self, from: u64, to: u64) -> bool {
        self.disturbances.iter().any(|trouble| trouble.from < to && from < trouble.to)
    }
}
