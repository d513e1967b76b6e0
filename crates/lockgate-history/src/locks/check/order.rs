//! F1: nobody who stands in line is passed by more than a cohort of each other process.
//!
//! When a request has a place in the store's line is not seen from outside. It is taken to have one, and
//! the holder to have been told, [`JOINED`] after it asked: far more than it takes where nothing is
//! amiss. Where something is (a fault, or a process that did not get to run for a while), it is not judged.
//! By then a holder hands over to its own process at most 16 times without asking the store, which makes
//! 17 holders with its own: more of one process, who asked later still, have barged in.

use std::collections::BTreeMap;

use super::Looked;
use crate::{
    Check, MS, Violation,
    locks::{
        Mode,
        books::{Grant, History, Op},
    },
};

const JOINED: u64 = 150 * MS;

/// H hand-overs after a word from the store.
const COHORT: usize = 17;

/// Of locks that are exclusive for all; readers pass each other by design.
pub(super) fn in_turn(history: &History, looked: &mut Looked) -> Option<Violation> {
    let mut locks = history.locks();
    let only_exclusive = |lock: &String| {
        let mut of = history.ops.iter().filter(|op| op.lock == *lock);
        of.all(|op| op.mode == Mode::Exclusive)
    };
    locks.retain(only_exclusive);
    locks.iter().find_map(|lock| in_turn_for(history, lock, looked))
}

#[expect(clippy::indexing_slicing, reason = "a place in it")]
fn in_turn_for(history: &History, lock: &str, looked: &mut Looked) -> Option<Violation> {
    let ops = history.ops.iter().filter(|op| op.lock == lock);
    let mut granted: Vec<(&Op, &Grant)> =
        ops.filter_map(|op| op.grant.as_ref().map(|grant| (op, grant))).collect();
    granted.sort_by_key(|(_, grant)| grant.at);
    for (at, (op, grant)) in granted.iter().enumerate() {
        if grant.at < op.asked + JOINED || history.is_troubled(op.asked, grant.at) {
            continue;
        }
        looked.waits += 1;
        let since = op.asked + JOINED;
        let during = granted[..at].iter().rev().take_while(|(_, earlier)| earlier.at > since);
        let mut passed: BTreeMap<usize, Vec<&Op>> = BTreeMap::new();
        for (other, _) in during.filter(|(other, _)| other.asked > since) {
            if other.life != op.life {
                passed.entry(other.life.process).or_default().push(other);
            }
        }
        let most = passed.into_values().max_by_key(Vec::len).unwrap_or_default();
        looked.passed = looked.passed.max(most.len());
        if most.len() > COHORT {
            let shown = history.excerpt(most.iter().copied().chain([*op]));
            return Some(Violation::new(
                Check::F1,
                format!("passed by {} of one process:{shown}", most.len()),
            ));
        }
    }
    None
}

impl History {
    fn is_troubled(&self, from: u64, to: u64) -> bool {
        self.troubles.iter().any(|trouble| trouble.from < to && from < trouble.to)
    }
}
