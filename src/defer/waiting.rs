//! Locks that are known to have something to run, and wait for room.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::{key::Key, store::JobId};

/// How long it waits here before another worker is told of it: one whose runs are short has room by then.
pub(super) const PATIENCE: Duration = Duration::from_millis(300);

/// How long it is left to a worker that was told of it.
const TOLD: Duration = Duration::from_secs(1);

/// Whoever came first is visited first: a long line, whose own message comes as its visit ends, must not keep
/// the others waiting. Each lock is in it once. All of it is a hint; the claim knows.
#[derive(Default)]
pub(super) struct Waiting {
    line: VecDeque<Key>,
    known: HashMap<Key, Known>,
}

struct Known {
    head: Option<JobId>,
    since: Instant,
    /// When another worker has heard of it from this one.
    told: Option<Instant>,
    /// It has come due since it was first told.
    due: bool,
}

impl Known {
    /// Whoever was told of it a while before it came due has run something else of it, or nothing.
    fn is_to_be_told(&self, now: Instant) -> bool {
        match self.told {
            None => self.since + PATIENCE <= now,
            Some(told) => self.due && told + TOLD <= now,
        }
    }
}

impl Waiting {
    /// What was heard last of its first job is what is believed.
    pub(super) fn push(&mut self, key: Key, head: Option<JobId>) {
        self.push_told(key, head, None);
    }

    /// One of which another worker was told now, or not.
    pub(super) fn push_told(&mut self, key: Key, head: Option<JobId>, told: Option<Instant>) {
        if let Some(known) = self.known.get_mut(&key) {
            (known.head, known.told) = (head, told.or(known.told));
            return;
        }
        self.line.push_back(key.clone());
        self.known.insert(key, Known { head, since: Instant::now(), told, due: false });
    }

    /// One that has come due.
    pub(super) fn push_due(&mut self, key: &Key, head: Option<JobId>) {
        self.push(key.clone(), head);
        if let Some(known) = self.known.get_mut(key) {
            known.due = true;
        }
    }

    pub(super) fn pop(&mut self) -> Option<(Key, Option<JobId>)> {
        let key = self.line.pop_front()?;
        let head = self.known.remove(&key).and_then(|known| known.head);
        Some((key, head))
    }

    /// Takes out one that need not be the first.
    pub(super) fn remove(&mut self, key: &Key) -> Option<JobId> {
        let at = self.line.iter().position(|waits| waits == key)?;
        self.line.remove(at);
        self.known.remove(key).and_then(|known| known.head)
    }

    /// In the order in which they came.
    pub(super) fn keys(&self) -> impl DoubleEndedIterator<Item = &Key> {
        self.line.iter()
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.known.contains_key(key)
    }

    pub(super) fn len(&self) -> usize {
        self.line.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.line.clear();
        self.known.clear();
    }

    /// The first of them that another worker should hear of: all, or those that none has heard of for too long.
    pub(super) fn next_to_tell(
        &mut self,
        most: usize,
        all: bool,
        now: Instant,
    ) -> Vec<(Key, Option<JobId>)> {
        let mut found = Vec::new();
        for key in &self.line {
            if found.len() == most {
                break;
            }
            if let Some(known) =
                self.known.get_mut(key).filter(|known| all || known.is_to_be_told(now))
            {
                (known.told, known.due) = (Some(now), false);
                found.push((key.clone(), known.head.clone()));
            }
        }
        found
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

    #[tokio::test(start_paused = true)]
    async fn each_is_told_once_after_a_while_and_again_when_all_are() {
        let mut waiting = Waiting::default();
        let keys = ["1", "2", "3"].map(Key::custom);
        keys.iter().for_each(|key| waiting.push(key.clone(), None));
        let (now, later) = (Instant::now(), Instant::now() + PATIENCE);
        let mut told = |most, all, now| {
            let told = waiting.next_to_tell(most, all, now);
            told.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert!(told(2, false, now).is_empty());
        assert_eq!(told(2, false, later), keys[..2]);
        assert_eq!(told(2, false, later), keys[2..]);
        assert!(told(2, false, later).is_empty());
        assert_eq!(told(2, true, later), keys[..2]);
        let last = Key::custom("4");
        waiting.push_told(last.clone(), None, Some(later));
        // What is heard of it anew changes nothing of that, but that it has come due does, after a while.
        waiting.push(keys[0].clone(), Some(JobId::new(&keys[0])));
        waiting.push_due(&last, None);
        assert!(waiting.next_to_tell(2, false, later).is_empty());
        assert_eq!(waiting.next_to_tell(2, false, later + TOLD), [(last, None)]);
        assert!(waiting.next_to_tell(2, false, later + 9 * TOLD).is_empty());
    }
}
