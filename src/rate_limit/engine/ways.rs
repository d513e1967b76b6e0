//! A map that never grows beyond its bound: whoever comes when it is full takes the place of another.
//!
//! Keys are what clients choose, so neither their number nor their spread can be relied on. A key's hash
//! names the one small row in which it may stand; a row that is
//! full gives up what is worth least. Looking for something takes one short lock and at most
//! `ROW` comparisons, and what is looked for need not be owned. The hash is seeded, but made to be quick: whoever takes the
//! trouble to find keys of one row makes that row forget, and so the store be asked.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    sync::Arc,
};

use fnv::FnvHasher;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    key::Key,
    rate_limit::quota::Quota,
    store::{By, SettleCharge, Settled},
};

/// Locks that one map is divided by.
const SHARDS: usize = 64;

/// Rows under one lock.
const ROWS: usize = 128;

/// Most entries of one row.
const ROW: usize = 8;

/// One counter: whose, of which policy, and where. A quota that is changed is another one here, although
/// it may be the same in the store: what was said of one limit says nothing of the next.
#[derive(Debug, Clone, Copy)]
pub(in crate::rate_limit) struct Spot<'a> {
    pub(in crate::rate_limit) policy: &'a Arc<str>,
    pub(in crate::rate_limit) tag: &'a Key,
    pub(in crate::rate_limit) subject: &'a Key,
    pub(in crate::rate_limit) quota: Quota,
}

#[derive(Debug, Clone)]
pub(super) struct Place {
    policy: Arc<str>,
    tag: Key,
    subject: Key,
    quota: Quota,
}

/// What may stand in the map.
pub(in crate::rate_limit) trait Worth {
    /// Of a full row, the entry with the earliest goes first.
    fn worth(&self) -> Instant;
}

pub(in crate::rate_limit) struct Ways<V> {
    seed: u64,
    shards: Box<[Mutex<Vec<Row<V>>>]>,
}

type Row<V> = Vec<(u64, Place, V)>;

impl<V: Worth> Ways<V> {
    /// Does something with the entry of this spot, if there is one.
    pub(in crate::rate_limit) fn with<R>(
        &self,
        spot: Spot<'_>,
        act: impl FnOnce(&mut V) -> R,
    ) -> Option<R> {
        let hash = self.hash(spot);
        let mut shard = self.shard(hash).lock();
        let row = shard.get_mut(row(hash))?;
        row.iter_mut().find(|entry| entry.0 == hash && entry.1.is(spot)).map(|e| act(&mut e.2))
    }

    /// Does something with the entry of this spot, which is made if there is none. In a row that is full
    /// it takes the place of one that may go; `None` if there is none.
    #[expect(
        clippy::indexing_slicing,
        reason = "a place of the row; it is made to be below that number"
    )]
    pub(in crate::rate_limit) fn enter<R>(
        &self,
        spot: Spot<'_>,
        may_go: impl Fn(&V) -> bool,
        make: impl FnOnce() -> V,
        act: impl FnOnce(&mut V) -> R,
    ) -> Option<R> {
        let hash = self.hash(spot);
        let mut shard = self.shard(hash).lock();
        if shard.is_empty() {
            shard.resize_with(ROWS, Vec::new);
        }
        let row = &mut shard[row(hash)];
        let found = row.iter().position(|entry| entry.0 == hash && entry.1.is(spot));
        let at = match found {
            Some(at) => at,
            None => {
                if row.len() >= ROW {
                    let going = (0..row.len()).filter(|at| may_go(&row[*at].2));
                    let least = going.min_by_key(|at| row[*at].2.worth())?;
                    row.swap_remove(least);
                }
                row.push((hash, Place::of(spot), make()));
                row.len() - 1
            }
        };
        Some(act(&mut row[at].2))
    }

    /// Looks at everything, and keeps what is to be kept.
    pub(super) fn retain(&self, mut keep: impl FnMut(&Place, &mut V) -> bool) {
        for shard in &self.shards {
            for row in shard.lock().iter_mut() {
                row.retain_mut(|entry| keep(&entry.1, &mut entry.2));
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().iter().map(Vec::len).sum::<usize>()).sum()
    }

    fn hash(&self, spot: Spot<'_>) -> u64 {
        // The quota is left to the comparison: few have two at once.
        let mut hasher = FnvHasher::with_key(self.seed);
        hasher.write(spot.subject.as_str().as_bytes());
        hasher.write(spot.policy.as_bytes());
        hasher.finish()
    }

    #[expect(clippy::indexing_slicing, reason = "it is made to be below that number")]
    fn shard(&self, hash: u64) -> &Mutex<Vec<Row<V>>> {
        &self.shards[index(hash, SHARDS)]
    }
}

/// The row under its lock.
fn row(hash: u64) -> usize {
    index(hash >> 32, ROWS)
}

fn index(hash: u64, of: usize) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "a remainder of at most 128 fits")]
    let index = (hash % of as u64) as usize;
    index
}

impl Place {
    pub(super) fn of(spot: Spot<'_>) -> Self {
        let Spot { policy, tag, subject, quota } = spot;
        Self { policy: Arc::clone(policy), tag: tag.clone(), subject: subject.clone(), quota }
    }

    fn is(&self, spot: Spot<'_>) -> bool {
        self.subject == *spot.subject
            && self.quota == spot.quota
            && self.policy == *spot.policy
            && self.tag == *spot.tag
    }

    /// A change of what was charged here.
    pub(super) fn settled(&self, by: By) -> Option<SettleCharge> {
        let (policy, subject) = (Arc::clone(&self.policy), self.subject.clone());
        let settled = Settled { policy, subject, rule: self.quota.rule()?, by };
        Some(SettleCharge { tag: self.tag.clone(), items: vec![settled] })
    }

    pub(super) fn spot(&self) -> Spot<'_> {
        let Self { policy, tag, subject, quota } = self;
        Spot { policy, tag, subject, quota: *quota }
    }
}

impl<V> Default for Ways<V> {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { seed: RandomState::new().build_hasher().finish(), shards }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    impl Worth for Instant {
        fn worth(&self) -> Instant {
            *self
        }
    }

    #[test]
    fn a_flood_of_keys_evicts_what_ends_first_and_never_grows() {
        let (ways, policy) = (Ways::<Instant>::default(), Arc::from("default"));
        let quota = Quota::requests(1).per(Duration::from_secs(1));
        let now = Instant::now();
        let keys: Vec<_> = (0..100_000).map(|n| Key::custom(&format!("{n}"))).collect();
        let spot = |key| Spot { policy: &policy, tag: key, subject: key, quota };
        let lasts = now + Duration::from_secs(60);
        ways.enter(spot(&keys[0]), |_| true, || lasts, |_| ());
        for key in &keys {
            ways.enter(spot(key), |_| true, || now, |_| ());
        }
        assert!(ways.len() <= SHARDS * ROWS * ROW, "{}", ways.len());
        assert_eq!(ways.with(spot(&keys[0]), |until| *until), Some(lasts), "it was worth most");
        assert!(ways.with(spot(&keys[99_999]), |_| ()).is_some(), "the last one has a place");
    }
}
