//! Cancelling, as a job was seen.

use std::time::Duration;

use crate::{
    error::Error,
    store::{JobId, JobState, JobView, Store},
};

/// How long a cancelled job can be looked up.
const CANCELLED_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// Most looks of one call. Between two of them the job has run, and waits again.
const MAX_CANCEL_ATTEMPTS: usize = 8;

/// What cancelling comes to.
pub(in crate::defer) enum CancelOutcome {
    /// It did not wait when it was looked at.
    NotQueued(Box<JobView>),
    /// The state after the call.
    State(JobState),
}

impl CancelOutcome {
    /// The state afterwards.
    pub(in crate::defer) fn state(&self) -> JobState {
        match self {
            Self::NotQueued(job) => job.state,
            Self::State(state) => *state,
        }
    }
}

/// Cancels a job that waits. The outcome; `None` for an unknown one, or one that cannot be seen.
///
/// A call that was sent twice, or that nobody answered, may come when its caller was told long ago that the job
/// runs. So it is about the wait that was seen alone, and ends with that. Cancel safe.
pub(in crate::defer) async fn cancel_job<F>(
    store: &Store,
    id: &JobId,
    look: impl Fn() -> F,
) -> Result<Option<CancelOutcome>, Error>
where
    F: Future<Output = Result<Option<JobView>, Error>>,
{
    for _ in 0..MAX_CANCEL_ATTEMPTS {
        let Some(seen) = look().await? else { return Ok(None) };
        if seen.state != JobState::Queued {
            return Ok(Some(CancelOutcome::NotQueued(Box::new(seen))));
        }
        let state = store
            .backend()
            .cancel_waiting_job(id.clone(), seen.history.started_us, CANCELLED_RETENTION)
            .await?;
        if state != Some(JobState::Queued) {
            return Ok(state.map(CancelOutcome::State));
        }
    }
    Ok(Some(CancelOutcome::State(JobState::Queued)))
}
