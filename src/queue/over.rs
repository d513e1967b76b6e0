//! Runs that are over: what becomes of their tasks goes with the next turn.

use std::sync::Arc;

use tokio::task::{self, JoinError};

use super::{
    failure::Failure,
    rounds::{Rounds, Running},
    run::{Ran, judge},
};
use crate::store::{End, RunToken, TaskFault};

impl Rounds {
    /// A run has ended, and perhaps others with it: they go together.
    pub(super) async fn ended(&mut self, first: Result<(RunToken, Ran), JoinError>) {
        self.note(first);
        if !self.running.is_empty() && self.turn.is_none() {
            task::yield_now().await;
        }
        while let Some(ended) = self.runs.try_join_next() {
            self.note(ended);
        }
    }

    pub(super) fn note(&mut self, ended: Result<(RunToken, Ran), JoinError>) {
        let (token, ran) = match ended {
            Ok(ended) => ended,
            Err(error) if error.is_panic() => match self.of_task(error.id()) {
                Some(token) => (token, Err((TaskFault::Panicked, Failure::new("panicked")))),
                None => return,
            },
            // One that was cancelled is not this worker's any more, or is handed back.
            Err(_) => return,
        };
        let id = token.id.clone();
        if self.running.get(&id).is_none_or(|running| running.token != token) {
            return;
        }
        let Some(running) = self.running.remove(&id) else { return };
        let Running { token, attempt, max_attempts, bytes, unique, .. } = running;
        self.over(token, ran, (attempt, max_attempts), bytes, unique);
    }

    /// Whose run it was. What a handler panics with may panic in turn, and that is borne by nobody else.
    fn of_task(&self, id: task::Id) -> Option<RunToken> {
        let run = self.running.values().find(|run| run.abort.id() == id)?;
        Some(run.token.clone())
    }

    pub(super) fn over(
        &mut self,
        token: RunToken,
        ran: Ran,
        (attempt, max_attempts): (u32, u32),
        bytes: u64,
        unique: Option<Arc<str>>,
    ) {
        if let Err((fault, why)) = &ran {
            let id = &token.id;
            tracing::warn!(task = ?id, attempt, %fault, reason = why.reason(), "a task failed");
        }
        let verdict = judge(ran, attempt, max_attempts, self.worker.backoff);
        self.ends.push(End { run: token, bytes, unique, verdict });
    }
}
