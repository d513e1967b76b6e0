//! A turn on its way: sent until it is answered.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::store::{Store, TaskPollCommand, TaskPollOutcome};

/// Pauses between two calls of which the first was not answered.
const RETRY_DELAY_RANGE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What came of a turn.
pub(super) struct AnsweredPoll {
    pub(super) request: TaskPollCommand,
    pub(super) reply: TaskPollOutcome,
    /// When the first copy was sent that may have run.
    pub(super) first_sent_at: Instant,
    /// When the copy was sent that was answered.
    pub(super) answered_sent_at: Instant,
}

/// Whether the store has said of each copy of a turn so far that it was not run.
pub(super) type NotExecutedFlag = Arc<AtomicBool>;

/// Asks until it is answered: under its number, a turn happens once.
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
                tracing::debug!(%error, "a turn was not answered");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_DELAY_RANGE.1);
    }
}
