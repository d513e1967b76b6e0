//! Idle polls: two commands that ask whether an empty queue is still empty.
//!
//! A task poll that finds nothing costs the server nine commands. Once one has found that no task
//! waits or runs, the next polls only ask whether that is still so, and extend the worker's
//! registration as idle, through which a push wakes it. A full task poll follows:
//!
//! - after a wake-up during the idle poll,
//! - after a reply other than a plain yes, or none,
//! - after `MAX_IDLE_CHECKS` idle polls, since task polls also remove expired data.
//!
//! The registration ends by the store's clock, which may jump ahead. A push may then find no idle
//! worker until one of the next task polls, and waits for a poll, as after a lost wake-up.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    poll::{AnsweredPoll, NotExecutedFlag, poll_until_answered},
    queue_worker_loop::QueueWorkerLoop,
};
use crate::store::{Store, TaskPollCommand};

/// Interval of the polls of an idle worker, in case a wake-up is lost.
pub(super) const IDLE_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Time for which a worker is registered as idle; longer than `IDLE_POLL_INTERVAL`.
pub(super) const IDLE_REGISTRATION_TTL: Duration = Duration::from_secs(8);

/// Idle polls between two task polls: two minutes at most. With it, each further idle worker of a
/// fleet costs 0.46 commands a second, the share of the task polls included.
const MAX_IDLE_CHECKS: u32 = 23;

/// Finding of a task poll, or of an idle poll after it, that the queue is empty.
#[derive(Clone, Copy)]
pub(super) struct IdlePoll {
    /// Time of the call that last extended the registration.
    renewed_at: Instant,
    checks: u32,
}

/// Outcome of a poll.
#[expect(clippy::large_enum_variant, reason = "it is moved once, out of its future")]
pub(super) enum IdlePollOutcome {
    Polled(AnsweredPoll),
    StillIdle(IdlePoll),
}

impl IdlePoll {
    pub(super) fn new(since: Instant) -> Self {
        Self { renewed_at: since, checks: 0 }
    }

    /// Returns the renewed finding if the queue is still empty. An error is no answer: the task
    /// poll that follows waits for one.
    async fn confirm_idle(self, store: &Store, turn: &TaskPollCommand) -> Option<Self> {
        let now = Instant::now();
        let (queue, node, worker) =
            (turn.queue.clone(), turn.node.clone(), Arc::clone(&turn.worker));
        let longer = now.duration_since(self.renewed_at);
        let still = store.backend().poll_idle(queue, node, worker, longer).await;
        still.unwrap_or(false).then_some(Self { renewed_at: now, checks: self.checks + 1 })
    }
}

/// Sends the task poll, unless an idle poll confirms that the queue is empty.
pub(super) async fn poll_unless_idle(
    store: Store,
    quiet: Option<IdlePoll>,
    turn: TaskPollCommand,
    refused: NotExecutedFlag,
) -> IdlePollOutcome {
    if let Some(quiet) = quiet
        && let Some(still) = quiet.confirm_idle(&store, &turn).await
    {
        return IdlePollOutcome::StillIdle(still);
    }
    IdlePollOutcome::Polled(poll_until_answered(store, turn, refused).await)
}

impl QueueWorkerLoop {
    /// Returns the finding that the next poll may confirm instead of a full task poll.
    pub(super) fn take_idle_poll(&mut self) -> Option<IdlePoll> {
        let quiet = self.idle_poll.take().filter(|quiet| quiet.checks < MAX_IDLE_CHECKS);
        quiet
            .filter(|_| !self.was_woken && !self.is_draining && self.pending_settlements.is_empty())
    }

    pub(super) fn apply_outcome(&mut self, looked: IdlePollOutcome) {
        match looked {
            IdlePollOutcome::Polled(answer) => self.apply_answer(answer),
            IdlePollOutcome::StillIdle(quiet) => self.stay_idle(quiet),
        }
    }

    fn stay_idle(&mut self, quiet: IdlePoll) {
        self.idle_poll = Some(quiet);
        if !self.was_woken {
            (self.next_poll_at, self.has_due_time) =
                (Some(Instant::now() + IDLE_POLL_INTERVAL), false);
        }
    }
}
