//! Handover of a lock to the next waiter of this process when its guard ends, or else its release.

use std::sync::Arc;

use tokio::sync::Notify;

use super::{
    local_queue_map::LocalQueueId,
    local_queues::LocalQueues,
    queued_waiter::{QueuedWaiter, RemovedWaitersToNotify, WaitOutcome},
};
use crate::{
    lock::{lock_guard::LockGuard, shared_grant::HandoverContext},
    store::OwnedHold,
};

/// Next step for a lease after its guard has ended.
pub(in crate::lock) enum HandoverOutcome {
    /// The next waiter of this process has it.
    HandedOver,
    Release(OwnedHold),
    /// The hold is released, and a queue task with `task_notify` reacquires for the next waiter in
    /// the same call.
    ReleaseAndReacquire {
        hold: OwnedHold,
        task_notify: Arc<Notify>,
    },
}

impl LocalQueues {
    /// Hands the lease of a guard that has ended over to the next waiter, or returns how to release
    /// it.
    pub(in crate::lock) fn hand_over_or_release(
        self: &Arc<Self>,
        mut hold: OwnedHold,
        mut handover: HandoverContext,
    ) -> HandoverOutcome {
        let lease = Arc::clone(hold.lease());
        let queue_id = LocalQueueId::of_lease(&lease);
        loop {
            let ((mut waiter, fence), prefetch) = {
                let mut departed = RemovedWaitersToNotify::default();
                let mut queues = self.queues.lock();
                let Some(queue) = queues.get_mut(&queue_id) else {
                    return HandoverOutcome::Release(hold);
                };
                queue.remove_departed_at_front(&mut departed);
                match queue.next_handover(&lease, &mut handover.fence_range) {
                    Some(waiter_and_fence) => (waiter_and_fence, queue.plan_prefetch()),
                    None => {
                        let task_notify = queue.end_handovers(&lease.token);
                        queues.remove_if_empty(&queue_id);
                        return match task_notify {
                            Some(task_notify) => {
                                HandoverOutcome::ReleaseAndReacquire { hold, task_notify }
                            }
                            None => HandoverOutcome::Release(hold),
                        };
                    }
                }
            };
            let guard = match hold.hand_over(fence) {
                Ok(next_hold) => LockGuard::new(next_hold, Some(handover)),
                // The lease was lost or is about to expire. The waiter goes back to the front, and
                // the waiters ask the store.
                Err(closed_hold) => {
                    self.requeue_front(&queue_id, waiter);
                    self.stop_handovers(&lease);
                    return HandoverOutcome::Release(closed_hold);
                }
            };
            match waiter.resolve(WaitOutcome::Granted(guard)) {
                Ok(()) => {
                    self.schedule_prefetch(&waiter.store, &queue_id, prefetch);
                    return HandoverOutcome::HandedOver;
                }
                Err(WaitOutcome::Granted(returned_guard)) => match returned_guard.into_parts() {
                    Ok((returned_hold, Some(returned_handover))) => {
                        (hold, handover) = (returned_hold, returned_handover);
                    }
                    Ok((returned_hold, None)) => return HandoverOutcome::Release(returned_hold),
                    // The guard reached no waiter, so it is not shared. If it were, its last owner
                    // would end it.
                    Err(_) => return HandoverOutcome::HandedOver,
                },
                Err(_) => return HandoverOutcome::HandedOver,
            }
        }
    }

    fn requeue_front(self: &Arc<Self>, queue_id: &LocalQueueId, waiter: QueuedWaiter) {
        self.queues.lock().get_or_create(queue_id).waiters.push_front(waiter);
        self.ensure_queue_task(queue_id);
    }
}
