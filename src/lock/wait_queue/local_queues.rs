//! All local lines of a store handle, and what a keeper has to do with them.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, Semaphore},
    time::Instant,
};

use super::{
    local_queue::{LocalQueue, LocalQueueId, LocalQueueMap},
    queue_snapshot::QueueSnapshot,
    queue_task::{QueueTask, QueueTaskStart},
    waiter::{DepartedWaiters, WaitOutcome},
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    lock::{acquire_options::AcquireOptions, outcome::LockBusy},
    store::{Contenders, JoinListener, LockLease, LockMode, LossWatcher, Store},
};

/// Most waiters of all locks in one process: bounds the memory that a flood of requests can take.
const MAX_TOTAL_WAITERS: usize = 16 * 1024;

/// All local lines of a store handle.
pub(in crate::lock) struct LocalQueues {
    pub(super) queues: Mutex<LocalQueueMap>,
    pub(super) waiter_permits: Arc<Semaphore>,
    /// Set once the store tells of those who join.
    join_subscription: OnceLock<()>,
}

impl Default for LocalQueues {
    fn default() -> Self {
        let room = Arc::new(Semaphore::new(MAX_TOTAL_WAITERS));
        Self { queues: Mutex::default(), waiter_permits: room, join_subscription: OnceLock::new() }
    }
}

/// The first of a line, on whose behalf the store is asked.
pub(super) struct QueueHead {
    pub(super) options: AcquireOptions,
    /// When it came, in the server's time, as a sequence; 0 if that is not known.
    pub(super) sequence: u64,
    /// How long the last of the line will wait.
    pub(super) last_deadline: Instant,
    pub(super) waiter_count: usize,
}

impl LocalQueues {
    /// Subscribes to the processes that join the store's lines, once.
    pub(super) fn subscribe_to_joins(self: &Arc<Self>, store: &Store) {
        let hints = store.wakeups();
        self.join_subscription.get_or_init(|| {
            let me: Arc<Self> = Arc::clone(self);
            let me: Arc<dyn JoinListener> = me;
            hints.set_join_listener(Arc::downgrade(&me));
        });
    }

    /// What the first who still waits asked for, how long the last one will, and how many they are. If
    /// there is none the keeper has ended by this call: whoever comes next asks for itself.
    pub(super) fn head_or_deregister(&self, name: &LocalQueueId) -> Option<QueueHead> {
        let mut gone = DepartedWaiters::default();
        let mut lines = self.queues.lock();
        let line = lines.get_mut(name)?;
        let front = queue_head(line, &mut gone);
        if front.is_none() {
            line.acquirer = None;
            lines.remove_if_empty(name);
        }
        front
    }

    /// The same; but if there is none, the keeper is one still.
    pub(super) fn head(&self, name: &LocalQueueId) -> Option<QueueHead> {
        let mut gone = DepartedWaiters::default();
        self.queues.lock().get_mut(name).and_then(|line| queue_head(line, &mut gone))
    }

    /// Whether somebody waits for longer than this.
    pub(super) fn has_waiter_beyond(&self, name: &LocalQueueId, moment: Instant) -> bool {
        let mut lines = self.queues.lock();
        lines.get_mut(name).is_some_and(|line| line.waiters.iter().any(|one| one.deadline > moment))
    }

    pub(super) fn record_busy(&self, name: &LocalQueueId, busy: LockBusy) {
        if let Some(line) = self.queues.lock().get_mut(name) {
            line.last_busy = Some(busy);
        }
    }

    /// What the store has said with a grant to a reader. Readers are handed nothing, but by its time it is known when those
    /// of them came who wait still: they ask for the places they would have, had each asked when it came.
    pub(super) fn record_reader_snapshot(&self, name: &LocalQueueId, word: QueueSnapshot) {
        if let Some(line) = self.queues.lock().get_mut(name).filter(|_| name.1 == LockMode::Shared)
        {
            line.snapshot = Some(word);
        }
    }

    /// Whether one of these locks, asked for in this mode, comes by this process: it has the lock, or some of its own stand
    /// in line for it. The store would refuse all of them.
    pub(in crate::lock) fn is_any_occupied<'a>(
        &self,
        mut keys: impl Iterator<Item = &'a Key>,
        mode: LockMode,
    ) -> bool {
        let mut lines = self.queues.lock();
        // Whoever has it alone, or waits for that, keeps all others out.
        keys.any(|key| {
            let alone = lines.exclusive.get(key);
            alone.is_some_and(|line| line.is_occupied(LockMode::Exclusive))
                || (mode != LockMode::Exclusive
                    && lines
                        .get_mut(&(key.clone(), mode))
                        .is_some_and(|line| line.is_occupied(mode)))
        })
    }

    /// Nobody asks for the line any more. If somebody has to, who does is found here: an exclusive lock
    /// that this process has comes to those who wait when the guard ends.
    pub(super) fn deregister_queue_task(self: &Arc<Self>, name: &LocalQueueId) {
        self.deregister_acquirer_if(name, |_| true);
    }

    fn deregister_acquirer_if(
        self: &Arc<Self>,
        name: &LocalQueueId,
        mine: impl Fn(&LocalQueue) -> bool,
    ) {
        let served = {
            let mut lines = self.queues.lock();
            let Some(line) = lines.get_mut(name).filter(|line| mine(line)) else { return };
            line.acquirer = None;
            name.1 == LockMode::Exclusive && !line.handover_tokens.is_empty()
        };
        if !served {
            self.ensure_queue_task(name);
        }
    }

    /// All who wait are told that the store is away.
    pub(super) fn fail_waiters(&self, name: &LocalQueueId, kind: ErrorKind) {
        let waiters = {
            let mut lines = self.queues.lock();
            let Some(line) = lines.get_mut(name) else { return };
            line.acquirer = None;
            let waiters = std::mem::take(&mut line.waiters);
            lines.remove_if_empty(name);
            waiters
        };
        for mut waiter in waiters {
            let _ = waiter.resolve(WaitOutcome::Fault(Error::new(kind, "wait")));
        }
    }

    /// Somebody has to ask for those who wait, if there are any and nobody does.
    pub(super) fn ensure_queue_task(self: &Arc<Self>, name: &LocalQueueId) {
        let (store, bell) = {
            let mut gone = DepartedWaiters::default();
            let mut lines = self.queues.lock();
            let Some(line) = lines.get_mut(name) else { return };
            line.remove_departed_at_front(&mut gone);
            let Some(first) = line.waiters.front().filter(|_| line.acquirer.is_none()) else {
                return lines.remove_if_empty(name);
            };
            let store = first.store.clone();
            (store, line.register_queue_task())
        };
        QueueTask::spawn(self, &store, name, bell, QueueTaskStart::NewEntry);
    }

    /// The one who asks for all who came meanwhile has not come back. His future may not be polled, or his thread be at
    /// something else: a task asks for them from here on.
    pub(super) fn replace_leader(self: &Arc<Self>, name: &LocalQueueId, opening: &Arc<Notify>) {
        let (store, bell) = {
            let mut lines = self.queues.lock();
            let opens = |line: &&mut LocalQueue| line.has_leader && line.has_acquirer(opening);
            let Some(line) = lines.get_mut(name).filter(opens) else { return };
            let Some(store) = line.waiters.front().map(|first| first.store.clone()) else { return };
            (store, line.register_queue_task())
        };
        QueueTask::spawn(self, &store, name, bell, QueueTaskStart::NewEntry);
    }

    /// Who has asked for all who came meanwhile is done, and asks no more.
    pub(super) fn deregister_leader(self: &Arc<Self>, name: &LocalQueueId, opening: &Arc<Notify>) {
        self.deregister_acquirer_if(name, |line| line.has_acquirer(opening));
    }

    /// The lease is not to be handed on any more; those who wait behind it ask the store.
    pub(in crate::lock) fn stop_handovers(self: &Arc<Self>, lease: &LockLease) {
        let name = (lease.key.clone(), lease.terms.mode);
        if let Some(line) = self.queues.lock().get_mut(&name) {
            line.handover_tokens.retain(|turn| *turn != lease.token);
        }
        self.ensure_queue_task(&name);
    }

    #[cfg(test)]
    pub(in crate::lock) fn waiting(&self, name: &LocalQueueId) -> usize {
        self.queues.lock().get_mut(name).map_or(0, |line| line.waiters.len())
    }

    #[cfg(test)]
    pub(in crate::lock) fn is_locked(&self) -> bool {
        self.queues.is_locked()
    }

    #[cfg(test)]
    pub(in crate::lock) fn is_empty(&self) -> bool {
        let lines = self.queues.lock();
        lines.exclusive.is_empty() && lines.other_modes.is_empty()
    }
}

fn queue_head(line: &mut LocalQueue, gone: &mut DepartedWaiters) -> Option<QueueHead> {
    // Whoever asks on behalf of it hears of those that this process was told of before.
    line.join_buffer = None;
    line.remove_departed(gone);
    let last = line.waiters.iter().map(|waiter| waiter.deadline).max()?;
    let first = line.waiters.front()?;
    Some(QueueHead {
        options: first.options.clone(),
        sequence: line.snapshot.as_ref().map_or(0, |word| word.server_time(first.arrived_at)),
        last_deadline: last,
        waiter_count: line.waiters.len(),
    })
}

impl LossWatcher for LocalQueues {
    fn on_loss(self: Arc<Self>, lease: &LockLease) {
        // They need not wait for what the loser still does.
        self.stop_handovers(lease);
    }
}

impl JoinListener for LocalQueues {
    fn on_join(&self, key: &Key, who: Contenders) {
        let mut lines = self.queues.lock();
        let none = !lines.exclusive.contains_key(key);
        for line in lines.all_modes_mut(key) {
            line.record_join(who);
        }
        // Only exclusive locks are handed on.
        if none {
            lines.buffer_join(key, who);
        }
    }

    fn drain(&self) -> bool {
        let mut gone = DepartedWaiters::default();
        let mut lines = self.queues.lock();
        let LocalQueueMap { exclusive, other_modes: others, .. } = &mut *lines;
        let in_modes = others.values_mut().flatten().map(|(_, line)| &mut **line);
        let all = exclusive.values_mut().chain(in_modes);
        let mut settled = true;
        for line in all {
            line.remove_departed(&mut gone);
            // A keeper without waiters is about to hear that it is one.
            settled &= line.acquirer.is_none() || !line.waiters.is_empty();
        }
        exclusive.retain(|_, line| !line.is_empty());
        others.retain(|_, lines| {
            lines.retain(|(_, line)| !line.is_empty());
            !lines.is_empty()
        });
        settled
    }
}
