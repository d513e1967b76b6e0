//! A map that never grows beyond its bound: whoever comes when it is full takes the place of another.
//!
//! Keys are what clients choose, so neither their number nor their spread can be relied on. A key's hash
//! names the one small row in which it may stand; a row that is
//! full gives up what is worth least. Looking for something takes one short lock and at most
//! `ROW` comparisons, and what is looked for need not be owned. The hash is seeded, but made to be quick: whoever takes the
//! trouble to find keys of one row makes that row forget, and so the store be asked.

mod place;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use parking_lot::Mutex;
use tokio::time::Instant;

use self::place::Name;
pub(super) use self::place::Place;
pub(in crate::rate_limit) use self::place::Spot;

/// Locks that one map is divided by.
const SHARDS: usize = 64;

/// Rows under one lock.
const ROWS: usize = 128;

/// Most entries of one row.
const ROW: usize = 8;

/// What may stand in the map.
pub(in crate::rate_limit) trait Worth {
    /// Of a full row, the entry with the earliest goes first.
    fn worth(&self) -> Instant;

    /// Whoever is new has to know this of another entry of the same counter.
    fn joins(&mut self, _other: &Self) {}
}

pub(in crate::rate_limit) struct Ways<V> {
    seed: u64,
    shards: Box<[Mutex<Vec<Row<V>>>]>,
}

type Row<V> = Vec<(u64, Name, V)>;

impl<V: Worth> Ways<V> {
    /// Does something with the entry of this spot, if there is one.
    pub(in crate::rate_limit) fn with<R>(
        &self,
        spot: Spot<'_>,
        act: impl FnOnce(&mut V) -> R,
    ) -> Option<R> {
        let hash = spot.hash(self.seed);
        let mut shard = self.shard(hash).lock();
        let row = shard.get_mut(row(hash))?;
        row.iter_mut().find(|entry| entry.0 == hash && entry.1.is(spot)).map(|e| act(&mut e.2))
    }

    /// Does something with each entry of this spot's counter, whatever its quota.
    pub(super) fn each(&self, spot: Spot<'_>, mut act: impl FnMut(&mut V)) {
        let hash = spot.hash(self.seed);
        let mut shard = self.shard(hash).lock();
        let Some(row) = shard.get_mut(row(hash)) else { return };
        let alike = row.iter_mut().filter(|entry| entry.0 == hash && entry.1.is_alike(spot));
        alike.for_each(|entry| act(&mut entry.2));
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
        let hash = spot.hash(self.seed);
        let mut shard = self.shard(hash).lock();
        if shard.is_empty() {
            shard.resize_with(ROWS, Vec::new);
        }
        let row = &mut shard[row(hash)];
        let found = row.iter().position(|entry| entry.0 == hash && entry.1.is(spot));
        let at = match found {
            Some(at) => at,
            None => {
                let mut new = make();
                let alike = row.iter().filter(|entry| entry.0 == hash && entry.1.is_alike(spot));
                alike.for_each(|entry| new.joins(&entry.2));
                if row.len() >= ROW {
                    let going = (0..row.len()).filter(|at| may_go(&row[*at].2));
                    let least = going.min_by_key(|at| row[*at].2.worth())?;
                    row.swap_remove(least);
                }
                if row.capacity() == 0 {
                    // Whoever grows is moved; and rows are as full as one another.
                    row.reserve_exact(ROW);
                }
                row.push((hash, Name::of(spot), new));
                row.len() - 1
            }
        };
        Some(act(&mut row[at].2))
    }

    /// Looks at everything, and keeps what is to be kept.
    pub(super) fn retain(&self, mut keep: impl FnMut(&Name, &mut V) -> bool) {
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

impl<V> Default for Ways<V> {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { seed: RandomState::new().build_hasher().finish(), shards }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::{key::Key, rate_limit::quota::Quota};

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

    /// Its memory, too: a row has all of it from its first key on.
    #[test]
    fn a_map_that_is_full_takes_no_more_memory() {
        let (ways, policy) = (Ways::<Instant>::default(), Arc::from("default"));
        let quota = Quota::requests(1).per(Duration::from_secs(1));
        let flood = |from: u32| {
            for n in from..from + 16 * 8192 {
                let key = &Key::custom(&format!("{n}"));
                let spot = Spot { policy: &policy, tag: key, subject: key, quota };
                ways.enter(spot, |_| true, Instant::now, |_| ());
            }
            let rows = |shard: &Mutex<Vec<Row<Instant>>>| {
                shard.lock().iter().map(Vec::capacity).sum::<usize>()
            };
            ways.shards.iter().map(rows).sum::<usize>()
        };
        let full = SHARDS * ROWS * ROW;
        // That so many keys miss one row happens once in a thousand times.
        assert!((full - 3 * ROW..=full).contains(&flood(0)));
        assert!((full - 3 * ROW..=full).contains(&flood(1_000_000)));
    }
}
