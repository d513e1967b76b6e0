//! Delivery of grants: the guard of a new grant, its registration for handovers, and its delivery
//! to the first waiter.

use std::sync::Arc;

use super::{
    local_queue_map::LocalQueueId,
    local_queues::LocalQueues,
    queue_snapshot::{FenceRange, QueueSnapshot},
    queued_waiter::{QueuedWaiter, RemovedWaitersToNotify, WaitOutcome},
};
use crate::{
    lock::{acquire_options::AcquireOptions, lock_guard::LockGuard, shared_grant::HandoverContext},
    store::{LockMode, LossWatcher, OwnedHold},
};

impl LocalQueues {
    /// Creates the guard of a grant. Unless the lock is shared, registers its lease for handovers:
    /// with an exclusive one, newcomers of this process queue behind it.
    pub(in crate::lock) fn register_grant(
        self: &Arc<Self>,
        hold: OwnedHold,
        options: &AcquireOptions,
        snapshot: QueueSnapshot,
    ) -> LockGuard {
        let (lease, fence) = (Arc::clone(hold.lease()), hold.state().fence);
        if lease.terms.mode == LockMode::Shared {
            return LockGuard::new(hold, None);
        }
        let watcher: Arc<Self> = Arc::clone(self);
        let watcher: Arc<dyn LossWatcher> = watcher;
        hold.set_loss_watcher(Arc::downgrade(&watcher));
        let queue_id = LocalQueueId::of_lease(&lease);
        let mut queues = self.queues.lock();
        let snapshot = queues.apply_announced_joins(&queue_id, snapshot);
        let queue = queues.get_or_create(&queue_id);
        queue.handover_tokens.push(lease.token.clone());
        queue.snapshot = Some(snapshot);
        queue.prefetcher.on_grant(options.effective_handover_limits());
        drop(queues);
        if lease.is_closed() {
            // The lease was lost before the guard existed, so no waiter may stay behind it.
            self.stop_handovers(&lease);
        }
        let fences = FenceRange::following(fence, options.effective_handover_limits());
        LockGuard::new(
            hold,
            Some(HandoverContext { local_queues: Arc::clone(self), fence_range: fences }),
        )
    }

    /// Delivers a queue task's grant to the first waiter, if that has the same grant terms.
    ///
    /// If there is none, the guard is dropped, which hands the lock over or releases it. An
    /// exclusive lock needs no queue task then.
    pub(super) fn deliver_grant(
        self: &Arc<Self>,
        queue_id: &LocalQueueId,
        options: &AcquireOptions,
        mut guard: LockGuard,
    ) {
        loop {
            let (next_waiter, prefetch) = {
                let mut departed = RemovedWaitersToNotify::default();
                let mut queues = self.queues.lock();
                let Some(queue) = queues.get_mut(queue_id) else { return };
                queue.remove_departed_at_front(&mut departed);
                let has_same_terms =
                    |waiter: &QueuedWaiter| waiter.options.has_same_grant_terms(options);
                let next_waiter = match queue.waiters.front().is_some_and(has_same_terms) {
                    true => queue.waiters.pop_front(),
                    false => None,
                };
                (next_waiter, queue.plan_prefetch())
            };
            let Some(mut waiter) = next_waiter else { return };
            match waiter.resolve(WaitOutcome::Granted(guard)) {
                Ok(()) => return self.schedule_prefetch(&waiter.store, queue_id, prefetch),
                Err(WaitOutcome::Granted(returned_guard)) => guard = returned_guard,
                Err(_) => return,
            }
        }
    }
}
