//! Shared timer for the callers of a lane.
//!
//! Nearly every call is answered long before its deadline, and the runtime's workers would contend
//! for a timer per call. So the callers of one runtime are listed in the order of their deadlines,
//! and a task of that runtime signals each deadline. A caller that is signaled then uses a timer of
//! its own, as do all callers if the task ends early. The task also checks at intervals that the
//! queue has a sender. Callers on other runtimes have timers of their own, since a runtime that is
//! blocked signals nothing.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
};

use tokio::{
    runtime::{Handle, Id},
    time::{Instant, sleep_until},
};

use super::{
    BatchTransport, BatcherInner, CallOutcome, MAX_BATCH_WEIGHT, outcome_cell::OutcomeCell,
};

type TimedCell<F> = (Instant, Arc<OutcomeCell<CallOutcome<F>>>);

/// Most cells kept for reuse: those of two batches.
const MAX_SPARE_CELLS: usize = 2 * MAX_BATCH_WEIGHT;

/// Deadlines of a lane's callers.
pub(super) struct DeadlineTimer<F: BatchTransport> {
    /// Ordered by deadline.
    by_deadline: VecDeque<TimedCell<F>>,
    /// Cells that are finished, or about to be read. With many callers, allocators have few blocks
    /// of one size at hand for each thread, and a cell is allocated by one thread and freed by
    /// another.
    spare_cells: VecDeque<Arc<OutcomeCell<CallOutcome<F>>>>,
    /// Runtime of the timer task, if it runs.
    runtime: Option<Id>,
}

/// Timer of a caller.
pub(super) enum TimerAssignment {
    /// The timer task.
    Shared,
    /// The timer task, which has to be started on this runtime.
    StartShared(Handle),
    /// A timer of its own.
    Own,
}

impl<F: BatchTransport> Default for DeadlineTimer<F> {
    fn default() -> Self {
        Self { by_deadline: VecDeque::new(), spare_cells: VecDeque::new(), runtime: None }
    }
}

impl<F: BatchTransport> DeadlineTimer<F> {
    /// Returns a spare cell that is not in use any more, or a new one.
    pub(super) fn take_cell(&mut self) -> Arc<OutcomeCell<CallOutcome<F>>> {
        // The oldest one is the likeliest to have no user left.
        let mut used = self.spare_cells.pop_front().unwrap_or_default();
        match Arc::get_mut(&mut used) {
            Some(ticket) => {
                *ticket = OutcomeCell::default();
                used
            }
            None => Arc::default(),
        }
    }

    /// Removes finished cells from the front, so that no later scan meets them.
    fn recycle_finished(&mut self) {
        while self.by_deadline.front().is_some_and(|(_, ticket)| ticket.is_finished()) {
            if let Some((_, ticket)) = self.by_deadline.pop_front()
                && self.spare_cells.len() < MAX_SPARE_CELLS
            {
                self.spare_cells.push_back(ticket);
            }
        }
    }

    /// Adds a caller to the list, if its runtime and its deadline fit.
    pub(super) fn register(
        &mut self,
        until: Instant,
        ticket: &Arc<OutcomeCell<CallOutcome<F>>>,
    ) -> TimerAssignment {
        let Ok(here) = Handle::try_current() else { return TimerAssignment::Own };
        self.recycle_finished();
        let is_last = self.by_deadline.back().is_none_or(|(last, _)| *last <= until);
        if !is_last || self.runtime.is_some_and(|runtime| runtime != here.id()) {
            return TimerAssignment::Own;
        }
        self.by_deadline.push_back((until, Arc::clone(ticket)));
        match self.runtime.replace(here.id()) {
            Some(_) => TimerAssignment::Shared,
            None => TimerAssignment::StartShared(here),
        }
    }

    /// Removes the cells that are due, and returns them with the next deadline.
    fn take_due(&mut self, now: Instant) -> (Vec<TimedCell<F>>, Option<Instant>) {
        let count = self.by_deadline.partition_point(|(until, _)| *until <= now);
        let due = self.by_deadline.drain(..count).collect();
        self.recycle_finished();
        (due, self.by_deadline.front().map(|(until, _)| *until))
    }
}

/// Task that signals deadlines. If it ends early, it signals all callers.
struct TimerTask<F: BatchTransport> {
    inner: Weak<BatcherInner<F>>,
    /// The list was empty.
    finished: bool,
}

impl<F: BatchTransport> BatcherInner<F> {
    /// Starts the timer task on this runtime. (A runtime that has ended drops it at once.)
    pub(super) fn spawn_timer(self: &Arc<Self>, runtime: &Handle) {
        let ringing = TimerTask { inner: Arc::downgrade(self), finished: false };
        runtime.spawn(ringing.run());
    }
}

impl<F: BatchTransport> TimerTask<F> {
    fn take_due(&mut self, shared: &BatcherInner<F>) -> (Vec<TimedCell<F>>, Option<Instant>) {
        let mut lane = shared.queue.lock();
        let (due, next) = lane.timer.take_due(Instant::now());
        if next.is_none() {
            (lane.timer.runtime, self.finished) = (None, true);
        }
        (due, next)
    }

    async fn run(mut self) {
        while let Some(shared) = self.inner.upgrade() {
            let (due, next) = self.take_due(&shared);
            // Outside of the lock: a woken task may run any code.
            due.iter().for_each(|(_, ticket)| ticket.signal_deadline());
            let look = Instant::now() + shared.stall_timeout;
            drop((due, shared));
            let Some(next) = next else { return };
            sleep_until(next.min(look)).await;
            // Only after the sleep: calls that were just queued have checked this themselves.
            if let Some(shared) = self.inner.upgrade() {
                shared.ensure_batch_task();
            }
        }
    }
}

impl<F: BatchTransport> Drop for TimerTask<F> {
    fn drop(&mut self) {
        let Some(shared) = self.inner.upgrade().filter(|_| !self.finished) else { return };
        let mut lane = shared.queue.lock();
        let left = std::mem::take(&mut lane.timer.by_deadline);
        lane.timer.runtime = None;
        drop(lane);
        left.iter().for_each(|(_, ticket)| ticket.signal_deadline());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::tests::ScriptedTransport, *};
    use crate::error::{Error, ErrorKind};

    #[tokio::test]
    async fn outcome_cell_is_reused_after_its_caller_is_dropped() {
        let (mut watch, until) = (
            DeadlineTimer::<ScriptedTransport>::default(),
            Instant::now() + Duration::from_secs(1),
        );
        let mut take = || {
            let ticket = watch.take_cell();
            watch.register(until, &ticket);
            ticket
        };
        let over =
            |ticket: &OutcomeCell<_>| ticket.complete(Err(Error::new(ErrorKind::Timeout, "x")));
        let [first, second] = [take(), take()];
        over(&first);
        let third = take();
        assert!(!Arc::ptr_eq(&first, &take()), "it has been answered, and is not fetched yet");
        over(&second);
        over(&third);
        let place = Arc::as_ptr(&second);
        drop((second, third));
        take();
        let again = take();
        assert!(Arc::as_ptr(&again) == place && !again.is_finished() && !again.is_sent());
    }
}
