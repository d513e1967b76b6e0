//! Maps of values that expire: by name, and by expiry.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

/// Names ordered by a time, like a Redis ZSET.
pub(super) struct TimeIndex<K> {
    times: HashMap<K, u64>,
    by_time: BTreeSet<(u64, K)>,
}

impl<K: Clone + Eq + Hash + Ord> TimeIndex<K> {
    pub(super) fn set(&mut self, name: &K, at: u64) {
        match self.times.insert(name.clone(), at) {
            Some(old) if old == at => return,
            Some(old) => {
                self.by_time.remove(&(old, name.clone()));
            }
            None => {}
        }
        self.by_time.insert((at, name.clone()));
    }

    pub(super) fn remove(&mut self, name: &K) {
        if let Some(at) = self.times.remove(name) {
            self.by_time.remove(&(at, name.clone()));
        }
    }

    pub(super) fn get(&self, name: &K) -> Option<u64> {
        self.times.get(name).copied()
    }

    /// Iterates by time, names of the same time in their own order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &K)> {
        self.by_time.iter().map(|(at, name)| (*at, name))
    }

    pub(super) fn first(&self) -> Option<(u64, K)> {
        self.by_time.first().cloned()
    }

    /// Returns the latest time.
    pub(super) fn last(&self) -> Option<u64> {
        self.by_time.last().map(|(at, _)| *at)
    }

    pub(super) fn len(&self) -> usize {
        self.times.len()
    }

    /// Removes names that are due.
    pub(super) fn remove_due(&mut self, now: u64) {
        while self.pop_before(now + 1).is_some() {}
    }

    fn pop_before(&mut self, now: u64) -> Option<K> {
        if self.by_time.first()?.0 >= now {
            return None;
        }
        let (_, name) = self.by_time.pop_first()?;
        self.times.remove(&name);
        Some(name)
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
    pub(super) fn get(&self, name: &K, now: u64) -> Option<&V> {
        self.values.get(name).filter(|_| self.is_live(name, now))
    }

    pub(super) fn get_mut(&mut self, name: &K, now: u64) -> Option<&mut V> {
        let lives = self.is_live(name, now);
        self.values.get_mut(name).filter(|_| lives)
    }

    pub(super) fn insert(&mut self, name: &K, value: V, end: Option<u64>) {
        self.values.insert(name.clone(), value);
        self.set_expiry(name, end);
    }

    /// Returns the value; inserts a default if there is none. The caller sets its expiry
    /// afterwards.
    pub(super) fn get_or_insert_default(&mut self, name: &K) -> &mut V
    where
        V: Default,
    {
        self.values.entry(name.clone()).or_default()
    }

    pub(super) fn set_expiry(&mut self, name: &K, end: Option<u64>) {
        match end {
            Some(end) => self.expiries.set(name, end),
            None => self.expiries.remove(name),
        }
    }

    /// Iterates over the values that have not expired.
    #[cfg(any(test, feature = "fsck"))]
    pub(super) fn iter_live(&self, now: u64) -> impl Iterator<Item = (&K, &V)> {
        self.values.iter().filter(move |(name, _)| self.is_live(name, now))
    }

    /// Returns the expiry of a value.
    pub(super) fn expiry_of(&self, name: &K) -> Option<u64> {
        self.expiries.get(name)
    }

    pub(super) fn remove(&mut self, name: &K) {
        self.values.remove(name);
        self.expiries.remove(name);
    }

    /// Removes at most `most` expired values.
    pub(super) fn sweep(&mut self, now: u64, most: usize) {
        for _ in 0..most {
            let Some(name) = self.expiries.pop_before(now) else {
                break;
            };
            self.values.remove(&name);
        }
        // After a peak the table would keep the capacity of the peak.
        if self.values.capacity() > 1024 && self.values.len() < self.values.capacity() / 8 {
            let room = self.values.len() * 2;
            self.values.shrink_to(room);
            self.expiries.times.shrink_to(room);
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
    fn is_live(&self, name: &K, now: u64) -> bool {
        self.expiries.get(name).is_none_or(|end| now <= end)
    }
}

impl<K, V> Default for ExpiringMap<K, V> {
    fn default() -> Self {
        Self { values: HashMap::new(), expiries: TimeIndex::default() }
    }
}
