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

use super::{BATCH, Flights, Outcome, Shared, ticket::Ticket};

type Waits<F> = (Instant, Arc<Ticket<Outcome<F>>>);

/// So many tickets are kept to be used again: two flights of callers.
const SPARE: usize = 2 * BATCH;

/// Whom a lane has to ring for.
pub(super) struct Watch<F: Flights> {
    /// By deadline.
    waiting: VecDeque<Waits<F>>,
    /// Tickets that are over, or about to be fetched. Where many wait, allocators have few blocks of a size at hand for
    /// each thread, and a ticket is made by one and dropped by another.
    spare: VecDeque<Arc<Ticket<Outcome<F>>>>,
    /// The runtime on which somebody rings.
    on: Option<Id>,
}

/// Who rings for a caller.
pub(super) enum Rings {
    /// Somebody does.
    Watched,
    /// Somebody will, once the task is begun.
    Begin(Handle),
    /// He himself.
    Alone,
}

impl<F: Flights> Default for Watch<F> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), spare: VecDeque::new(), on: None }
    }
}

impl<F: Flights> Watch<F> {
    /// One that nobody has any more, or a new one.
    pub(super) fn ticket(&mut self) -> Arc<Ticket<Outcome<F>>> {
        // The oldest: its caller is the likeliest to have gone.
        let mut used = self.spare.pop_front().unwrap_or_default();
        match Arc::get_mut(&mut used) {
            Some(ticket) => {
                *ticket = Ticket::default();
                used
            }
            None => Arc::default(),
        }
    }

    /// Those in front that are done need nobody to go through them later.
    fn sweep(&mut self) {
        while self.waiting.front().is_some_and(|(_, ticket)| ticket.is_over()) {
            if let Some((_, ticket)) = self.waiting.pop_front()
                && self.spare.len() < SPARE
            {
                self.spare.push_back(ticket);
            }
        }
    }

    /// Puts a caller into the list, if he can stand there.
    pub(super) fn add(&mut self, until: Instant, ticket: &Arc<Ticket<Outcome<F>>>) -> Rings {
        let Ok(here) = Handle::try_current() else { return Rings::Alone };
        self.sweep();
        let is_last = self.waiting.back().is_none_or(|(last, _)| *last <= until);
        if !is_last || self.on.is_some_and(|runtime| runtime != here.id()) {
            return Rings::Alone;
        }
        self.waiting.push_back((until, Arc::clone(ticket)));
        match self.on.replace(here.id()) {
            Some(_) => Rings::Watched,
            None => Rings::Begin(here),
        }
    }

    /// Takes out whose time has come, and says when the next one's does.
    fn due(&mut self, now: Instant) -> (Vec<Waits<F>>, Option<Instant>) {
        let count = self.waiting.partition_point(|(until, _)| *until <= now);
        let due = self.waiting.drain(..count).collect();
        self.sweep();
        (due, self.waiting.front().map(|(until, _)| *until))
    }
}

/// Whoever rings. If it ends early, everybody is rung for.
struct Ringing<F: Flights> {
    shared: Weak<Shared<F>>,
    /// There was nobody left.
    ended: bool,
}

impl<F: Flights> Shared<F> {
    /// Begins to ring on this runtime. (One that has ended drops the task at once.)
    pub(super) fn ring_on(self: &Arc<Self>, runtime: &Handle) {
        let ringing = Ringing { shared: Arc::downgrade(self), ended: false };
        runtime.spawn(ringing.ring());
    }
}

impl<F: Flights> Ringing<F> {
    fn look(&mut self, shared: &Shared<F>) -> (Vec<Waits<F>>, Option<Instant>) {
        let mut lane = shared.lane.lock();
        let (due, next) = lane.watch.due(Instant::now());
        if next.is_none() {
            (lane.watch.on, self.ended) = (None, true);
        }
        (due, next)
    }

    async fn ring(mut self) {
        while let Some(shared) = self.shared.upgrade() {
            let (due, next) = self.look(&shared);
            // Who is woken may run anything: not under the lock.
            due.iter().for_each(|(_, ticket)| ticket.ring());
            let look = Instant::now() + shared.stall;
            drop((due, shared));
            let Some(next) = next else { return };
            sleep_until(next.min(look)).await;
            // Not at once: who stands in the queue then has just seen to it himself.
            if let Some(shared) = self.shared.upgrade() {
                shared.kick();
            }
        }
    }
}

impl<F: Flights> Drop for Ringing<F> {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade().filter(|_| !self.ended) else { return };
        let mut lane = shared.lane.lock();
        let left = std::mem::take(&mut lane.watch.waiting);
        lane.watch.on = None;
        drop(lane);
        left.iter().for_each(|(_, ticket)| ticket.ring());
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
            (Watch::<Field>::default(), Instant::now() + Duration::from_secs(1));
        let mut take = || {
            let ticket = watch.ticket();
            watch.add(until, &ticket);
            ticket
        };
        let over = |ticket: &Ticket<_>| ticket.deliver(Err(Error::new(ErrorKind::Timeout, "x")));
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
        assert!(Arc::as_ptr(&again) == place && !again.is_over() && !again.is_sent());
    }
}
