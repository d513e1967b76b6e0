//! Acquire through a local queue: a newcomer waits behind the other waiters of this process, or
//! becomes the leader of a free queue ([`leader_acquire`](super::leader_acquire)).

use std::{collections::VecDeque, sync::Arc};

use tokio::{
    sync::{Notify, OwnedSemaphorePermit, oneshot},
    time::{Instant, error::Elapsed, timeout_at},
};

use super::{
    leader_acquire::LeaderAcquire,
    local_queue_map::{LocalQueueId, LocalQueueMap},
    local_queues::LocalQueues,
    queued_waiter::{QueuedWaiter, RemovedWaitersToNotify, WaitOutcome, assumed_busy},
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    lock::acquire_options::AcquireOptions,
    store::{OFFER_TIMEOUT, Store},
};

/// Next step of a newcomer.
pub(super) enum NewcomerStep {
    /// Ask the store, also for those that arrive during the call.
    Lead(LeaderAcquire),
    Wait(WaiterHandle),
    Done(WaitOutcome),
}

/// Position in a local queue, owned by the future of the waiter.
pub(super) struct WaiterHandle {
    outcome_receiver: oneshot::Receiver<WaitOutcome>,
    /// The acquirer, if it is a leader that asks in its own future.
    leader_notify: Option<Arc<Notify>>,
    local_queues: Arc<LocalQueues>,
    queue_id: LocalQueueId,
    /// True once the waiter has the lock, or if its departure needs no notification.
    is_served: bool,
    _permit: OwnedSemaphorePermit,
}

/// Notifies the acquirer when a waiter leaves without the lock, so that no entry is kept in vain.
/// The acquirer may have changed since the waiter arrived.
impl Drop for WaiterHandle {
    fn drop(&mut self) {
        // Before the notification: its receiver must not count this waiter any more.
        self.outcome_receiver.close();
        if !self.is_served {
            let acquirer = self
                .local_queues
                .queues
                .lock()
                .get_mut(&self.queue_id)
                .and_then(|queue| queue.acquirer.clone());
            if let Some(notify) = acquirer {
                notify.notify_one();
            }
        }
    }
}

impl LocalQueues {
    /// Acquires the lock, or waits in the local queue. Dropping the future leaves the queue.
    pub(in crate::lock) async fn acquire(
        self: &Arc<Self>,
        store: &Store,
        key: &Key,
        options: &AcquireOptions,
        deadline: Instant,
    ) -> WaitOutcome {
        let queue_id = LocalQueueId { key: key.clone(), mode: options.terms.mode };
        loop {
            let handle = match self.enter_queue(store, &queue_id, options, deadline) {
                NewcomerStep::Done(outcome) => return outcome,
                NewcomerStep::Wait(handle) => handle,
                NewcomerStep::Lead(leader) => match leader
                    .acquire_as_leader(options, deadline)
                    .await
                {
                    NewcomerStep::Done(outcome) => return outcome,
                    NewcomerStep::Wait(handle) => handle,
                    #[expect(
                        clippy::unreachable,
                        reason = "a leader that has asked becomes a waiter"
                    )]
                    NewcomerStep::Lead(_) => unreachable!("the leader has already asked the store"),
                },
            };
            match self.await_lock(handle, &queue_id, options, deadline).await {
                // The grant ended before this future was polled, so it is not returned. The wait
                // continues until the deadline.
                WaitOutcome::Granted(guard) if !guard.mark_received() => {}
                outcome => return outcome,
            }
            if Instant::now() >= deadline {
                return WaitOutcome::TimedOut(assumed_busy(options.terms.lease));
            }
        }
    }

    fn enter_queue(
        self: &Arc<Self>,
        store: &Store,
        queue_id: &LocalQueueId,
        options: &AcquireOptions,
        deadline: Instant,
    ) -> NewcomerStep {
        let mut departed = RemovedWaitersToNotify::default();
        let mut queues = self.queues.lock();
        let queue = queues.get_or_create(queue_id);
        if !queue.is_occupied(queue_id.mode) {
            let notify = Arc::new(Notify::new());
            (queue.acquirer, queue.has_leader) = (Some(Arc::clone(&notify)), true);
            drop(queues);
            return NewcomerStep::Lead(LeaderAcquire {
                local_queues: Arc::clone(self),
                store: store.clone(),
                queue_id: queue_id.clone(),
                leader_notify: notify,
                is_finished: false,
            });
        }
        let step = self.join_queue(
            &mut queues,
            (store, queue_id),
            options,
            deadline,
            VecDeque::push_back,
            &mut departed,
        );
        let prefetch = queues.get_or_create(queue_id).plan_prefetch();
        drop(queues);
        self.schedule_prefetch(store, queue_id, prefetch);
        step
    }

    /// Adds a waiter to the queue with `push_waiter`, unless the queue or the process has too many.
    pub(super) fn join_queue(
        self: &Arc<Self>,
        queues: &mut LocalQueueMap,
        (store, queue_id): (&Store, &LocalQueueId),
        options: &AcquireOptions,
        deadline: Instant,
        push_waiter: fn(&mut VecDeque<QueuedWaiter>, QueuedWaiter),
        departed: &mut RemovedWaitersToNotify,
    ) -> NewcomerStep {
        let has_capacity =
            |queues: &mut LocalQueueMap| queues.waiter_count(&queue_id.key) < options.max_waiters;
        if !has_capacity(queues) {
            // Departed waiters are usually removed when they reach the front; here they would keep
            // others out.
            queues.remove_departed(&queue_id.key, departed);
        }
        let permit =
            has_capacity(queues).then(|| Arc::clone(&self.waiter_permits).try_acquire_owned());
        let queue = queues.get_or_create(queue_id);
        let Some(Ok(permit)) = permit else {
            let last_busy = queue.last_busy.clone();
            return NewcomerStep::Done(WaitOutcome::QueueFull(
                last_busy.unwrap_or_else(|| assumed_busy(options.terms.lease)),
            ));
        };
        self.subscribe_to_joins(store);
        let (waiter, outcome_receiver) = QueuedWaiter::new(store, options, deadline);
        push_waiter(&mut queue.waiters, waiter);
        let leader_notify = queue.acquirer.clone().filter(|_| queue.has_leader);
        NewcomerStep::Wait(WaiterHandle {
            outcome_receiver,
            leader_notify,
            local_queues: Arc::clone(self),
            queue_id: queue_id.clone(),
            is_served: false,
            _permit: permit,
        })
    }

    /// Waits for the outcome until the deadline. Replaces a leader that has not returned within
    /// `OFFER_TIMEOUT`.
    async fn receive_outcome(
        self: &Arc<Self>,
        handle: &mut WaiterHandle,
        deadline: Instant,
    ) -> Result<Result<WaitOutcome, oneshot::error::RecvError>, Elapsed> {
        let leader_deadline = Instant::now() + OFFER_TIMEOUT;
        if let Some(leader_notify) =
            handle.leader_notify.take().filter(|_| leader_deadline < deadline)
        {
            if let Ok(received) = timeout_at(leader_deadline, &mut handle.outcome_receiver).await {
                return Ok(received);
            }
            self.replace_leader(&handle.queue_id, &leader_notify);
        }
        timeout_at(deadline, &mut handle.outcome_receiver).await
    }

    async fn await_lock(
        self: &Arc<Self>,
        mut handle: WaiterHandle,
        queue_id: &LocalQueueId,
        options: &AcquireOptions,
        deadline: Instant,
    ) -> WaitOutcome {
        match self.receive_outcome(&mut handle, deadline).await {
            // Possibly not sent by the acquirer, which is notified: it may keep an entry in vain.
            Ok(Ok(outcome @ WaitOutcome::TimedOut(_))) => outcome,
            Ok(Ok(outcome)) => {
                handle.is_served = true;
                outcome
            }
            // A removed waiter always gets an outcome, except after a panic.
            Ok(Err(_)) if Instant::now() < deadline => {
                WaitOutcome::Fault(Error::new(ErrorKind::Unavailable, "wait"))
            }
            Ok(Err(_)) | Err(_) => {
                let mut queues = self.queues.lock();
                let queue = queues.get_mut(queue_id);
                let length = queue.as_ref().map_or(0, |queue| queue.waiters.len());
                let last_busy = queue.and_then(|queue| queue.last_busy.clone());
                let mut busy = last_busy.unwrap_or_else(|| assumed_busy(options.terms.lease));
                busy.queue_length = busy.queue_length.max(length as u64);
                WaitOutcome::TimedOut(busy)
            }
        }
    }
}
