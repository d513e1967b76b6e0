//! `EmptyQueueCheck`: a cheap check that an empty queue is still empty, in place of a task poll.
//!
//! A task poll that finds nothing costs the server nine commands. Once one has found that no task
//! waits or runs, the next polls are idle polls: two commands that ask whether that is still so,
//! and extend the worker's registration as idle, through which a push wakes it. A full task poll
//! follows:
//!
//! - after a wake-up during the idle poll,
//! - after a reply other than a plain yes, or none,
//! - after `MAX_EMPTY_QUEUE_CHECKS` idle polls, since task polls also remove expired data.
//!
//! The registration ends by the store's clock, which may jump ahead. A push may then find no idle
//! worker until one of the next task polls, and waits for a poll, as after a lost wake-up.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    poll_until_answered::{AnsweredPoll, NotExecutedFlag, poll_until_answered},
    queue_registration::RegisteredQueues,
    queue_worker_loop::QueueWorkerLoop,
};
use crate::store::{Store, TaskPollCommand};

/// Interval of the polls of an idle worker, in case a wake-up is lost.
pub(super) const IDLE_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Time for which a worker is registered as idle; longer than `IDLE_POLL_INTERVAL`.
pub(super) const IDLE_REGISTRATION_TTL: Duration = Duration::from_secs(8);

/// Idle polls between two task polls: two minutes at most. With it, each further idle worker of a
/// fleet costs 0.46 commands a second, the share of the task polls included.
const MAX_EMPTY_QUEUE_CHECKS: u32 = 23;

/// Finding of a task poll, or of an idle poll after it, that the queue is empty.
#[derive(Clone, Copy)]
pub(super) struct EmptyQueueCheck {
    /// Time of the call that last extended the registration.
    renewed_at: Instant,
    check_count: u32,
}

/// Outcome of a poll.
#[expect(clippy::large_enum_variant, reason = "it is moved once, out of its future")]
pub(super) enum PollOrEmptyCheck {
    Polled(AnsweredPoll),
    StillEmpty(EmptyQueueCheck),
}

impl EmptyQueueCheck {
    pub(super) fn new(polled_at: Instant) -> Self {
        Self { renewed_at: polled_at, check_count: 0 }
    }

    /// Returns the renewed finding if the queue is still empty. An error is no answer: the task
    /// poll that follows waits for one.
    async fn confirm_still_empty(self, store: &Store, poll: &TaskPollCommand) -> Option<Self> {
        let now = Instant::now();
        let (queue, node, worker) =
            (poll.queue.clone(), poll.node.clone(), Arc::clone(&poll.worker));
        let extension = now.duration_since(self.renewed_at);
        let is_empty = store.backend().poll_idle(queue, node, worker, extension).await;
        is_empty
            .unwrap_or(false)
            .then_some(Self { renewed_at: now, check_count: self.check_count + 1 })
    }
}

/// Sends the task poll, unless an idle poll confirms that the queue is empty.
pub(super) async fn poll_unless_still_empty(
    store: Store,
    empty_check: Option<EmptyQueueCheck>,
    poll: TaskPollCommand,
    not_executed: NotExecutedFlag,
) -> PollOrEmptyCheck {
    if let Some(empty_check) = empty_check
        && let Some(renewed) = empty_check.confirm_still_empty(&store, &poll).await
    {
        return PollOrEmptyCheck::StillEmpty(renewed);
    }
    PollOrEmptyCheck::Polled(poll_until_answered(store, poll, not_executed).await)
}

impl QueueWorkerLoop {
    /// Returns the finding that the next poll may confirm instead of a full task poll.
    pub(super) fn take_empty_queue_check(&mut self) -> Option<EmptyQueueCheck> {
        let empty_check = self
            .empty_queue_check
            .take()
            .filter(|check| check.check_count < MAX_EMPTY_QUEUE_CHECKS);
        empty_check.filter(|_| {
            !self.was_woken && !self.starts_nothing() && self.pending_settlements.is_empty()
        })
    }

    pub(super) fn apply_outcome(&mut self, outcome: PollOrEmptyCheck) {
        match outcome {
            PollOrEmptyCheck::Polled(answer) => {
                RegisteredQueues::register_again(&self.worker.store, &self.worker.queue);
                self.apply_answer(answer);
            }
            PollOrEmptyCheck::StillEmpty(check) => self.stay_idle(check),
        }
    }

    fn stay_idle(&mut self, check: EmptyQueueCheck) {
        self.empty_queue_check = Some(check);
        if !self.was_woken {
            (self.next_poll_at, self.has_due_time) =
                (Some(Instant::now() + IDLE_POLL_INTERVAL), false);
        }
    }
}
