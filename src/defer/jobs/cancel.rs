//! Cancelling, as a job was seen.

use std::time::Duration;

use crate::{
    error::Error,
    store::{JobId, JobState, JobView, Store},
};

/// How long a cancelled job can be looked up.
const KEEP: Duration = Duration::from_secs(24 * 60 * 60);

/// Most looks of one call. Between two of them the job has run, and waits again.
const LOOKS: usize = 8;

/// Cancels a job that waits. The state afterwards; `None` for an unknown one, or one that cannot be seen.
///
/// A call that was sent twice, or that nobody answered, may come when its caller was told long ago that the job
/// runs. So it is about the wait that was seen alone, and ends with that. Cancel safe.
pub(in crate::defer) async fn cancel<F>(
    store: &Store,
    id: &JobId,
    look: impl Fn() -> F,
) -> Result<Option<JobState>, Error>
where
    F: Future<Output = Result<Option<JobView>, Error>>,
{
    for _ in 0..LOOKS {
        let Some(seen) = look().await? else { return Ok(None) };
        if seen.state != JobState::Queued {
            return Ok(Some(seen.state));
        }
        let state = store.backend().cancel(id.clone(), seen.past.began_us, KEEP).await?;
        if state != Some(JobState::Queued) {
            return Ok(state);
        }
    }
    Ok(Some(JobState::Queued))
}
