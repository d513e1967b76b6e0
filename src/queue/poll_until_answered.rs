//! Task poll that is repeated until the store replies.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::store::{Store, TaskPollCommand, TaskPollOutcome};

/// First delay between two attempts of an unanswered call; it doubles up to `MAX_RETRY_DELAY`.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(20);

/// Longest delay between two attempts of an unanswered call.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

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
    request: TaskPollCommand,
    not_executed: NotExecutedFlag,
) -> AnsweredPoll {
    let (mut first_sent_at, mut retry_delay, mut may_have_run) =
        (Instant::now(), MIN_RETRY_DELAY, false);
    loop {
        let sent_at = Instant::now();
        if !may_have_run {
            first_sent_at = sent_at;
        }
        match store.backend().poll_tasks(request.clone()).await {
            Ok(reply) => {
                return AnsweredPoll { request, reply, first_sent_at, answered_sent_at: sent_at };
            }
            Err(error) => {
                may_have_run |= error.may_have_run();
                not_executed.store(!may_have_run, Ordering::Relaxed);
                tracing::debug!(%error, "poll not answered");
            }
        }
        tokio::time::sleep(retry_delay).await;
        retry_delay = (retry_delay * 2).min(MAX_RETRY_DELAY);
    }
}
