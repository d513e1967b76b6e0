//! `DeadlineTimer`: one timer task for the deadlines of many callers of a lane.
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
        let mut spare = self.spare_cells.pop_front().unwrap_or_default();
        match Arc::get_mut(&mut spare) {
            Some(cell) => {
                *cell = OutcomeCell::default();
                spare
            }
            None => Arc::default(),
        }
    }

    /// Removes finished cells from the front, so that no later scan meets them.
    fn recycle_finished(&mut self) {
        while self.by_deadline.front().is_some_and(|(_, cell)| cell.is_finished()) {
            if let Some((_, cell)) = self.by_deadline.pop_front()
                && self.spare_cells.len() < MAX_SPARE_CELLS
            {
                self.spare_cells.push_back(cell);
            }
        }
    }

    /// Adds a caller to the list, if its runtime and its deadline fit.
    pub(super) fn register(
        &mut self,
        deadline: Instant,
        cell: &Arc<OutcomeCell<CallOutcome<F>>>,
    ) -> TimerAssignment {
        let Ok(current) = Handle::try_current() else { return TimerAssignment::Own };
        self.recycle_finished();
        let is_last =
            self.by_deadline.back().is_none_or(|(last_deadline, _)| *last_deadline <= deadline);
        if !is_last || self.runtime.is_some_and(|runtime| runtime != current.id()) {
            return TimerAssignment::Own;
        }
        self.by_deadline.push_back((deadline, Arc::clone(cell)));
        match self.runtime.replace(current.id()) {
            Some(_) => TimerAssignment::Shared,
            None => TimerAssignment::StartShared(current),
        }
    }

    /// Removes the cells that are due, and returns them with the next deadline.
    fn take_due(&mut self, now: Instant) -> (Vec<TimedCell<F>>, Option<Instant>) {
        let count = self.by_deadline.partition_point(|(deadline, _)| *deadline <= now);
        let due = self.by_deadline.drain(..count).collect();
        self.recycle_finished();
        (due, self.by_deadline.front().map(|(deadline, _)| *deadline))
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
        let task = TimerTask { inner: Arc::downgrade(self), finished: false };
        runtime.spawn(task.run());
    }
}

impl<F: BatchTransport> TimerTask<F> {
    fn take_due(&mut self, batcher: &BatcherInner<F>) -> (Vec<TimedCell<F>>, Option<Instant>) {
        let mut queue = batcher.queue.lock();
        let (due, next_deadline) = queue.timer.take_due(Instant::now());
        if next_deadline.is_none() {
            (queue.timer.runtime, self.finished) = (None, true);
        }
        (due, next_deadline)
    }

    async fn run(mut self) {
        while let Some(batcher) = self.inner.upgrade() {
            let (due, next_deadline) = self.take_due(&batcher);
            // Outside of the lock: a woken task may run any code.
            due.iter().for_each(|(_, cell)| cell.signal_deadline());
            let check_at = Instant::now() + batcher.stall_timeout;
            drop((due, batcher));
            let Some(next_deadline) = next_deadline else { return };
            sleep_until(next_deadline.min(check_at)).await;
            // Only after the sleep: calls that were just queued have checked this themselves.
            if let Some(batcher) = self.inner.upgrade() {
                batcher.ensure_batch_task();
            }
        }
    }
}

impl<F: BatchTransport> Drop for TimerTask<F> {
    fn drop(&mut self) {
        let Some(batcher) = self.inner.upgrade().filter(|_| !self.finished) else { return };
        let mut queue = batcher.queue.lock();
        let unsignaled = std::mem::take(&mut queue.timer.by_deadline);
        queue.timer.runtime = None;
        drop(queue);
        unsignaled.iter().for_each(|(_, cell)| cell.signal_deadline());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::tests::ScriptedTransport, *};
    use crate::error::{Error, ErrorKind};

    #[tokio::test]
    async fn outcome_cell_is_reused_after_its_caller_is_dropped() {
        let (mut timer, deadline) = (
            DeadlineTimer::<ScriptedTransport>::default(),
            Instant::now() + Duration::from_secs(1),
        );
        let mut take = || {
            let cell = timer.take_cell();
            timer.register(deadline, &cell);
            cell
        };
        let finish =
            |cell: &OutcomeCell<_>| cell.complete(Err(Error::new(ErrorKind::Timeout, "x")));
        let [first, second] = [take(), take()];
        finish(&first);
        let third = take();
        assert!(!Arc::ptr_eq(&first, &take()), "it has been answered, and is not fetched yet");
        finish(&second);
        finish(&third);
        let address = Arc::as_ptr(&second);
        drop((second, third));
        take();
        let reused = take();
        assert!(Arc::as_ptr(&reused) == address && !reused.is_finished() && !reused.is_sent());
    }
}
