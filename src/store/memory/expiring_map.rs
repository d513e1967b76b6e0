//! Maps with times: `TimeIndex`, keys ordered by a time, and `ExpiringMap`, values that expire.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

/// Keys ordered by a time, like a Redis ZSET.
pub(super) struct TimeIndex<K> {
    times: HashMap<K, u64>,
    by_time: BTreeSet<(u64, K)>,
}

impl<K: Clone + Eq + Hash + Ord> TimeIndex<K> {
    pub(super) fn set(&mut self, key: &K, time: u64) {
        match self.times.insert(key.clone(), time) {
            Some(old_time) if old_time == time => return,
            Some(old_time) => {
                self.by_time.remove(&(old_time, key.clone()));
            }
            None => {}
        }
        self.by_time.insert((time, key.clone()));
    }

    pub(super) fn remove(&mut self, key: &K) {
        if let Some(time) = self.times.remove(key) {
            self.by_time.remove(&(time, key.clone()));
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<u64> {
        self.times.get(key).copied()
    }

    /// Iterates by time, keys of the same time in their own order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &K)> {
        self.by_time.iter().map(|(time, key)| (*time, key))
    }

    pub(super) fn first(&self) -> Option<(u64, K)> {
        self.by_time.first().cloned()
    }

    /// Returns the latest time.
    pub(super) fn last(&self) -> Option<u64> {
        self.by_time.last().map(|(time, _)| *time)
    }

    pub(super) fn len(&self) -> usize {
        self.times.len()
    }

    /// Removes keys that are due.
    pub(super) fn remove_due(&mut self, now: u64) {
        while self.pop_before(now + 1).is_some() {}
    }

    fn pop_before(&mut self, now: u64) -> Option<K> {
        if self.by_time.first()?.0 >= now {
            return None;
        }
        let (_, key) = self.by_time.pop_first()?;
        self.times.remove(&key);
        Some(key)
    }
}

impl<K> Default for TimeIndex<K> {
    fn default() -> Self {
        Self { times: HashMap::new(), by_time: BTreeSet::new() }
    }
}

/// Map of values that are absent after their expiry, like Redis keys with a TTL. Values without an
/// expiry stay until they are removed.
pub(super) struct ExpiringMap<K, V> {
    values: HashMap<K, V>,
    expiries: TimeIndex<K>,
}

impl<K: Clone + Eq + Hash + Ord, V> ExpiringMap<K, V> {
    pub(super) fn get(&self, key: &K, now: u64) -> Option<&V> {
        self.values.get(key).filter(|_| self.is_live(key, now))
    }

    pub(super) fn get_mut(&mut self, key: &K, now: u64) -> Option<&mut V> {
        let is_live = self.is_live(key, now);
        self.values.get_mut(key).filter(|_| is_live)
    }

    pub(super) fn insert(&mut self, key: &K, value: V, end: Option<u64>) {
        self.values.insert(key.clone(), value);
        self.set_expiry(key, end);
    }

    /// Returns the value; inserts a default if there is none. The caller sets its expiry
    /// afterwards.
    pub(super) fn get_or_insert_default(&mut self, key: &K) -> &mut V
    where
        V: Default,
    {
        self.values.entry(key.clone()).or_default()
    }

    pub(super) fn set_expiry(&mut self, key: &K, end: Option<u64>) {
        match end {
            Some(end) => self.expiries.set(key, end),
            None => self.expiries.remove(key),
        }
    }

    /// Iterates over the values that have not expired.
    #[cfg(any(test, feature = "fsck"))]
    pub(super) fn iter_live(&self, now: u64) -> impl Iterator<Item = (&K, &V)> {
        self.values.iter().filter(move |(key, _)| self.is_live(key, now))
    }

    /// Returns the expiry of a value.
    pub(super) fn expiry_of(&self, key: &K) -> Option<u64> {
        self.expiries.get(key)
    }

    pub(super) fn remove(&mut self, key: &K) {
        self.values.remove(key);
        self.expiries.remove(key);
    }

    /// Removes at most `max_removed` expired values.
    pub(super) fn sweep(&mut self, now: u64, max_removed: usize) {
        for _ in 0..max_removed {
            let Some(key) = self.expiries.pop_before(now) else {
                break;
            };
            self.values.remove(&key);
        }
        // After a peak the table would keep the capacity of the peak.
        if self.values.capacity() > 1024 && self.values.len() < self.values.capacity() / 8 {
            let capacity = self.values.len() * 2;
            self.values.shrink_to(capacity);
            self.expiries.times.shrink_to(capacity);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns the number of values without an expiry.
    #[cfg(test)]
    pub(super) fn persistent_len(&self) -> usize {
        self.values.len() - self.expiries.times.len()
    }

    /// A key with a TTL of n is alive in its n-th millisecond too.
    fn is_live(&self, key: &K, now: u64) -> bool {
        self.expiries.get(key).is_none_or(|end| now <= end)
    }
}

impl<K, V> Default for ExpiringMap<K, V> {
    fn default() -> Self {
        Self { values: HashMap::new(), expiries: TimeIndex::default() }
    }
}
