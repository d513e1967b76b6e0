//! All local queues of a store handle, and their operations for leaders and queue tasks.

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

/// Most waiters of all locks in one process; limits the memory that a flood of requests can take.
const MAX_TOTAL_WAITERS: usize = 16 * 1024;

pub(in crate::lock) struct LocalQueues {
    pub(super) queues: Mutex<LocalQueueMap>,
    pub(super) waiter_permits: Arc<Semaphore>,
    /// Set once the store's join messages are delivered to this listener.
    join_subscription: OnceLock<()>,
}

impl Default for LocalQueues {
    fn default() -> Self {
        let room = Arc::new(Semaphore::new(MAX_TOTAL_WAITERS));
        Self { queues: Mutex::default(), waiter_permits: room, join_subscription: OnceLock::new() }
    }
}

/// First waiter of a queue; the store is asked on its behalf.
pub(super) struct QueueHead {
    pub(super) options: AcquireOptions,
    /// Server time of its arrival, as a sequence number; 0 if unknown.
    pub(super) sequence: u64,
    /// Latest deadline of all waiters of the queue.
    pub(super) last_deadline: Instant,
    pub(super) waiter_count: usize,
}

impl LocalQueues {
    /// Subscribes once to the announcements of processes and jobs that join the store's queues.
    pub(super) fn subscribe_to_joins(self: &Arc<Self>, store: &Store) {
        let hints = store.wakeups();
        self.join_subscription.get_or_init(|| {
            let me: Arc<Self> = Arc::clone(self);
            let me: Arc<dyn JoinListener> = me;
            hints.set_join_listener(Arc::downgrade(&me));
        });
    }

    /// Returns the head of the queue. If no waiter is left, deregisters the queue task in the same
    /// critical section, so that the next newcomer asks for itself.
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

    /// Like `head_or_deregister`, but keeps the queue task registered when the queue is empty.
    pub(super) fn head(&self, name: &LocalQueueId) -> Option<QueueHead> {
        let mut gone = DepartedWaiters::default();
        self.queues.lock().get_mut(name).and_then(|line| queue_head(line, &mut gone))
    }

    /// Returns true if a waiter has a deadline after `moment`.
    pub(super) fn has_waiter_beyond(&self, name: &LocalQueueId, moment: Instant) -> bool {
        let mut lines = self.queues.lock();
        lines.get_mut(name).is_some_and(|line| line.waiters.iter().any(|one| one.deadline > moment))
    }

    pub(super) fn record_busy(&self, name: &LocalQueueId, busy: LockBusy) {
        if let Some(line) = self.queues.lock().get_mut(name) {
            line.last_busy = Some(busy);
        }
    }

    /// Stores the snapshot that came with the grant of a shared lock.
    ///
    /// Shared locks are not handed over, but the snapshot maps the arrival of the remaining waiters
    /// to server time. They ask for the positions that they would have if each had asked on
    /// arrival.
    pub(super) fn record_reader_snapshot(&self, name: &LocalQueueId, word: QueueSnapshot) {
        if let Some(line) = self.queues.lock().get_mut(name).filter(|_| name.1 == LockMode::Shared)
        {
            line.snapshot = Some(word);
        }
    }

    /// Returns true if this process holds one of these locks, or has waiters for it, so that the
    /// store would refuse all of them in this mode.
    pub(in crate::lock) fn is_any_occupied<'a>(
        &self,
        mut keys: impl Iterator<Item = &'a Key>,
        mode: LockMode,
    ) -> bool {
        let mut lines = self.queues.lock();
        // An exclusive holder or waiter excludes all other modes.
        keys.any(|key| {
            let alone = lines.exclusive.get(key);
            alone.is_some_and(|line| line.is_occupied(LockMode::Exclusive))
                || (mode != LockMode::Exclusive
                    && lines
                        .get_mut(&(key.clone(), mode))
                        .is_some_and(|line| line.is_occupied(mode)))
        })
    }

    /// Deregisters the queue task. Starts a new one if waiters are left without an acquirer, except
    /// if a guard of this process will hand its exclusive lock over to them.
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

    /// Ends the queue and sends its waiters an error of this kind.
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

    /// Starts a queue task if there are waiters and no acquirer.
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

    /// Replaces a leader that has not returned: its future may not be polled, or its thread may be
    /// blocked. A queue task asks for the waiters from then on.
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

    /// Deregisters a leader after its acquire has ended. Starts a queue task if waiters are left.
    pub(super) fn deregister_leader(self: &Arc<Self>, name: &LocalQueueId, opening: &Arc<Notify>) {
        self.deregister_acquirer_if(name, |line| line.has_acquirer(opening));
    }

    /// Stops handing the lease over; its waiters ask the store.
    pub(in crate::lock) fn stop_handovers(self: &Arc<Self>, lease: &LockLease) {
        let name = (lease.key.clone(), lease.terms.mode);
        if let Some(line) = self.queues.lock().get_mut(&name) {
            line.handover_tokens.retain(|turn| *turn != lease.token);
        }
        self.ensure_queue_task(&name);
    }

    #[cfg(test)]
    pub(in crate::lock) fn waiting_tasks(&self, name: &LocalQueueId) -> usize {
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
    // The acquirer's next answer contains the joins announced before it asks.
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
        // The waiters need not wait until the loser stops its work.
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
        // Only exclusive locks are handed over.
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
            // A queue task without waiters is about to find that out and stop.
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
