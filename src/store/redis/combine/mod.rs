//! Calls that wait together go together.
//!
//! A [`Combiner`] stands before one lane. A call that finds it idle is sent by the caller itself, in its
//! own task. Those that come while others are under way stand in a queue, and leave together when one of
//! them returns, or when they fill a flight. A caller who finds nothing in it but what was put, and
//! that nobody has come for yet, takes it along, and is spared the way through another task. What a flight is, and how it is sent, is a
//! [`Flights`]'.
//!
//! # Why an undo never overtakes what it undoes
//!
//! A caller that is dropped, or was told that its time is over, is followed by an undo, on the same lane.
//!
//! - Steps are taken from the queue and put on the wire in one go, one flight after the other
//!   (`taking`); whatever is called meanwhile stands behind them.
//! - Nothing is sent, the first time or again, for a caller that is gone: so when there is an undo, what
//!   it undoes was put on the wire before, or never will be. That is why several flights may be under way.
//! - A caller that flies alone, or leads others, sends by its own future, which ends with it: the others then
//!   stand in front of the queue again.
//!
//! - In a cluster a lane is a shard's, and its node may change. Why that is no way past each other is told in
//!   `target::cluster`.
//!
//! # What ends what
//!
//! A caller waits until its own deadline, of which somebody reminds him ([`watch`]). A flight of several runs in a task of its own and depends on
//! none of them. Should the task end early (its runtime does), those who still wait go back into the
//! queue. One that takes a good part of the deadline is no reason for others to wait: nobody has promised that the future
//! it is in is polled, or that its thread is at nothing else. One of far too long counts no more at all.

mod alone;
mod calling;
mod flight;
mod queue;
#[cfg(test)]
mod tests;
mod ticket;
mod watch;

use std::{future::Future, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    time::{Instant, timeout_at},
};

pub(super) use self::calling::Calling;
use self::{
    calling::Course,
    flight::Slot,
    queue::{Entry, Lane},
    ticket::{Ticket, Waiting},
    watch::Rings,
};
use crate::error::{Error, ErrorKind};

/// Steps of one flight at most, for those that are as large as those of `calls.lua`.
pub(super) const BATCH: usize = 32;

/// Part of the deadline after which nobody waits for a flight of others: whoever has its answer may not come for it.
const STALL: u32 = 4;

/// Pause before another socket is tried, where the last one did not help.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// How steps are sent.
pub(super) trait Flights: Send + Sync + 'static {
    type Step: Send + Sync + 'static;
    type Reply: Send + 'static;
    /// A way to the server.
    type Path: Send;
    /// Steps made ready to be sent.
    type Load: Send;

    /// How much a flight takes: bounded as its script is.
    const BATCH: usize = BATCH;
    /// How many steps need not wait for the one flight that is under way: while the server is at that one, the next
    /// is made ready.
    const ENOUGH: usize = Self::BATCH;
    /// Whether what may have run is sent again. If not, its caller is told that it may have.
    const REPEATABLE: bool = true;

    /// How much of a flight it takes, at least 1.
    fn weight(step: &Self::Step) -> usize;

    /// How many replies it gets: 1 or 2.
    fn replies(step: &Self::Step) -> usize;

    fn path(&self) -> impl Future<Output = Result<Self::Path, Error>> + Send;

    fn load<'a>(
        &self,
        steps: impl Iterator<Item = &'a Self::Step> + Clone,
        by_text: bool,
    ) -> Self::Load;

    /// Sends it. Loads are on the wire in the order of the first polls.
    fn send<'a>(
        &'a self,
        path: &'a mut Self::Path,
        load: &'a Self::Load,
    ) -> impl Future<Output = Result<Vec<Self::Reply>, Fault>> + Send + 'a;

    /// No answer came on this path in time.
    fn late(&self, path: &Self::Path);
}

/// Why a flight has not arrived.
pub(super) enum Fault {
    /// The server does not know the script; it has not run.
    NoScript,
    /// The server would not run it: no master, or still loading.
    NotRun,
    /// The connection broke: it may have run.
    Broken,
    /// What every step of it is told.
    Failed(Error),
}

/// The replies to a step, and how often it was sent: more than once, and an earlier one may have run.
#[derive(Debug)]
pub(super) struct Answer<R> {
    pub(super) first: R,
    pub(super) second: Option<R>,
    pub(super) sent: u32,
}

type Outcome<F> = Result<Answer<<F as Flights>::Reply>, Error>;

/// The calls of one lane.
pub(super) struct Combiner<F: Flights>(Arc<Shared<F>>);

struct Shared<F: Flights> {
    flights: F,
    name: &'static str,
    deadline: Duration,
    /// The runtime it was made on.
    home: Option<Handle>,
    /// Who stands in the queue for so long looks whether those under way do too.
    stall: Duration,
    lane: Mutex<Lane<F>>,
}

impl<F: Flights> Combiner<F> {
    pub(super) fn new(flights: F, name: &'static str, deadline: Duration) -> Self {
        let (home, stall) = (Handle::try_current().ok(), deadline / STALL);
        let lane = Mutex::new(Lane::new(stall));
        Self(Arc::new(Shared { flights, name, deadline, home, stall, lane }))
    }

    /// Sends a step, alone or with others.
    ///
    /// Dropping the future may leave the step unsent, or run; see above.
    #[expect(
        clippy::manual_async_fn,
        reason = "what an async fn is given lies in its future twice"
    )]
    pub(super) fn call(
        &self,
        step: F::Step,
        until: Instant,
    ) -> impl Future<Output = Outcome<F>> + Send {
        async move { self.begin(step, Instant::now(), until).await }
    }

    /// Puts a step into the queue at once; it goes with the next flight, whatever becomes of the future.
    /// `None` if nothing would ever send it: there is no runtime here, and nobody else is under way.
    pub(super) fn put(
        &self,
        step: F::Step,
        until: Instant,
    ) -> Option<impl Future<Output = Outcome<F>> + Send + use<F>> {
        let ticket = Arc::new(Ticket::default());
        let entry = Entry { step, ticket: Arc::clone(&ticket), until, put: true, sent: 0 };
        self.0.lane.lock().queue.push_back(entry);
        if !self.0.kick() {
            ticket.leave();
            return None;
        }
        let (waiting, name) = (Waiting::kept(ticket), self.0.name);
        Some(waiting.until(until, name))
    }

    /// As `call`, but a step that waits for others stands in the queue when this returns. To be polled at once: who goes
    /// alone, or leads, holds the lane, and sends with the first poll.
    pub(super) fn begin(&self, step: F::Step, now: Instant, until: Instant) -> Calling<F> {
        let mut lane = self.0.lane.lock();
        if lane.is_idle(now) {
            let slot = Slot::flying(&self.0, &mut lane);
            drop(lane);
            return Calling(Course::Boxed(Box::pin(slot.alone(step, until))));
        }
        let ticket = lane.watch.ticket();
        let entry = Entry { step, ticket: Arc::clone(&ticket), until, put: false, sent: 0 };
        lane.queue.push_back(entry);
        let (wanted, led) = (lane.wants_a_flight(now), lane.may_be_led(now));
        let rings = if led { Rings::Alone } else { lane.watch.add(until, &ticket) };
        drop(lane);
        let (waiting, name) = (Waiting::new(ticket), self.0.name);
        if led && let Some((slot, path)) = Slot::leading(&self.0) {
            return Calling(Course::Boxed(Box::pin(async move {
                // It tells this caller too; if it takes too long, the others go on with somebody else.
                let _ = timeout_at(until, slot.lead(path)).await;
                waiting.until(until, name).await
            })));
        }
        if wanted {
            self.0.kick();
        }
        if let Rings::Begin(runtime) = &rings {
            self.0.ring_on(runtime);
        }
        if matches!(rings, Rings::Alone) {
            let shared = Arc::clone(&self.0);
            return Calling(Course::Boxed(Box::pin(shared.look_until(until, waiting))));
        }
        Calling(Course::Watched { waiting, until, name })
    }
}

impl<F: Flights> Shared<F> {
    /// What a caller waits for who has his own clock.
    async fn look_until(
        self: Arc<Self>,
        until: Instant,
        waiting: Waiting<Outcome<F>>,
    ) -> Outcome<F> {
        loop {
            let look = until.min(Instant::now() + self.stall);
            match waiting.by(look).await {
                Some(outcome) => return outcome,
                None if look == until => return waiting.over(self.name),
                None => {
                    self.kick();
                }
            }
        }
    }

    /// Sees to it that somebody takes what stands in the queue; false if nobody will.
    fn kick(self: &Arc<Self>) -> bool {
        let here = Handle::try_current().ok();
        for runtime in here.iter().chain(&self.home) {
            let mut lane = self.lane.lock();
            if !lane.wants_a_flight(Instant::now()) {
                return true;
            }
            let slot = Slot::coming(self, &mut lane);
            drop(lane);
            // A runtime that has ended drops what is spawned on it at once.
            if !runtime.spawn(slot.fly()).is_finished() {
                return true;
            }
        }
        let mut lane = self.lane.lock();
        !lane.wants_a_flight(Instant::now()) || lane.is_busy()
    }

    /// When a flight that was begun now is surely over, if its runtime runs at all.
    fn patience(&self) -> Instant {
        Instant::now() + self.deadline * 2 + PAUSE
    }
}

/// An error of a step that had been sent before: that one may have run.
fn doubtful(name: &'static str, sent: u32, error: Error) -> Error {
    match (sent, error.kind()) {
        (0, _) | (_, ErrorKind::Timeout) => error,
        _ => Error::new(ErrorKind::Timeout, name).with(error),
    }
}
