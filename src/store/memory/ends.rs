//! Things that end at a known time: found by name, and by what ends first.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

/// Names in order of a time, as a Redis ZSET has them.
pub(super) struct Index<K> {
    at: HashMap<K, u64>,
    order: BTreeSet<(u64, K)>,
}

impl<K: Clone + Eq + Hash + Ord> Index<K> {
    pub(super) fn set(&mut self, name: &K, at: u64) {
        match self.at.insert(name.clone(), at) {
            Some(old) if old == at => return,
            Some(old) => {
                self.order.remove(&(old, name.clone()));
            }
            None => {}
        }
        self.order.insert((at, name.clone()));
    }

    pub(super) fn remove(&mut self, name: &K) {
        if let Some(at) = self.at.remove(name) {
            self.order.remove(&(at, name.clone()));
        }
    }

    pub(super) fn get(&self, name: &K) -> Option<u64> {
        self.at.get(name).copied()
    }

    /// In order of time, names of the same time in their own order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &K)> {
        self.order.iter().map(|(at, name)| (*at, name))
    }

    pub(super) fn first(&self) -> Option<(u64, K)> {
        self.order.first().cloned()
    }

    /// The latest time.
    pub(super) fn last(&self) -> Option<u64> {
        self.order.last().map(|(at, _)| *at)
    }

    pub(super) fn len(&self) -> usize {
        self.at.len()
    }

    /// Takes out names whose time has come.
    pub(super) fn trim(&mut self, now: u64) {
        while self.pop_before(now + 1).is_some() {}
    }

    fn pop_before(&mut self, now: u64) -> Option<K> {
        if self.order.first()?.0 >= now {
            return None;
        }
        let (_, name) = self.order.pop_first()?;
        self.at.remove(&name);
        Some(name)
    }
}

impl<K> Default for Index<K> {
    fn default() -> Self {
        Self { at: HashMap::new(), order: BTreeSet::new() }
    }
}

/// Values that are gone once their time is over, as a Redis key with a TTL is. Those without an end
/// stay until they are removed.
pub(super) struct Expiring<K, V> {
    values: HashMap<K, V>,
    ends: Index<K>,
}

impl<K: Clone + Eq + Hash + Ord, V> Expiring<K, V> {
    pub(super) fn get(&self, name: &K, now: u64) -> Option<&V> {
        self.values.get(name).filter(|_| self.lives(name, now))
    }

    pub(super) fn get_mut(&mut self, name: &K, now: u64) -> Option<&mut V> {
        let lives = self.lives(name, now);
        self.values.get_mut(name).filter(|_| lives)
    }

    pub(super) fn put(&mut self, name: &K, value: V, end: Option<u64>) {
        self.values.insert(name.clone(), value);
        self.end_at(name, end);
    }

    /// The value, made if there is none. The caller sets its end afterwards.
    pub(super) fn get_or_default(&mut self, name: &K) -> &mut V
    where
        V: Default,
    {
        self.values.entry(name.clone()).or_default()
    }

    pub(super) fn end_at(&mut self, name: &K, end: Option<u64>) {
        match end {
            Some(end) => self.ends.set(name, end),
            None => self.ends.remove(name),
        }
    }

    /// Those that are there.
    #[cfg(any(test, feature = "fsck"))]
    pub(super) fn iter(&self, now: u64) -> impl Iterator<Item = (&K, &V)> {
        self.values.iter().filter(move |(name, _)| self.lives(name, now))
    }

    /// When a value that is there ends.
    pub(super) fn end_of(&self, name: &K) -> Option<u64> {
        self.ends.get(name)
    }

    pub(super) fn remove(&mut self, name: &K) {
        self.values.remove(name);
        self.ends.remove(name);
    }

    /// Takes out up to `most` values whose time is over.
    pub(super) fn sweep(&mut self, now: u64, most: usize) {
        for _ in 0..most {
            let Some(name) = self.ends.pop_before(now) else {
                break;
            };
            self.values.remove(&name);
        }
        // After a flood the table would stay as large as the flood was.
        if self.values.capacity() > 1024 && self.values.len() < self.values.capacity() / 8 {
            let room = self.values.len() * 2;
            self.values.shrink_to(room);
            self.ends.at.shrink_to(room);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// How many have no end.
    #[cfg(test)]
    pub(super) fn endless(&self) -> usize {
        self.values.len() - self.ends.at.len()
    }

    /// A key whose TTL is n lives for its n-th millisecond too.
    fn lives(&self, name: &K, now: u64) -> bool {
        self.ends.get(name).is_none_or(|end| now <= end)
    }
}

impl<K, V> Default for Expiring<K, V> {
    fn default() -> Self {
        Self { values: HashMap::new(), ends: Index::default() }
    }
}
