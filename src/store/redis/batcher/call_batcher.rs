//! `CallBatcher`: sends calls that arrive together in one command.

use std::{
    future::{Future, pending},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout_at},
};

use super::{
    batch_sender::BatchSender,
    batch_transport::{BatchTransport, CallReply},
    batched_call::{BatchedCall, BatchedCallState},
    deadline_timer::TimerAssignment,
    lane_queue::{LaneQueue, QueuedCall},
    outcome_cell::{OutcomeCell, OutcomeReceiver},
};
use crate::error::{Error, ErrorKind};

/// Divisor of the deadline, for the time after which other calls do not wait for a batch any more:
/// the future that has its reply may not be polled.
pub(super) const STALL_DIVISOR: u32 = 4;

/// Pause before another connection is tried, where the last one did not help.
pub(in super::super) const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Returns true if the reply to another copy can still be expected before the deadline. A copy
/// without a reply puts its call in doubt, and a refused call is not in doubt yet.
pub(super) fn has_time_for_reply(deadline: Instant, now: Instant) -> bool {
    deadline.saturating_duration_since(now) > RETRY_PAUSE * 2
}

/// Pauses after a refusal, before another copy is sent. Near the deadline it lasts until the caller
/// drops it at the deadline.
pub(in super::super) async fn pause_after_refusal(deadline: Instant) {
    sleep(RETRY_PAUSE).await;
    if !has_time_for_reply(deadline, Instant::now()) {
        pending::<()>().await;
    }
}

/// Replies of one call, or its error.
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
    pub(in super::super) fn new(
        transport: F,
        script_name: &'static str,
        deadline: Duration,
    ) -> Self {
        let stall_timeout = deadline / STALL_DIVISOR;
        Self(Arc::new(BatcherInner {
            transport,
            script_name,
            deadline,
            home_runtime: Handle::try_current().ok(),
            stall_timeout,
            queue: Mutex::new(LaneQueue::new(stall_timeout)),
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
        command: F::Command,
        deadline: Instant,
    ) -> impl Future<Output = CallOutcome<F>> + Send {
        async move { self.start_call(command, Instant::now(), deadline).await }
    }

    /// Queues a command at once. It is sent with the next batch, even if the future is dropped.
    /// `None` if nothing would ever send it: there is no runtime, and no batch is in flight.
    pub(in super::super) fn submit(
        &self,
        command: F::Command,
        deadline: Instant,
    ) -> Option<impl Future<Output = CallOutcome<F>> + Send + use<F>> {
        let cell = Arc::new(OutcomeCell::default());
        let call =
            QueuedCall { command, cell: Arc::clone(&cell), deadline, detached: true, attempts: 0 };
        self.0.queue.lock().calls.push_back(call);
        if !self.0.ensure_batch_task() {
            cell.abandon();
            return None;
        }
        let (receiver, script_name) = (OutcomeReceiver::detached(cell), self.0.script_name);
        Some(receiver.outcome_by(deadline, script_name))
    }

    /// Like `call`, but a command that has to wait is queued when this returns. Poll the result at
    /// once: a caller that sends alone, or leads, occupies the lane and sends with its first poll.
    pub(in super::super) fn start_call(
        &self,
        command: F::Command,
        now: Instant,
        deadline: Instant,
    ) -> BatchedCall<F> {
        let mut queue = self.0.queue.lock();
        if queue.is_idle(now) {
            let sender = BatchSender::for_caller(&self.0, &mut queue);
            drop(queue);
            return BatchedCall(BatchedCallState::Boxed(Box::pin(
                sender.send_single(command, deadline),
            )));
        }
        let cell = queue.timer.take_cell();
        let call =
            QueuedCall { command, cell: Arc::clone(&cell), deadline, detached: false, attempts: 0 };
        queue.calls.push_back(call);
        let (needs_batch, may_lead) = (queue.needs_batch(now), queue.allows_leader(now));
        let timer =
            if may_lead { TimerAssignment::Own } else { queue.timer.register(deadline, &cell) };
        drop(queue);
        let (receiver, script_name) = (OutcomeReceiver::new(cell), self.0.script_name);
        if may_lead && let Some((sender, connection)) = BatchSender::for_leader(&self.0) {
            return BatchedCall(BatchedCallState::Boxed(Box::pin(async move {
                // Completes this call too. After the deadline the other calls continue with another
                // sender.
                let _ = timeout_at(deadline, sender.send_as_leader(connection)).await;
                receiver.outcome_by(deadline, script_name).await
            })));
        }
        if needs_batch {
            self.0.ensure_batch_task();
        }
        if let TimerAssignment::StartShared(runtime) = &timer {
            self.0.spawn_timer(runtime);
        }
        if matches!(timer, TimerAssignment::Own) {
            let batcher = Arc::clone(&self.0);
            return BatchedCall(BatchedCallState::Boxed(Box::pin(
                batcher.await_with_own_timer(deadline, receiver),
            )));
        }
        BatchedCall(BatchedCallState::Queued { receiver, deadline, script_name })
    }
}

impl<F: BatchTransport> BatcherInner<F> {
    /// Waits for the outcome with a timer of its own, and checks for stalled batches.
    async fn await_with_own_timer(
        self: Arc<Self>,
        deadline: Instant,
        receiver: OutcomeReceiver<CallOutcome<F>>,
    ) -> CallOutcome<F> {
        loop {
            let check_at = deadline.min(Instant::now() + self.stall_timeout);
            match receiver.try_outcome_by(check_at).await {
                Some(outcome) => return outcome,
                None if check_at == deadline => return receiver.abandon(self.script_name),
                None => {
                    self.ensure_batch_task();
                }
            }
        }
    }

    /// Ensures that a task takes the calls of the queue. Returns false if none will.
    pub(super) fn ensure_batch_task(self: &Arc<Self>) -> bool {
        let current = Handle::try_current().ok();
        for runtime in current.iter().chain(&self.home_runtime) {
            let mut queue = self.queue.lock();
            if !queue.needs_batch(Instant::now()) {
                return true;
            }
            let sender = BatchSender::for_task(self, &mut queue);
            drop(queue);
            // A runtime that has ended drops the task at once.
            if !runtime.spawn(sender.run()).is_finished() {
                return true;
            }
        }
        let mut queue = self.queue.lock();
        !queue.needs_batch(Instant::now()) || queue.has_in_flight()
    }

    /// Returns the time by which a batch that starts now is over, if its runtime makes progress.
    pub(super) fn batch_expiry(&self) -> Instant {
        Instant::now() + self.deadline * 2 + RETRY_PAUSE
    }
}

/// Returns the error of a call that was sent `attempts` times before. If any, a copy may have run,
/// and the error is a timeout.
pub(super) fn in_doubt_error(script_name: &'static str, attempts: u32, error: Error) -> Error {
    match (attempts, error.kind()) {
        (0, _) | (_, ErrorKind::Timeout) => error,
        _ => Error::new(ErrorKind::Timeout, script_name).with_source(error),
    }
}
