//! The lines under the mutex: who waits, whose turn it is, and what the store has said.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{sync::Notify, time::Instant};

use super::{
    ahead::Ahead,
    rules::{Fences, Told, Word},
    waiter::{Gone, Waiter},
};
use crate::{
    key::Key,
    lock::answer::Busy,
    store::{LockLease, LockMode, Contenders, LockToken},
};

/// A lock in one mode: what has a line of its own.
pub(super) type Name = (Key, LockMode);

/// Nearly all are exclusive; a word about a lock has to find all of its lines.
#[derive(Default)]
pub(super) struct Map {
    pub(super) exclusive: HashMap<Key, Line>,
    pub(super) others: HashMap<Key, Modes>,
    /// Who joined for locks that have no line here: this process may have just been granted one, and not know it yet.
    told: HashMap<Key, Told>,
}

/// The lines of one lock in other modes, of which it has one as a rule.
type Modes = SmallVec<[(LockMode, Box<Line>); 1]>;

/// So many are remembered, for so long: far more than there are calls without a line under way, and longer than any is. A
/// message that is forgotten costs what a lost one does.
const TOLD: (usize, Duration) = (256, Duration::from_secs(10));

/// One of them. It is there exactly while a guard, a keeper or a waiter is.
#[derive(Default)]
pub(super) struct Line {
    pub(super) waiters: VecDeque<Waiter>,
    /// The leases of this process that can be handed on.
    pub(super) turns: SmallVec<[LockToken; 1]>,
    /// Somebody asks the store for this process; rung when a waiter leaves.
    pub(super) keeper: Option<Arc<Notify>>,
    /// It is one of those who came, in its own future, and no task.
    pub(super) opens: bool,
    pub(super) word: Option<Word>,
    /// What came perhaps after the next word was made.
    pub(super) told: Option<Told>,
    /// What the store said last of who has it.
    pub(super) busy: Option<Busy>,
    pub(super) ahead: Ahead,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.turns.is_empty() && self.keeper.is_none()
    }

    /// Whether a newcomer stands behind others of this process, who are or will be served.
    pub(super) fn has_a_line(&self, mode: LockMode) -> bool {
        let mine = mode == LockMode::Exclusive && !self.turns.is_empty();
        mine || self.keeper.is_some() || !self.waiters.is_empty()
    }

    pub(super) fn drop_all_who_left(&mut self, gone: &mut Gone) {
        let (now, length) = (Instant::now(), self.waiters.len());
        // Mostly nobody has.
        if self.waiters.iter().all(|waiter| waiter.still_waits(now)) {
            return;
        }
        for waiter in std::mem::take(&mut self.waiters) {
            if waiter.still_waits(now) {
                self.waiters.push_back(waiter);
            } else {
                gone.add(waiter, self.busy.as_ref(), length);
            }
        }
    }

    /// Somebody joined the store's line.
    pub(super) fn joined(&mut self, who: Contenders) {
        if let Some(word) = &mut self.word {
            word.joined(who);
        }
        self.told = Some(Told::joined(self.told, who));
    }

    /// From the front, as far as it goes.
    pub(super) fn drop_those_who_left(&mut self, gone: &mut Gone) {
        if self.waiters.is_empty() {
            return;
        }
        let (now, length) = (Instant::now(), self.waiters.len());
        while self.waiters.front().is_some_and(|first| !first.still_waits(now))
            && let Some(waiter) = self.waiters.pop_front()
        {
            gone.add(waiter, self.busy.as_ref(), length);
        }
    }

    /// The next waiter and its fence, if the lock may be handed over to it.
    pub(super) fn next_turn(
        &mut self,
        lease: &LockLease,
        fences: &mut Fences,
    ) -> Option<(Waiter, u64)> {
        self.ahead.bring(&lease.token, fences);
        let first = self.waiters.front()?;
        let word = self.word.as_ref()?;
        let may = self.turns.contains(&lease.token)
            && first.asking.terms == lease.terms
            && first.asking.hand_over == fences.asked()
            && word.allows(first.came, fences)
            && lease.allows_handover();
        let fence = if may { fences.next()? } else { return None };
        self.ahead.handed_on(fences);
        Some((self.waiters.pop_front()?, fence))
    }

    /// The turn is over, and nobody was handed it. A bell for the keeper, if one is needed: those who
    /// wait have nobody who asks for them.
    pub(super) fn turn_ends(&mut self, me: &LockToken) -> Option<Arc<Notify>> {
        self.turns.retain(|turn| turn != me);
        self.ahead.turn_ended();
        if self.waiters.is_empty() || self.keeper.is_some() {
            return None;
        }
        Some(self.new_keeper())
    }

    /// The bell of one that is about to be.
    pub(super) fn new_keeper(&mut self) -> Arc<Notify> {
        let bell = Arc::new(Notify::new());
        (self.keeper, self.opens) = (Some(Arc::clone(&bell)), false);
        bell
    }

    /// Whether who has asked asks for those who wait from here on, too: unless somebody else does, or it comes to them.
    pub(super) fn goes_on_with(&mut self, bell: &Arc<Notify>, mode: LockMode) -> bool {
        let served = mode == LockMode::Exclusive && !self.turns.is_empty();
        let nobody = self.keeper.is_none() && !served;
        if !nobody && !self.is_kept_by(bell) {
            return false;
        }
        (self.keeper, self.opens) = (Some(Arc::clone(bell)), false);
        true
    }

    pub(super) fn is_kept_by(&self, bell: &Arc<Notify>) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| Arc::ptr_eq(keeper, bell))
    }
}

impl Map {
    /// Somebody joined the store's line of a lock that nobody here stands in line for.
    pub(super) fn joined(&mut self, key: &Key, who: Contenders) {
        let (most, age) = TOLD;
        if self.told.len() >= most {
            self.told.retain(|_, told| !told.is_older_than(age));
        }
        let before = self.told.get(key).copied();
        if before.is_some() || self.told.len() < most {
            self.told.insert(key.clone(), Told::joined(before, who));
        }
    }

    /// What the store has said with a grant, and who was told of while that was under way.
    pub(super) fn word(&mut self, name: &Name, mut word: Word) -> Word {
        let told = self.get(name).and_then(|line| line.told.take());
        let without_a_line = if self.told.is_empty() { None } else { self.told.remove(&name.0) };
        for told in told.into_iter().chain(without_a_line) {
            told.adds_to(&mut word);
        }
        word
    }

    /// The lines of a lock, of all modes.
    pub(super) fn all(&mut self, key: &Key) -> impl Iterator<Item = &mut Line> {
        let others = self.others.get_mut(key).into_iter().flatten();
        self.exclusive.get_mut(key).into_iter().chain(others.map(|(_, line)| &mut **line))
    }

    /// How many wait for a lock.
    pub(super) fn waiting(&mut self, key: &Key) -> usize {
        self.all(key).map(|line| line.waiters.len()).sum()
    }

    pub(super) fn drop_all_who_left(&mut self, key: &Key, gone: &mut Gone) {
        self.all(key).for_each(|line| line.drop_all_who_left(gone));
    }

    pub(super) fn get(&mut self, name: &Name) -> Option<&mut Line> {
        match name.1 {
            LockMode::Exclusive => self.exclusive.get_mut(&name.0),
            mode => {
                let lines = self.others.get_mut(&name.0)?;
                lines.iter_mut().find(|(other, _)| *other == mode).map(|(_, line)| &mut **line)
            }
        }
    }

    #[expect(clippy::indexing_slicing, reason = "it is there, or has been put there")]
    pub(super) fn entry(&mut self, name: &Name) -> &mut Line {
        match name.1 {
            LockMode::Exclusive => self.exclusive.entry(name.0.clone()).or_default(),
            mode => {
                let lines = self.others.entry(name.0.clone()).or_default();
                let at = lines.iter().position(|(other, _)| *other == mode).unwrap_or(lines.len());
                if at == lines.len() {
                    lines.push((mode, Box::default()));
                }
                &mut lines[at].1
            }
        }
    }

    pub(super) fn sweep(&mut self, name: &Name) {
        // By one look-up: each hashes the name.
        match name.1 {
            LockMode::Exclusive => {
                if let Entry::Occupied(line) = self.exclusive.entry(name.0.clone())
                    && line.get().is_empty()
                {
                    line.remove();
                }
            }
            // A lock has few of them: all that are empty go.
            _ => {
                if let Entry::Occupied(mut lines) = self.others.entry(name.0.clone()) {
                    lines.get_mut().retain(|(_, line)| !line.is_empty());
                    if lines.get().is_empty() {
                        lines.remove();
                    }
                }
            }
        }
    }
}
