//! Operations on all dead letters: redrive them, or purge the old ones.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::single_job_admin::DeferredJobs;
use crate::{
    durations::{MAX_DURATION, saturating_micros},
    error::Error,
    key::SHARD_COUNT,
    store::{EndedJobFilter, JobState},
};

impl DeferredJobs {
    /// Redrives all present dead letters, one per `interval`, and returns their number. The
    /// interval spreads the load on their locks; with zero, calls follow each other directly.
    ///
    /// A job that dies again meanwhile is not redriven twice, even by two concurrent calls. If the
    /// call is dropped or fails, the jobs that it has redriven stay so; call it again to continue.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable.
    pub async fn redrive_all(&self, interval: Duration) -> Result<u64, Error> {
        let mut next_at = Instant::now();
        let mut redriven = 0;
        for shard in 0..SHARD_COUNT {
            // All ids of the shard first: a redriven job that dies again would otherwise be found
            // again.
            for (id, job) in self.list_shard(shard, EndedJobFilter::Dead).await? {
                sleep_until(next_at).await;
                // Counted from now, not from the last due time, so that a slow store is not
                // followed by a burst.
                next_at = Instant::now() + interval.min(MAX_DURATION);
                let state = self.store.backend().redrive_job(id, job.history.ended_us).await?;
                redriven += u64::from(state.is_some_and(JobState::is_pending));
            }
        }
        tracing::info!(moved = redriven, "dead letters redriven");
        Ok(redriven)
    }

    /// Purges dead letters that died at least `older_than` ago, and returns their number.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable. Jobs that were purged before stay so.
    pub async fn purge_dead(&self, older_than: Duration) -> Result<u64, Error> {
        let now_us = self.store.backend().server_time_us().await?;
        let died_before_us = now_us.saturating_sub(saturating_micros(older_than));
        let mut purged = 0;
        for shard in 0..SHARD_COUNT {
            for (id, job) in self.list_shard(shard, EndedJobFilter::Dead).await? {
                if job.history.ended_us <= died_before_us {
                    let was_purged =
                        self.store.backend().purge_job(id, job.history.ended_us).await?;
                    purged += u64::from(was_purged);
                }
            }
        }
        tracing::info!(purged, "dead letters purged");
        Ok(purged)
    }
}
