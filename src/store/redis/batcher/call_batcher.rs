//! `CallBatcher`: sends calls that arrive together in one command.

use std::{future::Future, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    time::{Instant, timeout_at},
};

use super::batched_call::BatchedCall;
use super::{
    batch_slot::BatchSlot,
    batched_call::BatchedCallState,
    deadline_timer::TimerAssignment,
    lane_queue::{LaneQueue, QueuedCall},
    outcome_cell::{OutcomeCell, OutcomeReceiver},
};
use crate::error::{Error, ErrorKind};

/// Largest weight of a batch of commands like those of `LOCK_BATCH`.
pub(in super::super) const MAX_BATCH_WEIGHT: usize = 32;

/// Divisor of the deadline, for the time after which other calls do not wait for a batch any more:
/// the future that has its reply may not be polled.
pub(super) const STALL_DIVISOR: u32 = 4;

/// Pause before another connection is tried, where the last one did not help.
pub(in super::super) const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Encoding and sending of batches.
pub(in super::super) trait BatchTransport: Send + Sync + 'static {
    type Command: Send + Sync + 'static;
    type Reply: Send + 'static;
    /// Connection to the server.
    type BatchConnection: Send;
    /// Encoded batch.
    type Payload: Send;

    /// Largest weight of a batch, bounded as its script is.
    const MAX_WEIGHT: usize = MAX_BATCH_WEIGHT;
    /// Number of waiting calls that are sent although one batch is in flight: they are prepared
    /// while the server executes it.
    const PIPELINE_THRESHOLD: usize = Self::MAX_WEIGHT;
    /// Sends calls again that may have run. If false, their callers get a timeout.
    const REPEATABLE: bool = true;

    /// Returns the weight of a command in a batch, at least 1.
    fn weight(step: &Self::Command) -> usize;

    /// Returns the number of replies to a command: 1 or 2.
    fn reply_count(step: &Self::Command) -> usize;

    fn connection(&self) -> impl Future<Output = Result<Self::BatchConnection, Error>> + Send;

    fn encode<'a>(
        &self,
        steps: impl Iterator<Item = &'a Self::Command> + Clone,
        by_text: bool,
    ) -> Self::Payload;

    /// Sends a batch. Payloads are put on the wire in the order of the first polls.
    fn send<'a>(
        &'a self,
        path: &'a mut Self::BatchConnection,
        load: &'a Self::Payload,
    ) -> impl Future<Output = Result<Vec<Self::Reply>, BatchFault>> + Send + 'a;

    /// Handles the timeout of a batch on this connection.
    fn handle_timeout(&self, path: &Self::BatchConnection);
}

/// Reason why a batch failed.
pub(in super::super) enum BatchFault {
    /// The server does not know the script, which has not run.
    NoScript,
    /// The server did not run it: it is no master, or is still loading.
    NotExecuted,
    /// The connection broke: it may have run.
    ConnectionLost,
    /// Holds the error for each call of the batch.
    Failed(Error),
}

/// Replies to a command, and the number of times that it was sent. With more than one, an earlier
/// copy may have run.
#[derive(Debug)]
pub(in super::super) struct CallReply<R> {
    pub(in super::super) first: R,
    pub(in super::super) second: Option<R>,
    pub(in super::super) attempts: u32,
}

pub(super) type CallOutcome<F> = Result<CallReply<<F as BatchTransport>::Reply>, Error>;

/// Batcher of the calls of one lane.
pub(in super::super) struct CallBatcher<F: BatchTransport>(Arc<BatcherInner<F>>);

pub(super) struct BatcherInner<F: BatchTransport> {
    pub(super) transport: F,
    pub(super) script_name: &'static str,
    pub(super) deadline: Duration,
    /// Runtime on which the store was created.
    home_runtime: Option<Handle>,
    /// Time after which a batch counts as stalled, and interval at which waiting callers check for
    /// that.
    pub(super) stall_timeout: Duration,
    pub(super) queue: Mutex<LaneQueue<F>>,
}

impl<F: BatchTransport> CallBatcher<F> {
    pub(in super::super) fn new(flights: F, name: &'static str, deadline: Duration) -> Self {
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

    /// Sends a command, alone or with others.
    ///
    /// If the future is dropped, the command may stay unsent or may run; see the module's
    /// documentation.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn stores its arguments twice in its future"
    )]
    pub(in super::super) fn call(
        &self,
        step: F::Command,
        until: Instant,
    ) -> impl Future<Output = CallOutcome<F>> + Send {
        async move { self.start_call(step, Instant::now(), until).await }
    }

    /// Queues a command at once. It is sent with the next batch, even if the future is dropped.
    /// `None` if nothing would ever send it: there is no runtime, and no batch is in flight.
    pub(in super::super) fn submit(
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

    /// Like `call`, but a command that has to wait is queued when this returns. Poll the result at
    /// once: a caller that sends alone, or leads, occupies the lane and sends with its first poll.
    pub(in super::super) fn start_call(
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
                // Completes this call too. After the deadline the other calls continue with another
                // sender.
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
    /// Waits for the outcome with a timer of its own, and checks for stalled batches.
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

    /// Ensures that a task takes the calls of the queue. Returns false if none will.
    pub(super) fn ensure_batch_task(self: &Arc<Self>) -> bool {
        let here = Handle::try_current().ok();
        for runtime in here.iter().chain(&self.home_runtime) {
            let mut lane = self.queue.lock();
            if !lane.needs_batch(Instant::now()) {
                return true;
            }
            let slot = BatchSlot::for_task(self, &mut lane);
            drop(lane);
            // A runtime that has ended drops the task at once.
            if !runtime.spawn(slot.run()).is_finished() {
                return true;
            }
        }
        let mut lane = self.queue.lock();
        !lane.needs_batch(Instant::now()) || lane.has_in_flight()
    }

    /// Returns the time by which a batch that starts now is over, if its runtime makes progress.
    pub(super) fn batch_expiry(&self) -> Instant {
        Instant::now() + self.deadline * 2 + RETRY_PAUSE
    }
}

/// Returns the error of a call that was sent `sent` times before. If any, a copy may have run, and
/// the error is a timeout.
pub(super) fn in_doubt_error(name: &'static str, sent: u32, error: Error) -> Error {
    match (sent, error.kind()) {
        (0, _) | (_, ErrorKind::Timeout) => error,
        _ => Error::new(ErrorKind::Timeout, name).with_source(error),
    }
}
