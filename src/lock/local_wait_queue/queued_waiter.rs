//! Waiter of a local queue, and the outcomes of its wait.

use std::time::Duration;

use tokio::{sync::oneshot, time::Instant};

use crate::{
    error::Error,
    lock::{acquire_options::AcquireOptions, lock_guard::LockGuard, lock_outcome::LockBusy},
    store::Store,
};

#[derive(Debug)]
pub(super) struct QueuedWaiter {
    pub(super) arrived_at: Instant,
    pub(super) deadline: Instant,
    pub(super) options: AcquireOptions,
    pub(super) store: Store,
    /// `None` once the outcome was sent.
    outcome_sender: Option<oneshot::Sender<WaitOutcome>>,
}

impl QueuedWaiter {
    /// Creates a waiter that arrives now, with the receiver of its outcome.
    pub(super) fn new(
        store: &Store,
        options: &AcquireOptions,
        deadline: Instant,
    ) -> (Self, oneshot::Receiver<WaitOutcome>) {
        let (outcome_sender, outcome_receiver) = oneshot::channel();
        let (arrived_at, options, store) = (Instant::now(), options.clone(), store.clone());
        (
            Self { arrived_at, deadline, options, store, outcome_sender: Some(outcome_sender) },
            outcome_receiver,
        )
    }

    pub(super) fn is_waiting(&self, now: Instant) -> bool {
        self.outcome_sender.as_ref().is_some_and(|outcome_sender| !outcome_sender.is_closed())
            && self.deadline > now
    }

    /// Sends the outcome to the waiter. Returns it as the error if the waiter has left.
    pub(super) fn resolve(&mut self, outcome: WaitOutcome) -> Result<(), WaitOutcome> {
        let Some(outcome_sender) = self.outcome_sender.take() else { return Err(outcome) };
        if let WaitOutcome::Granted(guard) = &outcome {
            guard.mark_awaiting_receipt();
        }
        outcome_sender.send(outcome)
    }
}

/// Waiters that were removed from a queue without the lock; dropping the list notifies them.
///
/// Create it before locking the mutex of the queues, so that it is dropped after the mutex is
/// released: a waker may run any code, and a waiter may own the last handle of its store.
#[derive(Default)]
pub(super) struct RemovedWaitersToNotify(Vec<(QueuedWaiter, LockBusy)>);

impl RemovedWaitersToNotify {
    /// Adds a waiter that was removed from a local queue of `length` waiters.
    ///
    /// If its future still exists, its deadline has passed. It gets the last known state, because
    /// its queue may no longer exist when it wakes.
    pub(super) fn add(&mut self, waiter: QueuedWaiter, busy: Option<&LockBusy>, length: usize) {
        let mut busy = busy.cloned().unwrap_or_else(|| assumed_busy(waiter.options.terms.lease));
        busy.queue_length = busy.queue_length.max(length as u64);
        self.0.push((waiter, busy));
    }
}

impl Drop for RemovedWaitersToNotify {
    fn drop(&mut self) {
        for (mut waiter, busy) in self.0.drain(..) {
            let _ = waiter.resolve(WaitOutcome::TimedOut(busy));
        }
    }
}

/// Outcome of a wait.
#[derive(Debug)]
pub(crate) enum WaitOutcome {
    Granted(LockGuard),
    TimedOut(LockBusy),
    QueueFull(LockBusy),
    Fault(Error),
}

/// Returns the assumed state of a busy lock, for use before the store has reported one.
pub(super) fn assumed_busy(lease: Duration) -> LockBusy {
    LockBusy { lease_remaining: lease, queue_length: 0, waited: None }
}
