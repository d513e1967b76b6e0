//! One timer for all that wait on a lane.
//!
//! Nearly every call is answered long before its deadline, and a timer for each is what the runtime's workers would
//! take turns at. So callers of one runtime stand in a list, in the order of their deadlines, and a task of that
//! runtime rings for whose deadline has come: that caller then looks at his own clock, as does everybody if the task
//! ends early. It looks now and then whether somebody comes for them at all. Callers of other runtimes have timers of their own, since one that stands still rings for nobody.

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

/// So many tickets are kept to be used again: two flights of callers.
const MAX_SPARE_CELLS: usize = 2 * MAX_BATCH_WEIGHT;

/// Whom a lane has to ring for.
pub(super) struct DeadlineTimer<F: BatchTransport> {
    /// By deadline.
    by_deadline: VecDeque<TimedCell<F>>,
    /// Tickets that are over, or about to be fetched. Where many wait, allocators have few blocks of a size at hand for
    /// each thread, and a ticket is made by one and dropped by another.
    spare_cells: VecDeque<Arc<OutcomeCell<CallOutcome<F>>>>,
    /// The runtime on which somebody rings.
    runtime: Option<Id>,
}

/// Who rings for a caller.
pub(super) enum TimerAssignment {
    /// Somebody does.
    Shared,
    /// Somebody will, once the task is begun.
    StartShared(Handle),
    /// He himself.
    Own,
}

impl<F: BatchTransport> Default for DeadlineTimer<F> {
    fn default() -> Self {
        Self { by_deadline: VecDeque::new(), spare_cells: VecDeque::new(), runtime: None }
    }
}

impl<F: BatchTransport> DeadlineTimer<F> {
    /// One that nobody has any more, or a new one.
    pub(super) fn take_cell(&mut self) -> Arc<OutcomeCell<CallOutcome<F>>> {
        // The oldest: its caller is the likeliest to have gone.
        let mut used = self.spare_cells.pop_front().unwrap_or_default();
        match Arc::get_mut(&mut used) {
            Some(ticket) => {
                *ticket = OutcomeCell::default();
                used
            }
            None => Arc::default(),
        }
    }

    /// Those in front that are done need nobody to go through them later.
    fn recycle_finished(&mut self) {
        while self.by_deadline.front().is_some_and(|(_, ticket)| ticket.is_finished()) {
            if let Some((_, ticket)) = self.by_deadline.pop_front()
                && self.spare_cells.len() < MAX_SPARE_CELLS
            {
                self.spare_cells.push_back(ticket);
            }
        }
    }

    /// Puts a caller into the list, if he can stand there.
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

    /// Takes out whose time has come, and says when the next one's does.
    fn take_due(&mut self, now: Instant) -> (Vec<TimedCell<F>>, Option<Instant>) {
        let count = self.by_deadline.partition_point(|(until, _)| *until <= now);
        let due = self.by_deadline.drain(..count).collect();
        self.recycle_finished();
        (due, self.by_deadline.front().map(|(until, _)| *until))
    }
}

/// Whoever rings. If it ends early, everybody is rung for.
struct TimerTask<F: BatchTransport> {
    inner: Weak<BatcherInner<F>>,
    /// There was nobody left.
    finished: bool,
}

impl<F: BatchTransport> BatcherInner<F> {
    /// Begins to ring on this runtime. (One that has ended drops the task at once.)
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
            // Who is woken may run anything: not under the lock.
            due.iter().for_each(|(_, ticket)| ticket.signal_deadline());
            let look = Instant::now() + shared.stall_timeout;
            drop((due, shared));
            let Some(next) = next else { return };
            sleep_until(next.min(look)).await;
            // Not at once: who stands in the queue then has just seen to it himself.
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

    use super::{super::tests::Field, *};
    use crate::error::{Error, ErrorKind};

    #[tokio::test]
    async fn a_ticket_is_used_again_when_its_caller_has_gone() {
        let (mut watch, until) =
            (DeadlineTimer::<Field>::default(), Instant::now() + Duration::from_secs(1));
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
