//! All local queues of a store handle, and their operations for leaders and queue tasks.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, Semaphore},
    time::Instant,
};

use super::{
    local_queue::LocalQueue,
    local_queue_map::{LocalQueueId, LocalQueueMap},
    queue_snapshot::QueueSnapshot,
    queue_task::{QueueTask, QueueTaskStart},
    queued_waiter::{RemovedWaitersToNotify, WaitOutcome},
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    lock::{acquire_options::AcquireOptions, lock_outcome::LockBusy},
    store::{Contenders, JoinListener, LockLease, LockMode, LossWatcher, Store, WaitReport},
};

/// Most waiters of all locks in one process; limits the memory that a flood of requests can take.
pub(super) const MAX_TOTAL_WAITERS: usize = 16 * 1024;

pub(in crate::lock) struct LocalQueues {
    pub(super) queues: Mutex<LocalQueueMap>,
    pub(super) waiter_permits: Arc<Semaphore>,
    /// Set once the store's join messages are delivered to this listener.
    join_subscription: OnceLock<()>,
}

impl Default for LocalQueues {
    fn default() -> Self {
        let waiter_permits = Arc::new(Semaphore::new(MAX_TOTAL_WAITERS));
        Self { queues: Mutex::default(), waiter_permits, join_subscription: OnceLock::new() }
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
        let wakeups = store.wakeups();
        self.join_subscription.get_or_init(|| {
            let listener: Arc<Self> = Arc::clone(self);
            let listener: Arc<dyn JoinListener> = listener;
            wakeups.set_join_listener(Arc::downgrade(&listener));
        });
    }

    /// Returns the head of the queue. If no waiter is left, deregisters the queue task in the same
    /// critical section, so that the next newcomer asks for itself.
    pub(super) fn head_or_deregister(&self, queue_id: &LocalQueueId) -> Option<QueueHead> {
        let mut departed = RemovedWaitersToNotify::default();
        let mut queues = self.queues.lock();
        let queue = queues.get_mut(queue_id)?;
        let head = queue_head(queue, &mut departed);
        if head.is_none() {
            queue.acquirer = None;
            queues.remove_if_empty(queue_id);
        }
        head
    }

    /// Like `head_or_deregister`, but keeps the queue task registered when the queue is empty.
    pub(super) fn head(&self, queue_id: &LocalQueueId) -> Option<QueueHead> {
        let mut departed = RemovedWaitersToNotify::default();
        self.queues.lock().get_mut(queue_id).and_then(|queue| queue_head(queue, &mut departed))
    }

    pub(super) fn record_busy(&self, queue_id: &LocalQueueId, busy: LockBusy) {
        if let Some(queue) = self.queues.lock().get_mut(queue_id) {
            queue.last_busy = Some(busy);
        }
    }

    /// Stores the snapshot that came with the grant of a shared lock.
    ///
    /// Shared locks are not handed over, but the snapshot maps the arrival of the remaining waiters
    /// to server time. They ask for the positions that they would have if each had asked on
    /// arrival.
    pub(super) fn record_reader_snapshot(&self, queue_id: &LocalQueueId, snapshot: QueueSnapshot) {
        if let Some(queue) =
            self.queues.lock().get_mut(queue_id).filter(|_| queue_id.mode == LockMode::Shared)
        {
            queue.snapshot = Some(snapshot);
        }
    }

    /// Returns true if this process holds one of these locks, or has waiters for it, so that the
    /// store would refuse all of them in this mode.
    pub(in crate::lock) fn is_any_occupied<'a>(
        &self,
        mut keys: impl Iterator<Item = &'a Key>,
        mode: LockMode,
    ) -> bool {
        let mut queues = self.queues.lock();
        // An exclusive holder or waiter excludes all other modes.
        keys.any(|key| {
            let exclusive_queue = queues.exclusive.get(key);
            exclusive_queue.is_some_and(|queue| queue.is_occupied(LockMode::Exclusive))
                || (mode != LockMode::Exclusive
                    && queues
                        .get_mut(&LocalQueueId { key: key.clone(), mode })
                        .is_some_and(|queue| queue.is_occupied(mode)))
        })
    }

    /// Deregisters the queue task. Starts a new one if waiters are left without an acquirer, except
    /// if a guard of this process will hand its exclusive lock over to them.
    pub(super) fn deregister_queue_task(self: &Arc<Self>, queue_id: &LocalQueueId) {
        self.deregister_acquirer_if(queue_id, |_| true);
    }

    fn deregister_acquirer_if(
        self: &Arc<Self>,
        queue_id: &LocalQueueId,
        is_own_acquirer: impl Fn(&LocalQueue) -> bool,
    ) {
        let is_served_by_handover = {
            let mut queues = self.queues.lock();
            let Some(queue) = queues.get_mut(queue_id).filter(|queue| is_own_acquirer(queue))
            else {
                return;
            };
            queue.acquirer = None;
            queue_id.mode == LockMode::Exclusive && !queue.handover_tokens.is_empty()
        };
        if !is_served_by_handover {
            self.ensure_queue_task(queue_id);
        }
    }

    /// Ends the queue and sends its waiters an error of this kind.
    pub(super) fn fail_waiters(&self, queue_id: &LocalQueueId, kind: ErrorKind) {
        let waiters = {
            let mut queues = self.queues.lock();
            let Some(queue) = queues.get_mut(queue_id) else { return };
            queue.acquirer = None;
            let waiters = std::mem::take(&mut queue.waiters);
            queues.remove_if_empty(queue_id);
            waiters
        };
        for mut waiter in waiters {
            let _ = waiter.resolve(WaitOutcome::Fault(Error::new(kind, "wait")));
        }
    }

    /// Starts a queue task if there are waiters and no acquirer.
    pub(super) fn ensure_queue_task(self: &Arc<Self>, queue_id: &LocalQueueId) {
        let (store, notify) = {
            let mut departed = RemovedWaitersToNotify::default();
            let mut queues = self.queues.lock();
            let Some(queue) = queues.get_mut(queue_id) else { return };
            queue.remove_departed_at_front(&mut departed);
            let Some(first_waiter) = queue.waiters.front().filter(|_| queue.acquirer.is_none())
            else {
                return queues.remove_if_empty(queue_id);
            };
            let store = first_waiter.store.clone();
            (store, queue.register_queue_task())
        };
        QueueTask::spawn(self, &store, queue_id, notify, QueueTaskStart::NewEntry);
    }

    /// Replaces a leader that has not returned: its future may not be polled, or its thread may be
    /// blocked. A queue task asks for the waiters from then on.
    pub(super) fn replace_leader(
        self: &Arc<Self>,
        queue_id: &LocalQueueId,
        leader_notify: &Arc<Notify>,
    ) {
        let (store, notify) = {
            let mut queues = self.queues.lock();
            let has_same_leader =
                |queue: &&mut LocalQueue| queue.has_leader && queue.has_acquirer(leader_notify);
            let Some(queue) = queues.get_mut(queue_id).filter(has_same_leader) else { return };
            let Some(store) = queue.waiters.front().map(|first_waiter| first_waiter.store.clone())
            else {
                return;
            };
            (store, queue.register_queue_task())
        };
        QueueTask::spawn(self, &store, queue_id, notify, QueueTaskStart::NewEntry);
    }

    /// Deregisters a leader after its acquire has ended. Starts a queue task if waiters are left.
    pub(super) fn deregister_leader(
        self: &Arc<Self>,
        queue_id: &LocalQueueId,
        leader_notify: &Arc<Notify>,
    ) {
        self.deregister_acquirer_if(queue_id, |queue| queue.has_acquirer(leader_notify));
    }

    /// Stops handing the lease over; its waiters ask the store.
    pub(in crate::lock) fn stop_handovers(self: &Arc<Self>, lease: &LockLease) {
        let queue_id = LocalQueueId::of_lease(lease);
        if let Some(queue) = self.queues.lock().get_mut(&queue_id) {
            queue.handover_tokens.retain(|token| *token != lease.token);
        }
        self.ensure_queue_task(&queue_id);
    }

    #[cfg(test)]
    pub(in crate::lock) fn waiting_tasks(&self, queue_id: &LocalQueueId) -> usize {
        self.queues.lock().get_mut(queue_id).map_or(0, |queue| queue.waiters.len())
    }

    #[cfg(test)]
    pub(in crate::lock) fn is_locked(&self) -> bool {
        self.queues.is_locked()
    }

    #[cfg(test)]
    pub(in crate::lock) fn is_empty(&self) -> bool {
        let queues = self.queues.lock();
        queues.exclusive.is_empty() && queues.other_modes.is_empty()
    }
}

fn queue_head(queue: &mut LocalQueue, departed: &mut RemovedWaitersToNotify) -> Option<QueueHead> {
    // The acquirer's next answer contains the joins announced before it asks.
    queue.announced_joins = None;
    queue.remove_departed(departed);
    let last_deadline = queue.waiters.iter().map(|waiter| waiter.deadline).max()?;
    let first_waiter = queue.waiters.front()?;
    Some(QueueHead {
        options: first_waiter.options.clone(),
        sequence: queue
            .snapshot
            .as_ref()
            .map_or(0, |snapshot| snapshot.server_time(first_waiter.arrived_at)),
        last_deadline,
        waiter_count: queue.waiters.len(),
    })
}

impl LossWatcher for LocalQueues {
    fn on_loss(self: Arc<Self>, lease: &LockLease) {
        // The waiters need not wait until the loser stops its work.
        self.stop_handovers(lease);
    }
}

impl JoinListener for LocalQueues {
    fn on_join(&self, key: &Key, joined: Contenders) {
        let mut queues = self.queues.lock();
        let has_no_exclusive_queue = !queues.exclusive.contains_key(key);
        for queue in queues.all_modes_mut(key) {
            queue.record_join(joined);
        }
        // Only exclusive locks are handed over.
        if has_no_exclusive_queue {
            queues.add_unqueued_join(key, joined);
        }
    }

    fn longest_waits(&self, lock: Option<&Key>) -> Vec<WaitReport> {
        WaitReport::longest(self.waits(lock))
    }

    fn drain(&self) -> bool {
        let mut departed = RemovedWaitersToNotify::default();
        let mut queues = self.queues.lock();
        let LocalQueueMap { exclusive, other_modes, .. } = &mut *queues;
        let non_exclusive = other_modes.values_mut().flatten().map(|(_, queue)| &mut **queue);
        let all_queues = exclusive.values_mut().chain(non_exclusive);
        let mut is_settled = true;
        for queue in all_queues {
            queue.remove_departed(&mut departed);
            // A queue task without waiters is about to find that out and stop.
            is_settled &= queue.acquirer.is_none() || !queue.waiters.is_empty();
        }
        exclusive.retain(|_, queue| !queue.is_empty());
        other_modes.retain(|_, queues| {
            queues.retain(|(_, queue)| !queue.is_empty());
            !queues.is_empty()
        });
        is_settled
    }
}
