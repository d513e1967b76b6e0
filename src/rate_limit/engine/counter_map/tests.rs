use std::{sync::Arc, time::Duration};

use super::*;
use crate::key::Key;

/// A set of bits, of which the highest pins the state.
impl CounterState for u32 {
    fn is_pinned(&self) -> bool {
        *self & PINNED != 0
    }

    fn inherit(&mut self, other: &Self) {
        *self |= other;
    }
}

const PINNED: u32 = 1 << 31;

fn per_second(n: u64) -> Quota {
    Quota::requests(n).per(Duration::from_secs(1))
}

/// Keys that share a shard.
fn keys_in_first_shard(map: &CounterMap<u32>, policy: &Arc<str>, n: usize) -> Vec<Key> {
    let is_of_first = |key: &Key| {
        let counter_id = BorrowedCounterId { policy, tag: key, subject: key, quota: per_second(1) };
        std::ptr::eq(map.shard_for(counter_id), &raw const map.shards[0])
    };
    let all = (0..).map(|n| Key::custom(&format!("{n}")));
    all.filter(is_of_first).take(n).collect()
}

fn count_counters(map: &CounterMap<u32>) -> usize {
    map.shards.iter().map(|shard| shard.lock().len()).sum()
}

fn allocated_bytes(map: &CounterMap<u32>) -> usize {
    map.shards.iter().map(|shard| shard.lock().memory_used().total()).sum()
}

#[test]
fn key_flood_neither_grows_the_map_nor_evicts_a_used_key() {
    let (map, policy) = (CounterMap::default(), "default".into());
    let keys = keys_in_first_shard(&map, &policy, 3 * SHARD_CAPACITY);
    let counter_id =
        |key| BorrowedCounterId { policy: &policy, tag: key, subject: key, quota: per_second(1) };
    let mut memories = Vec::new();
    for chunk in keys.chunks(SHARD_CAPACITY) {
        for key in chunk {
            assert_eq!(map.with_or_insert(counter_id(key), || 0, |state| *state), Some(0));
            map.with_or_insert(counter_id(&keys[0]), || 0, |used| *used += 1);
        }
        memories.push(allocated_bytes(&map));
    }
    assert_eq!(count_counters(&map), SHARD_CAPACITY);
    let used = map.with(counter_id(&keys[0]), |used| *used as usize);
    assert_eq!(used, Some(keys.len()), "never evicted");
    let last = keys.last().expect("there are many");
    assert!(map.with(counter_id(last), |_| ()).is_some(), "the last one is admitted");
    assert_eq!(memories[1], memories[2]);
}

#[test]
fn pinned_state_is_never_evicted_and_full_map_rejects_keys() {
    let (map, policy) = (CounterMap::default(), "default".into());
    let keys = keys_in_first_shard(&map, &policy, 2 * SHARD_CAPACITY);
    let counter_id =
        |key| BorrowedCounterId { policy: &policy, tag: key, subject: key, quota: per_second(1) };
    let enter = |key| map.with_or_insert(counter_id(key), || PINNED, |_| ()).is_some();
    let admitted: Vec<_> = keys.iter().filter(|key| enter(key)).collect();
    assert_eq!((admitted.len(), count_counters(&map)), (SHARD_CAPACITY, SHARD_CAPACITY));
    assert!(admitted.iter().all(|key| map.with(counter_id(key), |_| ()).is_some()));
    // An unpinned counter is evicted for the next key of its shard.
    admitted
        .iter()
        .for_each(|key| assert!(map.with(counter_id(key), |state| *state = 0).is_some()));
    let refused = keys.iter().rfind(|key| map.with(counter_id(key), |_| ()).is_none());
    assert!(enter(refused.expect("half of the keys were refused")));
    assert_eq!(count_counters(&map), SHARD_CAPACITY);
}

#[test]
fn each_counter_has_its_own_state() {
    let policies = ["a".into(), "b".into()];
    let keys = ["x", "y", "a-key-that-is-longer-than-the-others"].map(Key::custom);
    let mut counter_ids = Vec::new();
    for policy in &policies {
        for subject in &keys {
            for tag in &keys {
                let counter_id =
                    |n| BorrowedCounterId { policy, tag, subject, quota: per_second(n) };
                counter_ids.extend([counter_id(1), counter_id(2)]);
            }
        }
    }
    let map = CounterMap::default();
    for (number, counter_id) in (0..).zip(&counter_ids) {
        map.with_or_insert(
            CounterId::from_ref(*counter_id).to_ref(),
            || 0,
            |state| *state = number,
        );
    }
    for (number, counter_id) in (0..).zip(&counter_ids) {
        assert_eq!(map.with(*counter_id, |state| *state), Some(number), "{counter_id:?}");
    }
    let mut seen = Vec::new();
    map.retain(|counter, quota, state| {
        assert_eq!(
            counter_position(&counter_ids, &counter.with_quota(quota)),
            Some(*state as usize)
        );
        seen.push(*state);
        *state % 2 == 0
    });
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..36));
    for (number, counter_id) in counter_ids.iter().enumerate() {
        assert_eq!(map.with(*counter_id, |_| ()).is_some(), number % 2 == 0);
    }
    map.retain(|_, _, _| false);
    assert!(map.is_empty());
}

fn counter_position(counter_ids: &[BorrowedCounterId<'_>], counter: &CounterId) -> Option<usize> {
    let target = counter.to_ref();
    counter_ids.iter().position(|counter_id| {
        (counter_id.policy, counter_id.tag, counter_id.subject, counter_id.quota)
            == (target.policy, target.tag, target.subject, target.quota)
    })
}

#[test]
fn quotas_of_one_counter_are_visited_together_and_bounded() {
    let (map, policy, key) = (CounterMap::default(), "default".into(), Key::custom("k"));
    let counter_id =
        |n| BorrowedCounterId { policy: &policy, tag: &key, subject: &key, quota: per_second(n) };
    map.with_or_insert(counter_id(1), || 1, |_| ());
    assert_eq!(map.with_or_insert(counter_id(2), || 2, |state| *state), Some(3), "it inherits");
    map.for_each_quota(counter_id(3), |state| *state += 10);
    assert_eq!(
        [1, 2, 3].map(|n| map.with(counter_id(n), |state| *state)),
        [Some(11), Some(13), None]
    );
    let known = |map: &CounterMap<u32>, n| map.with(counter_id(n), |_| ()).is_some();
    map.with(counter_id(1), |state| *state = PINNED);
    for n in 3..=9 {
        assert!(map.with_or_insert(counter_id(n), || 0, |state| *state = 0).is_some());
    }
    assert!(known(&map, 1) && !known(&map, 2) && (3..=9).all(|n| known(&map, n)));
    map.for_each_quota(counter_id(1), |state| *state = PINNED);
    assert_eq!(map.with_or_insert(counter_id(10), || 0, |_| ()), None);
    assert_eq!(count_counters(&map), 1);
}
