//! Task polls: a call that is retried until the store replies.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::store::{Store, TaskPollCommand, TaskPollOutcome};

/// First and longest delay between two attempts of an unanswered call.
const RETRY_DELAY_RANGE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Completed task poll.
pub(super) struct AnsweredPoll {
    pub(super) request: TaskPollCommand,
    pub(super) reply: TaskPollOutcome,
    /// Time at which the first copy that may have run was sent.
    pub(super) first_sent_at: Instant,
    /// Time at which the answered copy was sent.
    pub(super) answered_sent_at: Instant,
}

/// True if the store has refused every copy of a poll so far, so that none has run.
pub(super) type NotExecutedFlag = Arc<AtomicBool>;

/// Sends a task poll until the store replies; its number makes it take effect once.
pub(super) async fn poll_until_answered(
    store: Store,
    turn: TaskPollCommand,
    refused: NotExecutedFlag,
) -> AnsweredPoll {
    let (mut since, mut pause, mut may_have_run) = (Instant::now(), RETRY_DELAY_RANGE.0, false);
    loop {
        let asked = Instant::now();
        if !may_have_run {
            since = asked;
        }
        match store.backend().poll_tasks(turn.clone()).await {
            Ok(turned) => {
                return AnsweredPoll {
                    request: turn,
                    reply: turned,
                    first_sent_at: since,
                    answered_sent_at: asked,
                };
            }
            Err(error) => {
                may_have_run |= error.may_have_run();
                refused.store(!may_have_run, Ordering::Relaxed);
                tracing::debug!(%error, "poll not answered");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_DELAY_RANGE.1);
    }
}
