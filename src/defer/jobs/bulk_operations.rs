//! Operations on many jobs: listings, redrive of all dead letters, purge of old ones.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{
    deferred_jobs::DeferredJobs,
    job_cursor::{JobCursor, ShardPosition},
    job_info::{JobInfo, JobPage},
};
use crate::{
    clock::{MAX_DURATION, saturating_micros},
    error::Error,
    key::SHARD_COUNT,
    store::{EndedFilter, JobId, JobState, JobView},
};

/// Most jobs that one call lists.
const MAX_PAGE_SIZE: usize = 100;

impl DeferredJobs {
    /// Lists dead letters, at most `most` of them (1 to 100).
    ///
    /// A listing goes shard by shard, so it has no order in time. Jobs that become dead letters
    /// during the listing may be missing; no others are.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable.
    pub async fn dead(&self, from: JobCursor, most: usize) -> Result<JobPage, Error> {
        self.list_ended(EndedFilter::Dead, from, most).await
    }

    /// Lists finished jobs with a stored response, like [`dead`](Self::dead). Direct runs that are
    /// remembered are included.
    ///
    /// Cancelled and expired jobs are in no listing. They can be found by id for a day, and are
    /// counted by [`stats`](Self::stats).
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable.
    pub async fn done(&self, from: JobCursor, most: usize) -> Result<JobPage, Error> {
        self.list_ended(EndedFilter::Done, from, most).await
    }

    /// Lists queued and running jobs, like [`dead`](Self::dead): their state, queue position, due
    /// time, and the reason of a retry. The jobs of a resource are listed in their order.
    ///
    /// A job that keeps its place during the listing is listed, unless most other jobs of its shard
    /// leave meanwhile. A job that moves meanwhile (it runs, fails, or its delay ends) may be
    /// listed twice or missed. Direct runs are not listed. Neither are jobs that a fault of the
    /// store has removed from their queue; [`Store::check`](crate::Store::check) puts those back.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable.
    pub async fn pending(&self, from: JobCursor, most: usize) -> Result<JobPage, Error> {
        let page = |shard, at: ShardPosition, most| {
            let page = self.store.backend().list_pending(shard, at.pending_mark(), most);
            async { page.await.map(|page| (page.jobs, page.next_mark.map(ShardPosition::Pending))) }
        };
        collect_page(from, most, page).await
    }

    /// Redrives all present dead letters, one per `every`, and returns their number. The interval
    /// spreads the load on their locks; with zero, calls follow each other directly.
    ///
    /// A job that dies again meanwhile is not redriven twice, even by two concurrent calls. If the
    /// call is dropped or fails, the jobs that it has redriven stay so; call it again to continue.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable.
    pub async fn redrive_all(&self, every: Duration) -> Result<u64, Error> {
        let mut next = Instant::now();
        let mut moved = 0;
        for shard in 0..SHARD_COUNT {
            // All ids of the shard first: a redriven job that dies again would otherwise be found
            // again.
            for (id, job) in self.list_shard(shard, EndedFilter::Dead).await? {
                sleep_until(next).await;
                // Counted from now, not from the last due time, so that a slow store is not
                // followed by a burst.
                next = Instant::now() + every.min(MAX_DURATION);
                let state = self.store.backend().redrive_job(id, job.history.ended_us).await?;
                moved += u64::from(state.is_some_and(JobState::is_pending));
            }
        }
        tracing::info!(moved, "dead letters redriven");
        Ok(moved)
    }

    /// Purges dead letters that died at least `older_than` ago, and returns their number.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable. Jobs that were purged before stay so.
    pub async fn purge_dead(&self, older_than: Duration) -> Result<u64, Error> {
        let until = self
            .store
            .backend()
            .server_time_us()
            .await?
            .saturating_sub(saturating_micros(older_than));
        let mut purged = 0;
        for shard in 0..SHARD_COUNT {
            for (id, job) in self.list_shard(shard, EndedFilter::Dead).await? {
                if job.history.ended_us <= until {
                    purged +=
                        u64::from(self.store.backend().purge_job(id, job.history.ended_us).await?);
                }
            }
        }
        tracing::info!(purged, "dead letters purged");
        Ok(purged)
    }

    async fn list_ended(
        &self,
        which: EndedFilter,
        from: JobCursor,
        most: usize,
    ) -> Result<JobPage, Error> {
        let page = |shard, at: ShardPosition, most| {
            let page = self.store.backend().list_ended(shard, which, at.ended_offset(), most);
            async { page.await.map(|page| (page.jobs, page.next_mark.map(ShardPosition::Ended))) }
        };
        collect_page(from, most, page).await
    }

    /// Lists all jobs of a shard. Storage limits keep them to a few thousand.
    async fn list_shard(
        &self,
        shard: u16,
        which: EndedFilter,
    ) -> Result<Vec<(JobId, JobView)>, Error> {
        let mut jobs = Vec::new();
        let mut at = Some(0);
        while let Some(from) = at {
            let page = self.store.backend().list_ended(shard, which, from, MAX_PAGE_SIZE).await?;
            jobs.extend(page.jobs);
            at = page.next_mark;
        }
        Ok(jobs)
    }
}

/// Collects a page shard by shard, until it has `most` jobs.
async fn collect_page<F>(
    from: JobCursor,
    most: usize,
    page: impl Fn(u16, ShardPosition, usize) -> F,
) -> Result<JobPage, Error>
where
    F: Future<Output = Result<(Vec<(JobId, JobView)>, Option<ShardPosition>), Error>>,
{
    let most = most.clamp(1, MAX_PAGE_SIZE);
    let mut jobs = Vec::new();
    let mut next = Some(from);
    while let Some(JobCursor { shard, position: at }) = next.filter(|_| jobs.len() < most) {
        let (found, more) = page(shard, at, most - jobs.len()).await?;
        jobs.extend(found.into_iter().map(|(id, job)| JobInfo::from_view(id, job)));
        next = match more {
            Some(at) => Some(JobCursor { shard, position: at }),
            None => JobCursor::start_of(shard + 1),
        };
    }
    Ok(JobPage { jobs, next })
}
