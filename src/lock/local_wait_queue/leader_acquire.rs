//! Acquire by the leader of a local queue: the first caller asks the store in its own future, for
//! later arrivals too.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::{sync::Notify, time::Instant};

use super::{
    acquire_or_wait::NewcomerStep,
    local_queue_map::LocalQueueId,
    local_queues::{LocalQueues, QueueHead},
    queue_entry::{AcquireOutcome, QueueEntry},
    queue_task::{QueueTask, QueueTaskStart},
    queued_waiter::{RemovedWaitersToNotify, WaitOutcome, assumed_busy},
};
use crate::{
    lock::{acquire_options::AcquireOptions, lock_outcome::LockBusy},
    store::Store,
};

/// First caller of a free queue: it asks the store in its own future, and later arrivals queue
/// behind it.
pub(super) struct LeaderAcquire {
    pub(super) local_queues: Arc<LocalQueues>,
    pub(super) store: Store,
    pub(super) queue_id: LocalQueueId,
    pub(super) leader_notify: Arc<Notify>,
    /// True once a queue task has replaced the leader as the acquirer.
    pub(super) is_finished: bool,
}

impl LeaderAcquire {
    pub(super) async fn acquire_as_leader(
        mut self,
        options: &AcquireOptions,
        deadline: Instant,
    ) -> NewcomerStep {
        let entry = QueueEntry::new(&self.store, &self.queue_id);
        let head = QueueHead {
            options: options.clone(),
            sequence: 0,
            last_deadline: deadline,
            waiter_count: 1,
        };
        // A caller that may not wait takes no entry, since it would have to leave the queue at
        // once.
        let may_wait = options.max_waiters > 0;
        let outcome = if may_wait {
            entry.acquire_or_enqueue(&head).await
        } else {
            entry.try_acquire(&head).await
        };
        match outcome {
            AcquireOutcome::Granted { hold, snapshot, .. } => {
                self.local_queues.record_reader_snapshot(&self.queue_id, snapshot);
                let guard = self.local_queues.register_grant(hold, options, snapshot);
                NewcomerStep::Done(WaitOutcome::Granted(guard))
            }
            AcquireOutcome::Busy(entry, busy) => {
                self.join_queue_front(entry, busy, options, deadline)
            }
            // The waiter stays, and a queue task asks again; it gives up after `OUTAGE_TOLERANCE`.
            AcquireOutcome::Overdue(entry, _) if may_wait => {
                let busy = LockBusy {
                    lease_remaining: Duration::ZERO,
                    ..assumed_busy(options.terms.lease)
                };
                self.join_queue_front(entry, busy, options, deadline)
            }
            AcquireOutcome::Overdue(_, error) | AcquireOutcome::Failed(_, error) => {
                NewcomerStep::Done(WaitOutcome::Fault(error))
            }
        }
    }

    /// Joins the local queue at the front, and passes the entry to a queue task if there are
    /// waiters. Waiters that arrived during the call may have left no room for this one.
    fn join_queue_front(
        &mut self,
        entry: QueueEntry,
        busy: LockBusy,
        options: &AcquireOptions,
        deadline: Instant,
    ) -> NewcomerStep {
        let may_wait = options.max_waiters > 0;
        let delay = if may_wait { busy.lease_remaining } else { Duration::ZERO };
        let (step, continues_as_queue_task) = {
            let mut departed = RemovedWaitersToNotify::default();
            let mut queues = self.local_queues.queues.lock();
            let queue = queues.get_or_create(&self.queue_id);
            queue.last_busy = Some(busy);
            let target = (&self.store, &self.queue_id);
            // Another acquirer may be registered by now, or none.
            let is_acquirer = queue.promote_leader(&self.leader_notify, self.queue_id.mode);
            let step = self.local_queues.join_queue(
                &mut queues,
                target,
                options,
                deadline,
                VecDeque::push_front,
                &mut departed,
            );
            (step, is_acquirer && !queues.get_or_create(&self.queue_id).waiters.is_empty())
        };
        if continues_as_queue_task {
            self.is_finished = true;
            let (store, notify) = (&self.store, Arc::clone(&self.leader_notify));
            QueueTask::spawn(
                &self.local_queues,
                store,
                &self.queue_id,
                notify,
                QueueTaskStart::ExistingEntry { entry, delay },
            );
        } else if !may_wait {
            entry.attempt.mark_refused();
        }
        step
    }
}

/// Deregisters the leader after its answer or when its future is dropped, so that later arrivals
/// proceed.
impl Drop for LeaderAcquire {
    fn drop(&mut self) {
        if !self.is_finished {
            self.local_queues.deregister_leader(&self.queue_id, &self.leader_notify);
        }
    }
}
