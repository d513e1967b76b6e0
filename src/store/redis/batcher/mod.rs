//! Calls that wait together go together.
//!
//! A [`CallBatcher`] stands before one lane. A call that finds it idle is sent by the caller itself, in its
//! own task. Those that come while others are under way stand in a queue, and leave together when one of
//! them returns, or when they fill a flight. A caller who finds nothing in it but what was put, and
//! that nobody has come for yet, takes it along, and is spared the way through another task. What a flight is, and how it is sent, is a
//! [`BatchTransport`]'.
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

mod batch_slot;
mod batched_call;
mod deadline_timer;
mod lane_queue;
mod outcome_cell;
mod single_call;
#[cfg(test)]
mod tests;

use std::{future::Future, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    time::{Instant, timeout_at},
};

pub(super) use self::batched_call::BatchedCall;
use self::{
    batch_slot::BatchSlot,
    batched_call::BatchedCallState,
    deadline_timer::TimerAssignment,
    lane_queue::{LaneQueue, QueuedCall},
    outcome_cell::{OutcomeCell, OutcomeReceiver},
};
use crate::error::{Error, ErrorKind};

/// Steps of one flight at most, for those that are as large as those of `calls.lua`.
pub(super) const MAX_BATCH_WEIGHT: usize = 32;

/// Part of the deadline after which nobody waits for a flight of others: whoever has its answer may not come for it.
const STALL_DIVISOR: u32 = 4;

/// Pause before another socket is tried, where the last one did not help.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// How steps are sent.
pub(super) trait BatchTransport: Send + Sync + 'static {
    type Command: Send + Sync + 'static;
    type Reply: Send + 'static;
    /// A way to the server.
    type BatchConnection: Send;
    /// Steps made ready to be sent.
    type Payload: Send;

    /// How much a flight takes: bounded as its script is.
    const MAX_WEIGHT: usize = MAX_BATCH_WEIGHT;
    /// How many steps need not wait for the one flight that is under way: while the server is at that one, the next
    /// is made ready.
    const PIPELINE_THRESHOLD: usize = Self::MAX_WEIGHT;
    /// Whether what may have run is sent again. If not, its caller is told that it may have.
    const REPEATABLE: bool = true;

    /// How much of a flight it takes, at least 1.
    fn weight(step: &Self::Command) -> usize;

    /// How many replies it gets: 1 or 2.
    fn reply_count(step: &Self::Command) -> usize;

    fn connection(&self) -> impl Future<Output = Result<Self::BatchConnection, Error>> + Send;

    fn encode<'a>(
        &self,
        steps: impl Iterator<Item = &'a Self::Command> + Clone,
        by_text: bool,
    ) -> Self::Payload;

    /// Sends it. Loads are on the wire in the order of the first polls.
    fn send<'a>(
        &'a self,
        path: &'a mut Self::BatchConnection,
        load: &'a Self::Payload,
    ) -> impl Future<Output = Result<Vec<Self::Reply>, BatchFault>> + Send + 'a;

    /// No answer came on this path in time.
    fn handle_timeout(&self, path: &Self::BatchConnection);
}

/// Why a flight has not arrived.
pub(super) enum BatchFault {
    /// The server does not know the script; it has not run.
    NoScript,
    /// The server would not run it: no master, or still loading.
    NotExecuted,
    /// The connection broke: it may have run.
    ConnectionLost,
    /// What every step of it is told.
    Failed(Error),
}

/// The replies to a step, and how often it was sent: more than once, and an earlier one may have run.
#[derive(Debug)]
pub(super) struct CallReply<R> {
    pub(super) first: R,
    pub(super) second: Option<R>,
    pub(super) attempts: u32,
}

type CallOutcome<F> = Result<CallReply<<F as BatchTransport>::Reply>, Error>;

/// The calls of one lane.
pub(super) struct CallBatcher<F: BatchTransport>(Arc<BatcherInner<F>>);

struct BatcherInner<F: BatchTransport> {
    transport: F,
    script_name: &'static str,
    deadline: Duration,
    /// The runtime it was made on.
    home_runtime: Option<Handle>,
    /// Who stands in the queue for so long looks whether those under way do too.
    stall_timeout: Duration,
    queue: Mutex<LaneQueue<F>>,
}

impl<F: BatchTransport> CallBatcher<F> {
    pub(super) fn new(flights: F, name: &'static str, deadline: Duration) -> Self {
        let (home, stall) = (Handle::try_current().ok(), deadline / STALL_DIVISOR);
        let lane = Mutex::new(LaneQueue::new(stall));
        Self(Arc::new(BatcherInner {
            transport: flights,
            script_name: name,
            deadline,
            home_runtime: home,
            stall_timeout: stall,
            queue: lane,
        }))
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
        step: F::Command,
        until: Instant,
    ) -> impl Future<Output = CallOutcome<F>> + Send {
        async move { self.start_call(step, Instant::now(), until).await }
    }

    /// Puts a step into the queue at once; it goes with the next flight, whatever becomes of the future.
    /// `None` if nothing would ever send it: there is no runtime here, and nobody else is under way.
    pub(super) fn submit(
        &self,
        step: F::Command,
        until: Instant,
    ) -> Option<impl Future<Output = CallOutcome<F>> + Send + use<F>> {
        let ticket = Arc::new(OutcomeCell::default());
        let entry = QueuedCall {
            command: step,
            cell: Arc::clone(&ticket),
            deadline: until,
            detached: true,
            attempts: 0,
        };
        self.0.queue.lock().calls.push_back(entry);
        if !self.0.ensure_batch_task() {
            ticket.abandon();
            return None;
        }
        let (waiting, name) = (OutcomeReceiver::detached(ticket), self.0.script_name);
        Some(waiting.outcome_by(until, name))
    }

    /// As `call`, but a step that waits for others stands in the queue when this returns. To be polled at once: who goes
    /// alone, or leads, holds the lane, and sends with the first poll.
    pub(super) fn start_call(
        &self,
        step: F::Command,
        now: Instant,
        until: Instant,
    ) -> BatchedCall<F> {
        let mut lane = self.0.queue.lock();
        if lane.is_idle(now) {
            let slot = BatchSlot::for_caller(&self.0, &mut lane);
            drop(lane);
            return BatchedCall(BatchedCallState::Boxed(Box::pin(slot.send_single(step, until))));
        }
        let ticket = lane.timer.take_cell();
        let entry = QueuedCall {
            command: step,
            cell: Arc::clone(&ticket),
            deadline: until,
            detached: false,
            attempts: 0,
        };
        lane.calls.push_back(entry);
        let (wanted, led) = (lane.needs_batch(now), lane.allows_leader(now));
        let rings = if led { TimerAssignment::Own } else { lane.timer.register(until, &ticket) };
        drop(lane);
        let (waiting, name) = (OutcomeReceiver::new(ticket), self.0.script_name);
        if led && let Some((slot, path)) = BatchSlot::for_leader(&self.0) {
            return BatchedCall(BatchedCallState::Boxed(Box::pin(async move {
                // It tells this caller too; if it takes too long, the others go on with somebody else.
                let _ = timeout_at(until, slot.send_as_leader(path)).await;
                waiting.outcome_by(until, name).await
            })));
        }
        if wanted {
            self.0.ensure_batch_task();
        }
        if let TimerAssignment::StartShared(runtime) = &rings {
            self.0.spawn_timer(runtime);
        }
        if matches!(rings, TimerAssignment::Own) {
            let shared = Arc::clone(&self.0);
            return BatchedCall(BatchedCallState::Boxed(Box::pin(
                shared.await_with_own_timer(until, waiting),
            )));
        }
        BatchedCall(BatchedCallState::Queued {
            receiver: waiting,
            deadline: until,
            script_name: name,
        })
    }
}

impl<F: BatchTransport> BatcherInner<F> {
    /// What a caller waits for who has his own clock.
    async fn await_with_own_timer(
        self: Arc<Self>,
        until: Instant,
        waiting: OutcomeReceiver<CallOutcome<F>>,
    ) -> CallOutcome<F> {
        loop {
            let look = until.min(Instant::now() + self.stall_timeout);
            match waiting.try_outcome_by(look).await {
                Some(outcome) => return outcome,
                None if look == until => return waiting.abandon(self.script_name),
                None => {
                    self.ensure_batch_task();
                }
            }
        }
    }

    /// Sees to it that somebody takes what stands in the queue; false if nobody will.
    fn ensure_batch_task(self: &Arc<Self>) -> bool {
        let here = Handle::try_current().ok();
        for runtime in here.iter().chain(&self.home_runtime) {
            let mut lane = self.queue.lock();
            if !lane.needs_batch(Instant::now()) {
                return true;
            }
            let slot = BatchSlot::for_task(self, &mut lane);
            drop(lane);
            // A runtime that has ended drops what is spawned on it at once.
            if !runtime.spawn(slot.run()).is_finished() {
                return true;
            }
        }
        let mut lane = self.queue.lock();
        !lane.needs_batch(Instant::now()) || lane.has_in_flight()
    }

    /// When a flight that was begun now is surely over, if its runtime runs at all.
    fn batch_expiry(&self) -> Instant {
        Instant::now() + self.deadline * 2 + RETRY_PAUSE
    }
}

/// An error of a step that had been sent before: that one may have run.
fn in_doubt_error(name: &'static str, sent: u32, error: Error) -> Error {
    match (sent, error.kind()) {
        (0, _) | (_, ErrorKind::Timeout) => error,
        _ => Error::new(ErrorKind::Timeout, name).with_source(error),
    }
}
