//! Batches of several calls, sent by a task or by a leader.

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
    BatchFault, BatchTransport, BatcherInner, CallOutcome, CallReply, RETRY_PAUSE,
    lane_queue::{LaneQueue, QueuedCall},
};
use crate::error::{Error, ErrorKind};

/// Size of a batch after which it pays to wait for the next calls of its callers.
const FOLLOW_UP_THRESHOLD: usize = 4;

/// Right to be in flight on a lane. Dropping it lets the next calls go.
pub(super) struct BatchSlot<F: BatchTransport> {
    pub(super) inner: Arc<BatcherInner<F>>,
    id: u64,
    /// The task of this slot runs.
    task_started: bool,
    /// It has taken calls that are not on the wire yet.
    dequeuing: bool,
    /// Calls of the batch, until they are answered.
    batch: Vec<QueuedCall<F>>,
}

impl<F: BatchTransport> BatchSlot<F> {
    /// Creates the slot of a caller that sends now.
    pub(super) fn for_caller(shared: &Arc<BatcherInner<F>>, lane: &mut LaneQueue<F>) -> Self {
        let id = lane.register_batch(true, shared.batch_expiry());
        Self {
            inner: Arc::clone(shared),
            id,
            task_started: true,
            dequeuing: false,
            batch: Vec::new(),
        }
    }

    /// Creates the slot of a task that will take calls from the queue.
    pub(super) fn for_task(shared: &Arc<BatcherInner<F>>, lane: &mut LaneQueue<F>) -> Self {
        let id = lane.register_batch(false, shared.batch_expiry());
        Self {
            inner: Arc::clone(shared),
            id,
            task_started: false,
            dequeuing: false,
            batch: Vec::new(),
        }
    }

    /// Creates the slot of a leader, with all calls of the queue including its own. `None` if
    /// another sender takes them, or no connection is ready. The leader has to put them on the wire
    /// before it awaits anything.
    pub(super) fn for_leader(shared: &Arc<BatcherInner<F>>) -> Option<(Self, F::BatchConnection)> {
        let path = shared.transport.connection().now_or_never()?.ok()?;
        let mut lane = shared.queue.lock();
        if lane.calls.is_empty() || !lane.allows_leader(Instant::now()) || !lane.begin_dequeue() {
            return None;
        }
        let mut slot = Self::for_caller(shared, &mut lane);
        slot.dequeuing = true;
        slot.batch = lane.drain_batch();
        drop(lane);
        slot.retain_sendable();
        Some((slot, path))
    }

    /// Sends one batch in the future of a caller. Calls without a reply when it ends or is dropped
    /// continue with another sender.
    pub(super) async fn send_as_leader(mut self, mut path: F::BatchConnection) {
        match self.send(&mut path, false).await {
            Ok(Ok(replies)) => self.deliver_replies(replies),
            Ok(Err(BatchFault::NoScript | BatchFault::NotExecuted)) => {
                self.batch.iter_mut().for_each(QueuedCall::undo_attempt);
            }
            Ok(Err(BatchFault::ConnectionLost)) => {}
            Ok(Err(BatchFault::Failed(error))) => self.fail_all(&error),
            Err(_) => {
                self.inner.transport.handle_timeout(&path);
                self.fail_all(&Error::new(ErrorKind::Timeout, self.inner.script_name));
            }
        }
    }

    /// Sends batches until the queue is empty.
    pub(super) async fn run(mut self) {
        self.task_started = true;
        let mut by_text = false;
        while self.has_work() {
            by_text = self.send_next_batch(by_text).await;
        }
    }

    /// Returns true if there are calls to send. Otherwise the batch is no longer in flight.
    fn has_work(&mut self) -> bool {
        let mut lane = self.inner.queue.lock();
        if self.batch.is_empty() && lane.calls.is_empty() {
            lane.finish_batch(self.id);
            return false;
        }
        lane.mark_returned(self.id, self.inner.batch_expiry());
        true
    }

    /// Sends the calls that it has, or else the next of the queue. Returns true if the server needs
    /// the text of the script.
    async fn send_next_batch(&mut self, by_text: bool) -> bool {
        let (shared, name) = (Arc::clone(&self.inner), self.inner.script_name);
        let path = timeout(shared.deadline, shared.transport.connection()).await;
        let path = path.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, name)));
        self.dequeue_batch().await;
        let mut path = match path {
            Ok(path) if !self.batch.is_empty() => path,
            other => {
                self.finish_dequeue();
                if let Err(error) = other {
                    self.fail_all(&error);
                }
                return false;
            }
        };
        let answer = self.send(&mut path, by_text).await;
        match answer {
            Ok(Ok(replies)) => {
                let company = self.batch.len() >= FOLLOW_UP_THRESHOLD;
                self.deliver_replies(replies);
                if company {
                    self.yield_to_callers().await;
                }
            }
            Ok(Err(fault)) => return self.handle_fault(fault).await,
            Err(_) => {
                shared.transport.handle_timeout(&path);
                self.fail_all(&Error::new(ErrorKind::Timeout, name));
            }
        }
        false
    }

    /// Puts the taken calls on the wire, and waits for the reply until the last of their deadlines.
    async fn send(
        &mut self,
        path: &mut F::BatchConnection,
        by_text: bool,
    ) -> Result<Result<Vec<F::Reply>, BatchFault>, Elapsed> {
        let shared = Arc::clone(&self.inner);
        let until = self.batch.iter().map(|entry| entry.deadline).max();
        let load = shared.transport.encode(self.batch.iter().map(|entry| &entry.command), by_text);
        let mut sent = pin!(shared.transport.send(path, &load));
        // The first poll puts the batch on the wire, whatever is left of tokio's budget. Nothing is
        // awaited between taking the calls and this.
        let first = poll_fn(|cx| Poll::Ready(pin!(unconstrained(sent.as_mut())).poll(cx))).await;
        self.finish_dequeue();
        match first {
            Poll::Ready(answer) => Ok(answer),
            Poll::Pending => timeout_at(until.unwrap_or_else(Instant::now), sent).await,
        }
    }

    async fn handle_fault(&mut self, fault: BatchFault) -> bool {
        match fault {
            BatchFault::NoScript => {
                self.batch.iter_mut().for_each(QueuedCall::undo_attempt);
                return true;
            }
            BatchFault::NotExecuted => {
                self.batch.iter_mut().for_each(QueuedCall::undo_attempt);
                sleep(RETRY_PAUSE).await;
            }
            BatchFault::ConnectionLost if !F::REPEATABLE => {
                self.fail_all(&Error::new(ErrorKind::Timeout, self.inner.script_name));
            }
            BatchFault::ConnectionLost => {
                if self.batch.iter().any(|entry| entry.attempts > 1) {
                    sleep(RETRY_PAUSE).await;
                }
            }
            BatchFault::Failed(error) => self.fail_all(&error),
        }
        false
    }

    /// Takes the calls to send now: those of its last batch that still wait, or else the front of
    /// the queue.
    async fn dequeue_batch(&mut self) {
        loop {
            if self.try_dequeue_batch() {
                return;
            }
            yield_once().await;
        }
    }

    fn try_dequeue_batch(&mut self) -> bool {
        let mut lane = self.inner.queue.lock();
        if !lane.begin_dequeue() {
            return false;
        }
        self.dequeuing = true;
        if self.batch.is_empty() {
            self.batch = lane.drain_batch();
        }
        let unawaited = self.batch.iter().all(|entry| entry.detached);
        lane.mark_sent(self.id, unawaited, self.inner.batch_expiry());
        // Outside of the lock: the next call wakes callers, which may run any code.
        drop(lane);
        self.retain_sendable();
        true
    }

    fn retain_sendable(&mut self) {
        let (name, now) = (self.inner.script_name, Instant::now());
        self.batch.retain_mut(|entry| entry.try_mark_sent(name, now));
    }

    /// Lets other senders take calls, since those taken here are on the wire.
    fn finish_dequeue(&mut self) {
        self.dequeuing = false;
        let mut lane = self.inner.queue.lock();
        lane.end_dequeue();
        let wanted = !lane.calls.is_empty() && lane.needs_batch(Instant::now());
        drop(lane);
        if wanted {
            self.inner.ensure_batch_task();
        }
    }

    fn deliver_replies(&mut self, replies: Vec<F::Reply>) {
        let mut replies = replies.into_iter();
        for QueuedCall { command: step, cell: ticket, attempts: sent, .. } in self.batch.drain(..) {
            let first = replies.next();
            let second = if F::reply_count(&step) > 1 { replies.next() } else { None };
            let answer = pair_replies::<F>(&step, first, second, sent, self.inner.script_name);
            ticket.complete(answer);
        }
    }

    /// Lets the callers go first that have just received replies: they often call again at once.
    async fn yield_to_callers(&mut self) {
        self.inner.queue.lock().mark_returned(self.id, self.inner.batch_expiry());
        yield_once().await;
    }

    /// Fails all calls of the batch.
    fn fail_all(&mut self, error: &Error) {
        for entry in self.batch.drain(..) {
            entry.fail_last_attempt(self.inner.script_name, error);
        }
    }
}

impl<F: BatchTransport> Drop for BatchSlot<F> {
    fn drop(&mut self) {
        let mut lane = self.inner.queue.lock();
        lane.finish_batch(self.id);
        if self.dequeuing {
            lane.end_dequeue();
        }
        // The task ended early, with its runtime. Calls that still wait continue with another
        // sender.
        let mut doubtful = Vec::new();
        for entry in self.batch.drain(..).rev() {
            if F::REPEATABLE || entry.attempts == 0 {
                lane.calls.push_front(entry);
            } else {
                doubtful.push(entry);
            }
        }
        let wanted =
            self.task_started && !lane.calls.is_empty() && lane.needs_batch(Instant::now());
        drop(lane);
        for entry in doubtful.into_iter().rev() {
            entry.fail(
                self.inner.script_name,
                Error::new(ErrorKind::Timeout, self.inner.script_name),
            );
        }
        if wanted {
            self.inner.ensure_batch_task();
        }
    }
}

pub(super) fn pair_replies<F: BatchTransport>(
    step: &F::Command,
    first: Option<F::Reply>,
    second: Option<F::Reply>,
    sent: u32,
    name: &'static str,
) -> CallOutcome<F> {
    match (first, second) {
        (Some(first), second) if second.is_some() == (F::reply_count(step) > 1) => {
            Ok(CallReply { first, second, attempts: sent })
        }
        _ => Err(Error::new(ErrorKind::Protocol, name)),
    }
}

/// Yields once to tasks that are ready. Unlike tokio's `yield_now`, it does not poll the sockets
/// first.
async fn yield_once() {
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
