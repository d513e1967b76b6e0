//! A worker that has nothing to do: whether that is still so, for two commands.
//!
//! A turn that finds nothing costs the server nine. So once one has found that nothing waits and nothing runs, the next
//! looks only ask whether that is so yet, and prolong the worker's place among the idle, for which a push wakes it. What
//! is told in the meantime, an answer that is not a plain yes, or none, is followed by a turn; so is each 24th look,
//! since turns also throw away what was kept for long enough. (The place is counted by the store's clock, which may leap
//! ahead: then a push may find nobody there, until one of the next turns, and waits for a look, as after a lost message.)

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    poll::{AnsweredPoll, NotExecutedFlag, poll_until_answered},
    queue_worker_loop::QueueWorkerLoop,
};
use crate::store::{Store, TaskPollCommand};

/// An idle worker looks so often, in case it was not told.
pub(super) const IDLE_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// How long an idle worker counts as one; longer than a beat.
pub(super) const IDLE_REGISTRATION_TTL: Duration = Duration::from_secs(8);

/// Looks in a row that are no turns: two minutes at most. Each further worker of a fleet that has nothing to do
/// costs 0.46 commands a second with it, the turns' share included.
const MAX_IDLE_CHECKS: u32 = 23;

/// What a turn has found, or a look behind it.
#[derive(Clone, Copy)]
pub(super) struct IdlePoll {
    /// When the call was made that prolonged the worker's place.
    renewed_at: Instant,
    checks: u32,
}

/// What came of a look.
#[expect(clippy::large_enum_variant, reason = "it is moved once, from the future that makes it")]
pub(super) enum IdlePollOutcome {
    Polled(AnsweredPoll),
    StillIdle(IdlePoll),
}

impl IdlePoll {
    pub(super) fn new(since: Instant) -> Self {
        Self { renewed_at: since, checks: 0 }
    }

    /// Itself, later, if it is so still. An error is no answer: the turn that follows waits for one.
    async fn confirm_idle(self, store: &Store, turn: &TaskPollCommand) -> Option<Self> {
        let now = Instant::now();
        let (queue, node, worker) =
            (turn.queue.clone(), turn.node.clone(), Arc::clone(&turn.worker));
        let longer = now.duration_since(self.renewed_at);
        let still = store.backend().poll_idle(queue, node, worker, longer).await;
        still.unwrap_or(false).then_some(Self { renewed_at: now, checks: self.checks + 1 })
    }
}

/// The turn, unless it is seen to be idle.
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
    /// What the next look may ask about instead of taking its turn.
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
