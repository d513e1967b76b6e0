//! Bounded map of the local states of the store's counters.
//!
//! Clients choose the keys, so neither their number nor their distribution is under control. A full
//! shard evicts by CLOCK-Pro ([`quick_cache`]): a flood of keys that each occur once does not
//! displace the keys in use. A pinned entry is never evicted.

mod counter_id;
#[cfg(test)]
mod tests;

use std::{cell::RefCell, hash::BuildHasher as _};

use parking_lot::Mutex;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, UnitWeighter, unsync::Cache};
use smallvec::SmallVec;

pub(in crate::rate_limit) use self::counter_id::BorrowedCounterId;
pub(super) use self::counter_id::CounterId;
use self::counter_id::CounterKey;
use crate::rate_limit::quota::Quota;

/// Number of shards, each with its own mutex.
const SHARD_COUNT: usize = 64;

/// Maximum number of counters in a shard.
const SHARD_CAPACITY: usize = 1024;

/// Maximum number of quotas of a counter.
const MAX_QUOTAS_PER_COUNTER: usize = 8;

/// State of a counter under one quota.
pub(in crate::rate_limit) trait CounterState {
    /// Returns true if the state must not be evicted.
    fn is_pinned(&self) -> bool {
        false
    }

    /// Copies from the state under another quota when this state is created.
    fn inherit(&mut self, _other: &Self) {}
}

pub(in crate::rate_limit) struct CounterMap<V> {
    hasher: DefaultHashBuilder,
    shards: Box<[Mutex<CounterMapShard<V>>]>,
}

/// `Cache::retain` passes shared references; the cell allows changes.
type CounterMapShard<V> =
    Cache<CounterKey, RefCell<StatesByQuota<V>>, UnitWeighter, DefaultHashBuilder, PinLifecycle>;

/// States of a counter by quota; nearly always one.
struct StatesByQuota<V>(SmallVec<[(Quota, V); 1]>);

struct PinLifecycle;

impl<V: CounterState> Lifecycle<CounterKey, RefCell<StatesByQuota<V>>> for PinLifecycle {
    type RequestState = ();

    fn is_pinned(&self, _: &CounterKey, states: &RefCell<StatesByQuota<V>>) -> bool {
        states.borrow().0.iter().any(|(_, state)| state.is_pinned())
    }
}

impl<V: CounterState> StatesByQuota<V> {
    fn get_mut(&mut self, quota: Quota) -> Option<&mut V> {
        self.0.iter_mut().find(|(state_quota, _)| *state_quota == quota).map(|(_, state)| state)
    }

    /// Returns `None` if there is no room and every state is pinned.
    fn get_or_insert_with(&mut self, quota: Quota, create: impl FnOnce() -> V) -> Option<&mut V> {
        if self.get_mut(quota).is_none() {
            let mut new_state = create();
            self.0.iter().for_each(|(_, other)| new_state.inherit(other));
            if self.0.len() >= MAX_QUOTAS_PER_COUNTER {
                let oldest = self.0.iter().position(|(_, state)| !state.is_pinned())?;
                self.0.remove(oldest);
            }
            self.0.push((quota, new_state));
        }
        self.get_mut(quota)
    }
}

impl<V: CounterState> CounterMap<V> {
    /// Applies `apply` to the state of this counter under its quota, if there is one.
    pub(in crate::rate_limit) fn with<R>(
        &self,
        counter_id: BorrowedCounterId<'_>,
        apply: impl FnOnce(&mut V) -> R,
    ) -> Option<R> {
        let shard = self.shard_for(counter_id).lock();
        let mut states = shard.get(&counter_id)?.borrow_mut();
        states.get_mut(counter_id.quota).map(apply)
    }

    /// Applies `apply` to the states of this counter under all quotas.
    pub(super) fn for_each_quota(
        &self,
        counter_id: BorrowedCounterId<'_>,
        mut apply: impl FnMut(&mut V),
    ) {
        let shard = self.shard_for(counter_id).lock();
        if let Some(states) = shard.get(&counter_id) {
            states.borrow_mut().0.iter_mut().for_each(|(_, state)| apply(state));
        }
    }

    /// Like `with`, but creates a missing state by `create`. Returns `None` if there is no room for
    /// it, because all others are pinned.
    pub(in crate::rate_limit) fn with_or_insert<R>(
        &self,
        counter_id: BorrowedCounterId<'_>,
        create: impl FnOnce() -> V,
        apply: impl FnOnce(&mut V) -> R,
    ) -> Option<R> {
        let mut shard = self.shard_for(counter_id).lock();
        if let Some(states) = shard.get(&counter_id) {
            return states.borrow_mut().get_or_insert_with(counter_id.quota, create).map(apply);
        }
        let mut state = create();
        let result = apply(&mut state);
        let states = StatesByQuota(smallvec::smallvec![(counter_id.quota, state)]);
        shard.insert(CounterKey::from_ref(counter_id), RefCell::new(states));
        // The cache exceeds its capacity rather than evict a pinned entry.
        if shard.len() > SHARD_CAPACITY {
            shard.remove(&counter_id);
            return None;
        }
        Some(result)
    }

    /// Removes all states for which `should_keep` returns false.
    pub(super) fn retain(&self, should_keep: impl FnMut(&CounterKey, Quota, &mut V) -> bool) {
        let should_keep = RefCell::new(should_keep);
        for shard in &self.shards {
            shard.lock().retain(|counter, states| {
                let (mut states, mut should_keep) = (states.borrow_mut(), should_keep.borrow_mut());
                states.0.retain(|(quota, state)| should_keep(counter, *quota, state));
                !states.0.is_empty()
            });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().is_empty())
    }

    #[expect(clippy::indexing_slicing, reason = "the index is a remainder of the length")]
    fn shard_for(&self, counter_id: BorrowedCounterId<'_>) -> &Mutex<CounterMapShard<V>> {
        // The cache uses the lowest and the highest bits of the same hash.
        let middle_bits = self.hasher.hash_one(counter_id) >> 32;
        let index = (middle_bits % SHARD_COUNT as u64) as usize;
        &self.shards[index]
    }
}

impl<V: CounterState> Default for CounterMap<V> {
    #[expect(clippy::expect_used, reason = "`build` fails only without a capacity")]
    fn default() -> Self {
        let hasher = DefaultHashBuilder::default();
        let options = OptionsBuilder::new()
            .estimated_items_capacity(SHARD_CAPACITY)
            .weight_capacity(SHARD_CAPACITY as u64)
            // A ghost of an evicted counter would take as much memory as the counter did.
            .ghost_allocation(0.0)
            .build()
            .expect("both capacities are set");
        let shard =
            || Cache::with_options(options.clone(), UnitWeighter, hasher.clone(), PinLifecycle);
        let shards = (0..SHARD_COUNT).map(|_| Mutex::new(shard())).collect();
        Self { hasher, shards }
    }
}
