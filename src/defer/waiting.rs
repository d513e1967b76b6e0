//! Locks that are known to have something to run, and wait for room.

use std::collections::{HashMap, VecDeque};

use crate::{key::Key, store::JobId};

/// Whoever came first is visited first: a long line, whose own message comes as its visit ends, must not keep
/// the others waiting. Each lock is in it once. All of it is a hint; the claim knows.
#[derive(Default)]
pub(super) struct Waiting {
    line: VecDeque<Key>,
    heads: HashMap<Key, Option<JobId>>,
}

impl Waiting {
    /// What was heard last of its first job is what is believed.
    pub(super) fn push(&mut self, key: Key, head: Option<JobId>) {
        if self.heads.insert(key.clone(), head).is_none() {
            self.line.push_back(key);
        }
    }

    pub(super) fn pop(&mut self) -> Option<(Key, Option<JobId>)> {
        let key = self.line.pop_front()?;
        let head = self.heads.remove(&key).flatten();
        Some((key, head))
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.heads.contains_key(key)
    }

    pub(super) fn len(&self) -> usize {
        self.line.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.line.clear();
        self.heads.clear();
    }

    /// The first of them.
    pub(super) fn first(&self, most: usize) -> Vec<(Key, Option<JobId>)> {
        let known = |key: &Key| (key.clone(), self.heads.get(key).cloned().flatten());
        self.line.iter().take(most).map(known).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_in_it_once_with_what_was_heard_last() {
        let mut waiting = Waiting::default();
        let (one, two) = (Key::custom("1"), Key::custom("2"));
        let (old, new) = (JobId::new(&one), JobId::new(&one));
        waiting.push(one.clone(), Some(old));
        waiting.push(two.clone(), None);
        waiting.push(one.clone(), Some(new.clone()));
        assert_eq!(waiting.len(), 2);
        assert_eq!(waiting.pop(), Some((one.clone(), Some(new))));
        assert!(!waiting.contains(&one) && waiting.contains(&two));
        assert_eq!(waiting.pop(), Some((two, None)));
        assert_eq!((waiting.pop(), waiting.is_empty()), (None, true));
    }
}
