//! One who waits: what it asked for, and how its wait ends.

use std::time::Duration;

use tokio::{sync::oneshot, time::Instant};

use crate::{
    error::Error,
    lock::{acquire_options::AcquireOptions, guard::LockGuard, outcome::LockBusy},
    store::Store,
};

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) arrived_at: Instant,
    pub(super) deadline: Instant,
    pub(super) options: AcquireOptions,
    pub(super) store: Store,
    /// `None`: it has been told how its wait ends.
    outcome_sender: Option<oneshot::Sender<WaitOutcome>>,
}

impl Waiter {
    /// From now on. What it will be told comes by the other end.
    pub(super) fn new(
        store: &Store,
        asking: &AcquireOptions,
        until: Instant,
    ) -> (Self, oneshot::Receiver<WaitOutcome>) {
        let (tell, told) = oneshot::channel();
        let (came, asking, store) = (Instant::now(), asking.clone(), store.clone());
        (
            Self {
                arrived_at: came,
                deadline: until,
                options: asking,
                store,
                outcome_sender: Some(tell),
            },
            told,
        )
    }

    pub(super) fn is_waiting(&self, now: Instant) -> bool {
        self.outcome_sender.as_ref().is_some_and(|tell| !tell.is_closed()) && self.deadline > now
    }

    /// How its wait ends; that is given back if it has left.
    pub(super) fn resolve(&mut self, waited: WaitOutcome) -> Result<(), WaitOutcome> {
        let Some(tell) = self.outcome_sender.take() else { return Err(waited) };
        if let WaitOutcome::Granted(guard) = &waited {
            guard.mark_awaiting_receipt();
        }
        tell.send(waited)
    }
}

/// Those who were taken out of a line without the lock. Told, and dropped, when this is: to be made before the mutex of the
/// lines is taken, so that it is free then, since a waker may run anything, and a waiter have the last handle of its store.
#[derive(Default)]
pub(super) struct DepartedWaiters(Vec<(Waiter, LockBusy)>);

impl DepartedWaiters {
    /// From a local line of this length. If it is still there, its time is over: it is told what is known now, since its line
    /// may be gone when it looks.
    pub(super) fn add(&mut self, waiter: Waiter, busy: Option<&LockBusy>, length: usize) {
        let mut known = busy.cloned().unwrap_or_else(|| assumed_busy(waiter.options.terms.lease));
        known.queue_length = known.queue_length.max(length as u64);
        self.0.push((waiter, known));
    }
}

impl Drop for DepartedWaiters {
    fn drop(&mut self) {
        for (mut waiter, known) in self.0.drain(..) {
            let _ = waiter.resolve(WaitOutcome::TimedOut(known));
        }
    }
}

/// How a wait ends.
#[derive(Debug)]
pub(crate) enum WaitOutcome {
    Granted(LockGuard),
    TimedOut(LockBusy),
    QueueFull(LockBusy),
    Fault(Error),
}

/// What is known of a lock that is busy, before anybody has said.
pub(super) fn assumed_busy(lease: Duration) -> LockBusy {
    LockBusy { lease_remaining: lease, queue_length: 0, waited: None }
}
