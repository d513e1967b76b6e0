//! F1: nobody who stands in line is passed by more than a cohort of each other process.
//!
//! When a request has a place in the store's line is not seen from outside. It is taken to have one, and
//! the holder to have been told, [`JOIN_DELAY`] after it asked: far more than it takes where nothing is
//! amiss. Where something is (a fault, or a process that did not get to run for a while), it is not judged.
//! By then a holder hands over to its own process at most 16 times without asking the store, which makes
//! 17 holders with its own: more of one process, who asked later still, have barged in.

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

/// H hand-overs after a word from the store.
const MAX_OVERTAKES: usize = 17;

/// Of locks that are exclusive for all; readers pass each other by design.
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
        looked.judged_waits += 1;
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
