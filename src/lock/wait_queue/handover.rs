//! Turns: how a grant is given to one who waits, and how a guard that ends passes it on.

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
    store::{LockHold, LockMode, LossWatcher},
};

/// What becomes of a lease when its guard has ended.
pub(in crate::lock) enum HandoverOutcome {
    /// The next of this process has it.
    HandedOver,
    Release(LockHold),
    /// It is given back, and a keeper with this bell asks for the next in the same call.
    ReleaseAndReacquire(LockHold, Arc<Notify>),
}

impl LocalQueues {
    /// A grant of the store: from now on newcomers of this process stand behind it.
    pub(in crate::lock) fn register_grant(
        self: &Arc<Self>,
        hold: LockHold,
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
            // Lost before anybody was told of it: nobody stands behind it.
            self.stop_handovers(&lease);
        }
        let fences = FenceRange::following(fence, asking.effective_handover_limits());
        LockGuard::new(
            hold,
            Some(HandoverContext { local_queues: Arc::clone(self), fence_range: fences }),
        )
    }

    /// The keeper's grant goes to the first of the line, who asked for the same; nobody there: it is
    /// dropped, and so passes on or is given back. An exclusive lock needs no keeper then.
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

    /// A guard has ended, whose lease can be handed on.
    pub(in crate::lock) fn hand_over_or_release(
        self: &Arc<Self>,
        mut hold: LockHold,
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
                // Lost meanwhile, or at its end: this waiter is out of the line, and those behind it need not wait for it.
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
                    // It has never been anybody's, so nobody shares it; whoever does will end it.
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
