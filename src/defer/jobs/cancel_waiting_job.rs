//! Cancellation of a job that waits in its queue. `cancel_run` ends the run of another one.

use std::time::Duration;

use crate::{
    error::Error,
    store::{JobId, JobState, JobView, Store},
};

/// Time for which a cancelled job can be looked up.
pub(in crate::defer) const CANCELLED_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// Most attempts of one call. A repeated attempt means that the job has run and is queued again.
const MAX_CANCEL_ATTEMPTS: usize = 8;

/// Outcome of a cancellation.
pub(in crate::defer) enum CancelOutcome {
    /// The job was not queued when it was read.
    NotQueued(Box<JobView>),
    /// State after the call.
    State(JobState),
}

impl CancelOutcome {
    /// Returns the state of the job after the call.
    pub(in crate::defer) fn state(&self) -> JobState {
        match self {
            Self::NotQueued(job) => job.state,
            Self::State(state) => *state,
        }
    }
}

/// Cancels a queued job. Returns `None` if the job is unknown or not visible.
///
/// A duplicate of the call, or one without a reply, may arrive long after its caller has seen that
/// the job runs. It therefore applies only to the period of waiting that was read, identified by
/// the start of the last run. Cancel safe.
pub(in crate::defer) async fn cancel_job<F>(
    store: &Store,
    id: &JobId,
    fetch: impl Fn() -> F,
) -> Result<Option<CancelOutcome>, Error>
where
    F: Future<Output = Result<Option<JobView>, Error>>,
{
    for _ in 0..MAX_CANCEL_ATTEMPTS {
        let Some(job) = fetch().await? else { return Ok(None) };
        if job.state != JobState::Queued {
            return Ok(Some(CancelOutcome::NotQueued(Box::new(job))));
        }
        let state = store
            .backend()
            .cancel_waiting_job(id.clone(), job.history.started_us, CANCELLED_RETENTION)
            .await?;
        if state != Some(JobState::Queued) {
            return Ok(state.map(CancelOutcome::State));
        }
    }
    Ok(Some(CancelOutcome::State(JobState::Queued)))
}
