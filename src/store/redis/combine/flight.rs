//! Flights of several, in a task of their own.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use futures_util::FutureExt as _;
use tokio::{
    task::unconstrained,
    time::{Instant, error::Elapsed, sleep, timeout, timeout_at},
};

use super::{
    Answer, Fault, Flights, Outcome, PAUSE, Shared,
    queue::{Entry, Lane},
};
use crate::error::{Error, ErrorKind};

/// Steps of a flight after which it is worth while to wait for those that follow them.
const CROWD: usize = 4;

/// The right to be under way on a lane. Dropped, it lets the next ones go.
pub(super) struct Slot<F: Flights> {
    pub(super) shared: Arc<Shared<F>>,
    id: u64,
    /// The task it was made for runs.
    begun: bool,
    /// It has steps in hand that are not on the wire yet.
    taking: bool,
    /// Steps that go together, until they are answered.
    batch: Vec<Entry<F>>,
}

impl<F: Flights> Slot<F> {
    /// For a caller that goes now.
    pub(super) fn flying(shared: &Arc<Shared<F>>, lane: &mut Lane<F>) -> Self {
        let id = lane.begin(true, shared.patience());
        Self { shared: Arc::clone(shared), id, begun: true, taking: false, batch: Vec::new() }
    }

    /// For a task that will come and take what stands in the queue.
    pub(super) fn coming(shared: &Arc<Shared<F>>, lane: &mut Lane<F>) -> Self {
        let id = lane.begin(false, shared.patience());
        Self { shared: Arc::clone(shared), id, begun: false, taking: false, batch: Vec::new() }
    }

    /// For a caller that goes now with all that stand in the queue, its own step among them; `None` if they
    /// go without it, or there is no way yet. They are to be put on the wire before anything is awaited.
    pub(super) fn leading(shared: &Arc<Shared<F>>) -> Option<(Self, F::Path)> {
        let path = shared.flights.path().now_or_never()?.ok()?;
        let mut lane = shared.lane.lock();
        if lane.queue.is_empty() || !lane.may_be_led(Instant::now()) || !lane.take() {
            return None;
        }
        let mut slot = Self::flying(shared, &mut lane);
        slot.taking = true;
        slot.batch = lane.front();
        drop(lane);
        slot.all_go();
        Some((slot, path))
    }

    /// One flight, in the future of a caller. What has not arrived when it ends, or is dropped, goes on with
    /// somebody else.
    pub(super) async fn lead(mut self, mut path: F::Path) {
        match self.send(&mut path, false).await {
            Ok(Ok(replies)) => self.deliver(replies),
            Ok(Err(Fault::NoScript | Fault::NotRun)) => {
                self.batch.iter_mut().for_each(Entry::unsend);
            }
            Ok(Err(Fault::Broken)) => {}
            Ok(Err(Fault::Failed(error))) => self.fail(&error),
            Err(_) => {
                self.shared.flights.late(&path);
                self.fail(&Error::new(ErrorKind::Timeout, self.shared.name));
            }
        }
    }

    /// Flights of those in the queue, one after the other, until there are none.
    pub(super) async fn fly(mut self) {
        self.begun = true;
        let mut by_text = false;
        while self.stays() {
            by_text = self.take_off(by_text).await;
        }
    }

    /// Whether there is anything to do. If not, the lane is free.
    fn stays(&mut self) -> bool {
        let mut lane = self.shared.lane.lock();
        if self.batch.is_empty() && lane.queue.is_empty() {
            lane.end(self.id);
            return false;
        }
        lane.is_back(self.id, self.shared.patience());
        true
    }

    /// Sends those it has, or else the next of the queue; true if the server wants the script's text.
    async fn take_off(&mut self, by_text: bool) -> bool {
        let (shared, name) = (Arc::clone(&self.shared), self.shared.name);
        let path = timeout(shared.deadline, shared.flights.path()).await;
        let path = path.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, name)));
        self.take().await;
        let mut path = match path {
            Ok(path) if !self.batch.is_empty() => path,
            other => {
                self.taken();
                if let Err(error) = other {
                    self.fail(&error);
                }
                return false;
            }
        };
        let answer = self.send(&mut path, by_text).await;
        match answer {
            Ok(Ok(replies)) => {
                let company = self.batch.len() >= CROWD;
                self.deliver(replies);
                if company {
                    self.gather().await;
                }
            }
            Ok(Err(fault)) => return self.meet(fault).await,
            Err(_) => {
                shared.flights.late(&path);
                self.fail(&Error::new(ErrorKind::Timeout, name));
            }
        }
        false
    }

    /// Puts what was taken on the wire, and waits for the answer for as long as any of its callers.
    async fn send(
        &mut self,
        path: &mut F::Path,
        by_text: bool,
    ) -> Result<Result<Vec<F::Reply>, Fault>, Elapsed> {
        let shared = Arc::clone(&self.shared);
        let until = self.batch.iter().map(|entry| entry.until).max();
        let load = shared.flights.load(self.batch.iter().map(|entry| &entry.step), by_text);
        let mut sent = pin!(shared.flights.send(path, &load));
        // The first poll puts it on the wire, whatever is left of tokio's budget. Nothing is awaited
        // between the taking and this.
        let first = poll_fn(|cx| Poll::Ready(pin!(unconstrained(sent.as_mut())).poll(cx))).await;
        self.taken();
        match first {
            Poll::Ready(answer) => Ok(answer),
            Poll::Pending => timeout_at(until.unwrap_or_else(Instant::now), sent).await,
        }
    }

    async fn meet(&mut self, fault: Fault) -> bool {
        match fault {
            Fault::NoScript => {
                self.batch.iter_mut().for_each(Entry::unsend);
                return true;
            }
            Fault::NotRun => {
                self.batch.iter_mut().for_each(Entry::unsend);
                sleep(PAUSE).await;
            }
            Fault::Broken if !F::REPEATABLE => {
                self.fail(&Error::new(ErrorKind::Timeout, self.shared.name));
            }
            Fault::Broken => {
                if self.batch.iter().any(|entry| entry.sent > 1) {
                    sleep(PAUSE).await;
                }
            }
            Fault::Failed(error) => self.fail(&error),
        }
        false
    }

    /// Takes what goes now: what it has of those that still wait, or else the front of the queue.
    async fn take(&mut self) {
        loop {
            if self.took() {
                return;
            }
            again().await;
        }
    }

    fn took(&mut self) -> bool {
        let mut lane = self.shared.lane.lock();
        if !lane.take() {
            return false;
        }
        self.taking = true;
        if self.batch.is_empty() {
            self.batch = lane.front();
        }
        let unawaited = self.batch.iter().all(|entry| entry.put);
        lane.takes_off(self.id, unawaited, self.shared.patience());
        // Callers are woken below, which may run anything: not under the lock.
        drop(lane);
        self.all_go();
        true
    }

    fn all_go(&mut self) {
        let (name, now) = (self.shared.name, Instant::now());
        self.batch.retain_mut(|entry| entry.goes(name, now));
    }

    /// What it took is on the wire; others may take now.
    fn taken(&mut self) {
        self.taking = false;
        let mut lane = self.shared.lane.lock();
        lane.taken();
        let wanted = !lane.queue.is_empty() && lane.wants_a_flight(Instant::now());
        drop(lane);
        if wanted {
            self.shared.kick();
        }
    }

    fn deliver(&mut self, replies: Vec<F::Reply>) {
        let mut replies = replies.into_iter();
        for Entry { step, ticket, sent, .. } in self.batch.drain(..) {
            let first = replies.next();
            let second = if F::replies(&step) > 1 { replies.next() } else { None };
            let answer = answer::<F>(&step, first, second, sent, self.shared.name);
            ticket.deliver(answer);
        }
    }

    /// Those who got their answers often have another call at once: let them come first.
    async fn gather(&mut self) {
        self.shared.lane.lock().is_back(self.id, self.shared.patience());
        again().await;
    }

    /// None of them goes on.
    fn fail(&mut self, error: &Error) {
        for entry in self.batch.drain(..) {
            entry.end(self.shared.name, error);
        }
    }
}

impl<F: Flights> Drop for Slot<F> {
    fn drop(&mut self) {
        let mut lane = self.shared.lane.lock();
        lane.end(self.id);
        if self.taking {
            lane.taken();
        }
        // The task ended early: its runtime did. Those who still wait go on with somebody else.
        let mut doubtful = Vec::new();
        for entry in self.batch.drain(..).rev() {
            if F::REPEATABLE || entry.sent == 0 {
                lane.queue.push_front(entry);
            } else {
                doubtful.push(entry);
            }
        }
        let wanted = self.begun && !lane.queue.is_empty() && lane.wants_a_flight(Instant::now());
        drop(lane);
        for entry in doubtful.into_iter().rev() {
            entry.fail(self.shared.name, Error::new(ErrorKind::Timeout, self.shared.name));
        }
        if wanted {
            self.shared.kick();
        }
    }
}

pub(super) fn answer<F: Flights>(
    step: &F::Step,
    first: Option<F::Reply>,
    second: Option<F::Reply>,
    sent: u32,
    name: &'static str,
) -> Outcome<F> {
    match (first, second) {
        (Some(first), second) if second.is_some() == (F::replies(step) > 1) => {
            Ok(Answer { first, second, sent })
        }
        _ => Err(Error::new(ErrorKind::Protocol, name)),
    }
}

/// Lets the others run that are ready; not tokio's, which also looks at the sockets before.
async fn again() {
    let mut first = true;
    poll_fn(|context| {
        if std::mem::take(&mut first) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}
