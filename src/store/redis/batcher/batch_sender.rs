//! `BatchSender`: takes calls from the queue of a lane, and sends them as one batch, in a task or
//! in the future of a leader.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use futures_util::FutureExt as _;
use tokio::{
    task::unconstrained,
    time::{Instant, error::Elapsed, timeout, timeout_at},
};

use super::{
    BatchFault, BatchTransport, BatcherInner,
    lane_queue::{LaneQueue, QueuedCall},
};
use crate::{
    error::{Error, ErrorKind},
    instruments::record_batch_size,
};

/// Size of a batch after which it pays to wait for the next calls of its callers.
const FOLLOW_UP_THRESHOLD: usize = 4;

/// Sender of batches, which counts as in flight on its lane. Dropping it lets the next calls go.
pub(super) struct BatchSender<F: BatchTransport> {
    pub(super) inner: Arc<BatcherInner<F>>,
    id: u64,
    /// The task of this sender runs.
    task_started: bool,
    /// It has taken calls that are not on the wire yet.
    dequeuing: bool,
    /// Calls of the batch, until they are answered.
    pub(super) batch: Vec<QueuedCall<F>>,
}

impl<F: BatchTransport> BatchSender<F> {
    /// Creates the sender of a caller that sends now.
    pub(super) fn for_caller(batcher: &Arc<BatcherInner<F>>, queue: &mut LaneQueue<F>) -> Self {
        let id = queue.register_batch(true, batcher.batch_expiry());
        Self::with_id(batcher, id, true)
    }

    /// Creates the sender of a task that will take calls from the queue.
    pub(super) fn for_task(batcher: &Arc<BatcherInner<F>>, queue: &mut LaneQueue<F>) -> Self {
        let id = queue.register_batch(false, batcher.batch_expiry());
        Self::with_id(batcher, id, false)
    }

    fn with_id(batcher: &Arc<BatcherInner<F>>, id: u64, task_started: bool) -> Self {
        Self { inner: Arc::clone(batcher), id, task_started, dequeuing: false, batch: Vec::new() }
    }

    /// Creates the sender of a leader, with all calls of the queue including its own. `None` if
    /// another sender takes them, or no connection is ready. The leader has to put them on the wire
    /// before it awaits anything.
    pub(super) fn for_leader(batcher: &Arc<BatcherInner<F>>) -> Option<(Self, F::BatchConnection)> {
        let connection = batcher.transport.connection().now_or_never()?.ok()?;
        let mut queue = batcher.queue.lock();
        if queue.calls.is_empty() || !queue.allows_leader(Instant::now()) || !queue.begin_dequeue()
        {
            return None;
        }
        let mut sender = Self::for_caller(batcher, &mut queue);
        sender.dequeuing = true;
        sender.batch = queue.drain_batch();
        drop(queue);
        sender.retain_sendable();
        Some((sender, connection))
    }

    /// Sends one batch in the future of a caller. Calls without a reply when it ends or is dropped
    /// continue with another sender.
    pub(super) async fn send_as_leader(mut self, mut connection: F::BatchConnection) {
        match self.send(&mut connection, false).await {
            Ok(Ok(replies)) => self.deliver_replies(replies),
            Ok(Err(BatchFault::NoScript | BatchFault::NotExecuted)) => {
                self.batch.iter_mut().for_each(QueuedCall::undo_attempt);
            }
            Ok(Err(BatchFault::ConnectionLost)) => {}
            Ok(Err(BatchFault::Failed(error))) => self.fail_all(&error),
            Err(_) => {
                self.inner.transport.handle_timeout(&connection);
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
        let mut queue = self.inner.queue.lock();
        if self.batch.is_empty() && queue.calls.is_empty() {
            queue.finish_batch(self.id);
            return false;
        }
        queue.mark_returned(self.id, self.inner.batch_expiry());
        true
    }

    /// Sends the calls that it has, or else the next of the queue. Returns true if the server needs
    /// the text of the script.
    async fn send_next_batch(&mut self, by_text: bool) -> bool {
        let (batcher, script_name) = (Arc::clone(&self.inner), self.inner.script_name);
        let connection = timeout(batcher.deadline, batcher.transport.connection()).await;
        let connection =
            connection.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, script_name)));
        self.dequeue_batch().await;
        let mut connection = match connection {
            Ok(connection) if !self.batch.is_empty() => connection,
            unused => {
                self.finish_dequeue();
                if let Err(error) = unused {
                    self.fail_all(&error);
                }
                return false;
            }
        };
        let answer = self.send(&mut connection, by_text).await;
        match answer {
            Ok(Ok(replies)) => {
                let expects_follow_up = self.batch.len() >= FOLLOW_UP_THRESHOLD;
                self.deliver_replies(replies);
                if expects_follow_up {
                    self.yield_to_callers().await;
                }
            }
            Ok(Err(fault)) => return self.handle_fault(fault).await,
            Err(_) => {
                batcher.transport.handle_timeout(&connection);
                self.fail_all(&Error::new(ErrorKind::Timeout, script_name));
            }
        }
        false
    }

    /// Puts the taken calls on the wire, and waits for the reply until the last of their deadlines.
    async fn send(
        &mut self,
        connection: &mut F::BatchConnection,
        by_text: bool,
    ) -> Result<Result<Vec<F::Reply>, BatchFault>, Elapsed> {
        let batcher = Arc::clone(&self.inner);
        let last_deadline = self.batch.iter().map(|call| call.deadline).max();
        record_batch_size(batcher.script_name, self.batch.len());
        let payload =
            batcher.transport.encode(self.batch.iter().map(|call| &call.command), by_text);
        let mut reply = pin!(batcher.transport.send(connection, &payload));
        // The first poll puts the batch on the wire, whatever is left of tokio's budget. Nothing is
        // awaited between taking the calls and this.
        let first_poll =
            poll_fn(|cx| Poll::Ready(pin!(unconstrained(reply.as_mut())).poll(cx))).await;
        self.finish_dequeue();
        match first_poll {
            Poll::Ready(answer) => Ok(answer),
            Poll::Pending => timeout_at(last_deadline.unwrap_or_else(Instant::now), reply).await,
        }
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
        let mut queue = self.inner.queue.lock();
        if !queue.begin_dequeue() {
            return false;
        }
        self.dequeuing = true;
        if self.batch.is_empty() {
            self.batch = queue.drain_batch();
        }
        let unawaited = self.batch.iter().all(|call| call.detached);
        queue.mark_sent(self.id, unawaited, self.inner.batch_expiry());
        // Outside of the lock: the next call wakes callers, which may run any code.
        drop(queue);
        self.retain_sendable();
        true
    }

    fn retain_sendable(&mut self) {
        let (script_name, now) = (self.inner.script_name, Instant::now());
        self.batch.retain_mut(|call| call.try_mark_sent(script_name, now));
    }

    /// Lets other senders take calls, since those taken here are on the wire.
    fn finish_dequeue(&mut self) {
        self.dequeuing = false;
        let mut queue = self.inner.queue.lock();
        queue.end_dequeue();
        let needs_batch = !queue.calls.is_empty() && queue.needs_batch(Instant::now());
        drop(queue);
        if needs_batch {
            self.inner.ensure_batch_task();
        }
    }

    /// Lets the callers go first that have just received replies: they often call again at once.
    async fn yield_to_callers(&mut self) {
        self.inner.queue.lock().mark_returned(self.id, self.inner.batch_expiry());
        yield_once().await;
    }
}

impl<F: BatchTransport> Drop for BatchSender<F> {
    fn drop(&mut self) {
        let mut queue = self.inner.queue.lock();
        queue.finish_batch(self.id);
        if self.dequeuing {
            queue.end_dequeue();
        }
        // The task ended early, with its runtime. Calls that still wait continue with another
        // sender.
        let mut calls_in_doubt = Vec::new();
        for call in self.batch.drain(..).rev() {
            if F::REPEATABLE || call.attempts == 0 {
                queue.calls.push_front(call);
            } else {
                calls_in_doubt.push(call);
            }
        }
        let needs_batch =
            self.task_started && !queue.calls.is_empty() && queue.needs_batch(Instant::now());
        drop(queue);
        for call in calls_in_doubt.into_iter().rev() {
            call.fail(
                self.inner.script_name,
                Error::new(ErrorKind::Timeout, self.inner.script_name),
            );
        }
        if needs_batch {
            self.inner.ensure_batch_task();
        }
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
