//! All local lines of a store handle, and what a keeper has to do with them.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, Semaphore},
    time::Instant,
};

use super::{
    keeper::{Keeper, Start},
    map::{Line, Map, Name},
    rules::Word,
    waiter::{Gone, Waited},
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    lock::{answer::Busy, asking::Asking},
    store::{JoinListener, LockLease, LossWatcher, LockMode, Contenders, Store},
};

/// Most waiters of all locks in one process: bounds the memory that a flood of requests can take.
const MAX_WAITERS_IN_ALL: usize = 16 * 1024;

/// All local lines of a store handle.
pub(in crate::lock) struct Lines {
    pub(super) lines: Mutex<Map>,
    pub(super) room: Arc<Semaphore>,
    /// Set once the store tells of those who join.
    listens: OnceLock<()>,
}

impl Default for Lines {
    fn default() -> Self {
        let room = Arc::new(Semaphore::new(MAX_WAITERS_IN_ALL));
        Self { lines: Mutex::default(), room, listens: OnceLock::new() }
    }
}

/// The first of a line, on whose behalf the store is asked.
pub(super) struct Front {
    pub(super) asking: Asking,
    /// When it came, in the server's time, as a sequence; 0 if that is not known.
    pub(super) came: u64,
    /// How long the last of the line will wait.
    pub(super) last: Instant,
    pub(super) number: usize,
}

impl Lines {
    /// Subscribes to the processes that join the store's lines, once.
    pub(super) fn listen(self: &Arc<Self>, store: &Store) {
        let hints = store.wakeups();
        self.listens.get_or_init(|| {
            let me: Arc<Self> = Arc::clone(self);
            let me: Arc<dyn JoinListener> = me;
            hints.set_join_listener(Arc::downgrade(&me));
        });
    }

    /// What the first who still waits asked for, how long the last one will, and how many they are. If
    /// there is none the keeper has ended by this call: whoever comes next asks for itself.
    pub(super) fn front(&self, name: &Name) -> Option<Front> {
        let mut gone = Gone::default();
        let mut lines = self.lines.lock();
        let line = lines.get(name)?;
        let front = front(line, &mut gone);
        if front.is_none() {
            line.keeper = None;
            lines.sweep(name);
        }
        front
    }

    /// The same; but if there is none, the keeper is one still.
    pub(super) fn front_for_now(&self, name: &Name) -> Option<Front> {
        let mut gone = Gone::default();
        self.lines.lock().get(name).and_then(|line| front(line, &mut gone))
    }

    /// Whether somebody waits for longer than this.
    pub(super) fn waits_beyond(&self, name: &Name, moment: Instant) -> bool {
        let mut lines = self.lines.lock();
        lines.get(name).is_some_and(|line| line.waiters.iter().any(|one| one.until > moment))
    }

    pub(super) fn note_busy(&self, name: &Name, busy: Busy) {
        if let Some(line) = self.lines.lock().get(name) {
            line.busy = Some(busy);
        }
    }

    /// What the store has said with a grant to a reader. Readers are handed nothing, but by its time it is known when those
    /// of them came who wait still: they ask for the places they would have, had each asked when it came.
    pub(super) fn note_time(&self, name: &Name, word: Word) {
        if let Some(line) = self.lines.lock().get(name).filter(|_| name.1 == LockMode::Shared) {
            line.word = Some(word);
        }
    }

    /// Whether one of these locks, asked for in this mode, comes by this process: it has the lock, or some of its own stand
    /// in line for it. The store would refuse all of them.
    pub(in crate::lock) fn has_one_of<'a>(
        &self,
        mut keys: impl Iterator<Item = &'a Key>,
        mode: LockMode,
    ) -> bool {
        let mut lines = self.lines.lock();
        // Whoever has it alone, or waits for that, keeps all others out.
        keys.any(|key| {
            let alone = lines.exclusive.get(key);
            alone.is_some_and(|line| line.has_a_line(LockMode::Exclusive))
                || (mode != LockMode::Exclusive
                    && lines.get(&(key.clone(), mode)).is_some_and(|line| line.has_a_line(mode)))
        })
    }

    /// Nobody asks for the line any more. If somebody has to, who does is found here: an exclusive lock
    /// that this process has comes to those who wait when the guard ends.
    pub(super) fn keeper_ends(self: &Arc<Self>, name: &Name) {
        self.ends_where(name, |_| true);
    }

    fn ends_where(self: &Arc<Self>, name: &Name, mine: impl Fn(&Line) -> bool) {
        let served = {
            let mut lines = self.lines.lock();
            let Some(line) = lines.get(name).filter(|line| mine(line)) else { return };
            line.keeper = None;
            name.1 == LockMode::Exclusive && !line.turns.is_empty()
        };
        if !served {
            self.ask_for_them(name);
        }
    }

    /// All who wait are told that the store is away.
    pub(super) fn fail(&self, name: &Name, kind: ErrorKind) {
        let waiters = {
            let mut lines = self.lines.lock();
            let Some(line) = lines.get(name) else { return };
            line.keeper = None;
            let waiters = std::mem::take(&mut line.waiters);
            lines.sweep(name);
            waiters
        };
        for mut waiter in waiters {
            let _ = waiter.tell(Waited::Fault(Error::new(kind, "wait")));
        }
    }

    /// Somebody has to ask for those who wait, if there are any and nobody does.
    pub(super) fn ask_for_them(self: &Arc<Self>, name: &Name) {
        let (store, bell) = {
            let mut gone = Gone::default();
            let mut lines = self.lines.lock();
            let Some(line) = lines.get(name) else { return };
            line.drop_those_who_left(&mut gone);
            let Some(first) = line.waiters.front().filter(|_| line.keeper.is_none()) else {
                return lines.sweep(name);
            };
            let store = first.store.clone();
            (store, line.new_keeper())
        };
        Keeper::spawn(self, &store, name, bell, Start::Fresh);
    }

    /// The one who asks for all who came meanwhile has not come back. His future may not be polled, or his thread be at
    /// something else: a task asks for them from here on.
    pub(super) fn ask_without(self: &Arc<Self>, name: &Name, opening: &Arc<Notify>) {
        let (store, bell) = {
            let mut lines = self.lines.lock();
            let opens = |line: &&mut Line| line.opens && line.is_kept_by(opening);
            let Some(line) = lines.get(name).filter(opens) else { return };
            let Some(store) = line.waiters.front().map(|first| first.store.clone()) else { return };
            (store, line.new_keeper())
        };
        Keeper::spawn(self, &store, name, bell, Start::Fresh);
    }

    /// Who has asked for all who came meanwhile is done, and asks no more.
    pub(super) fn opening_ends(self: &Arc<Self>, name: &Name, opening: &Arc<Notify>) {
        self.ends_where(name, |line| line.is_kept_by(opening));
    }

    /// The lease is not to be handed on any more; those who wait behind it ask the store.
    pub(in crate::lock) fn leave_turn(self: &Arc<Self>, lease: &LockLease) {
        let name = (lease.key.clone(), lease.terms.mode);
        if let Some(line) = self.lines.lock().get(&name) {
            line.turns.retain(|turn| *turn != lease.token);
        }
        self.ask_for_them(&name);
    }

    #[cfg(test)]
    pub(in crate::lock) fn waiting(&self, name: &Name) -> usize {
        self.lines.lock().get(name).map_or(0, |line| line.waiters.len())
    }

    #[cfg(test)]
    pub(in crate::lock) fn is_locked(&self) -> bool {
        self.lines.is_locked()
    }

    #[cfg(test)]
    pub(in crate::lock) fn is_empty(&self) -> bool {
        let lines = self.lines.lock();
        lines.exclusive.is_empty() && lines.others.is_empty()
    }
}

fn front(line: &mut Line, gone: &mut Gone) -> Option<Front> {
    // Whoever asks on behalf of it hears of those that this process was told of before.
    line.told = None;
    line.drop_all_who_left(gone);
    let last = line.waiters.iter().map(|waiter| waiter.until).max()?;
    let first = line.waiters.front()?;
    Some(Front {
        asking: first.asking.clone(),
        came: line.word.as_ref().map_or(0, |word| word.server_time(first.came)),
        last,
        number: line.waiters.len(),
    })
}

impl LossWatcher for Lines {
    fn on_loss(self: Arc<Self>, lease: &LockLease) {
        // They need not wait for what the loser still does.
        self.leave_turn(lease);
    }
}

impl JoinListener for Lines {
    fn on_join(&self, key: &Key, who: Contenders) {
        let mut lines = self.lines.lock();
        let none = !lines.exclusive.contains_key(key);
        for line in lines.all(key) {
            line.joined(who);
        }
        // Only exclusive locks are handed on.
        if none {
            lines.joined(key, who);
        }
    }

    fn drain(&self) -> bool {
        let mut gone = Gone::default();
        let mut lines = self.lines.lock();
        let Map { exclusive, others, .. } = &mut *lines;
        let in_modes = others.values_mut().flatten().map(|(_, line)| &mut **line);
        let all = exclusive.values_mut().chain(in_modes);
        let mut settled = true;
        for line in all {
            line.drop_all_who_left(&mut gone);
            // A keeper without waiters is about to hear that it is one.
            settled &= line.keeper.is_none() || !line.waiters.is_empty();
        }
        exclusive.retain(|_, line| !line.is_empty());
        others.retain(|_, lines| {
            lines.retain(|(_, line)| !line.is_empty());
            !lines.is_empty()
        });
        settled
    }
}
