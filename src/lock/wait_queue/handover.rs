//! Delivery of grants to waiters, and handover of a lock by a guard that ends.

use std::sync::Arc;

use tokio::sync::Notify;

use super::{
    local_queue::LocalQueueId,
    local_queues::LocalQueues,
    queue_snapshot::{FenceRange, QueueSnapshot},
    waiter::{DepartedWaiters, WaitOutcome, Waiter},
};
use crate::{
    lock::{acquire_options::AcquireOptions, guard::LockGuard, shared_grant::HandoverContext},
    store::{LockMode, LossWatcher, OwnedHold},
};

/// Next step for a lease after its guard has ended.
pub(in crate::lock) enum HandoverOutcome {
    /// The next waiter of this process has it.
    HandedOver,
    Release(OwnedHold),
    /// The hold is released, and a queue task with this notify reacquires for the next waiter in
    /// the same call.
    ReleaseAndReacquire(OwnedHold, Arc<Notify>),
}

impl LocalQueues {
    /// Creates the guard of a grant. Unless the lock is shared, registers its lease for handovers:
    /// with an exclusive one, newcomers of this process queue behind it.
    pub(in crate::lock) fn register_grant(
        self: &Arc<Self>,
        hold: OwnedHold,
        asking: &AcquireOptions,
        word: QueueSnapshot,
    ) -> LockGuard {
        let (lease, fence) = (Arc::clone(hold.lease()), hold.state().fence);
        if lease.terms.mode == LockMode::Shared {
            return LockGuard::new(hold, None);
        }
        let me: Arc<Self> = Arc::clone(self);
        let watcher: Arc<dyn LossWatcher> = me;
        hold.set_loss_watcher(Arc::downgrade(&watcher));
        let name = (lease.key.clone(), lease.terms.mode);
        let mut lines = self.queues.lock();
        let word = lines.apply_buffered_joins(&name, word);
        let line = lines.get_or_create(&name);
        line.handover_tokens.push(lease.token.clone());
        line.snapshot = Some(word);
        line.prefetcher.on_grant(asking.effective_handover_limits());
        drop(lines);
        if lease.is_closed() {
            // The lease was lost before the guard existed, so no waiter may stay behind it.
            self.stop_handovers(&lease);
        }
        let fences = FenceRange::following(fence, asking.effective_handover_limits());
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
        name: &LocalQueueId,
        asking: &AcquireOptions,
        mut guard: LockGuard,
    ) {
        loop {
            let (next, question) = {
                let mut gone = DepartedWaiters::default();
                let mut lines = self.queues.lock();
                let Some(line) = lines.get_mut(name) else { return };
                line.remove_departed_at_front(&mut gone);
                let fits = |waiter: &Waiter| waiter.options.has_same_grant_terms(asking);
                let next = match line.waiters.front().is_some_and(fits) {
                    true => line.waiters.pop_front(),
                    false => None,
                };
                (next, line.plan_prefetch())
            };
            let Some(mut waiter) = next else { return };
            match waiter.resolve(WaitOutcome::Granted(guard)) {
                Ok(()) => return self.schedule_prefetch(&waiter.store, name, question),
                Err(WaitOutcome::Granted(back)) => guard = back,
                Err(_) => return,
            }
        }
    }

    /// Hands the lease of a guard that has ended over to the next waiter, or returns how to release
    /// it.
    pub(in crate::lock) fn hand_over_or_release(
        self: &Arc<Self>,
        mut hold: OwnedHold,
        mut turn: HandoverContext,
    ) -> HandoverOutcome {
        let lease = Arc::clone(hold.lease());
        let name = (lease.key.clone(), lease.terms.mode);
        loop {
            let ((mut waiter, fence), question) = {
                let mut gone = DepartedWaiters::default();
                let mut lines = self.queues.lock();
                let Some(line) = lines.get_mut(&name) else {
                    return HandoverOutcome::Release(hold);
                };
                line.remove_departed_at_front(&mut gone);
                match line.next_handover(&lease, &mut turn.fence_range) {
                    Some(next) => (next, line.plan_prefetch()),
                    None => {
                        let bell = line.end_handovers(&lease.token);
                        lines.remove_if_empty(&name);
                        return match bell {
                            Some(bell) => HandoverOutcome::ReleaseAndReacquire(hold, bell),
                            None => HandoverOutcome::Release(hold),
                        };
                    }
                }
            };
            let guard = match hold.hand_over(fence) {
                Ok(next) => LockGuard::new(next, Some(turn)),
                // The lease was lost or is about to expire. The waiter goes back to the front, and
                // the waiters ask the store.
                Err(lost) => {
                    self.requeue_front(&name, waiter);
                    self.stop_handovers(&lease);
                    return HandoverOutcome::Release(lost);
                }
            };
            match waiter.resolve(WaitOutcome::Granted(guard)) {
                Ok(()) => {
                    self.schedule_prefetch(&waiter.store, &name, question);
                    return HandoverOutcome::HandedOver;
                }
                Err(WaitOutcome::Granted(back)) => match back.into_parts() {
                    Ok((back, Some(again))) => (hold, turn) = (back, again),
                    Ok((back, None)) => return HandoverOutcome::Release(back),
                    // The guard reached no waiter, so it is not shared. If it were, its last owner
                    // would end it.
                    Err(_) => return HandoverOutcome::HandedOver,
                },
                Err(_) => return HandoverOutcome::HandedOver,
            }
        }
    }

    fn requeue_front(self: &Arc<Self>, name: &LocalQueueId, waiter: Waiter) {
        self.queues.lock().get_or_create(name).waiters.push_front(waiter);
        self.ensure_queue_task(name);
    }
}
