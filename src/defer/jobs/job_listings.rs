//! Listings of dead, done and pending jobs, in pages over all shards.

use super::{
    job_cursor::{JobCursor, ShardPosition},
    job_info::{JobInfo, JobPage},
    single_job_admin::DeferredJobs,
};
use crate::{
    error::Error,
    store::{EndedJobFilter, JobId, JobView},
};

/// Most jobs that one call lists.
const MAX_PAGE_SIZE: usize = 100;

impl DeferredJobs {
    /// Lists dead letters, at most `max_jobs` of them (1 to 100).
    ///
    /// A listing goes shard by shard, so it has no order in time. Jobs that become dead letters
    /// during the listing may be missing; no others are.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable.
    pub async fn dead(&self, from: JobCursor, max_jobs: usize) -> Result<JobPage, Error> {
        self.list_ended(EndedJobFilter::Dead, from, max_jobs).await
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
    pub async fn done(&self, from: JobCursor, max_jobs: usize) -> Result<JobPage, Error> {
        self.list_ended(EndedJobFilter::Done, from, max_jobs).await
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
    pub async fn pending(&self, from: JobCursor, max_jobs: usize) -> Result<JobPage, Error> {
        let list_shard = |shard, position: ShardPosition, max_jobs| {
            let page =
                self.store.backend().list_pending(shard, position.pending_cursor(), max_jobs);
            async { page.await.map(|page| (page.jobs, page.next_mark.map(ShardPosition::Pending))) }
        };
        collect_page(from, max_jobs, list_shard).await
    }

    async fn list_ended(
        &self,
        filter: EndedJobFilter,
        from: JobCursor,
        max_jobs: usize,
    ) -> Result<JobPage, Error> {
        let list_shard = |shard, position: ShardPosition, max_jobs| {
            let offset = position.ended_offset();
            let page = self.store.backend().list_ended(shard, filter, offset, max_jobs);
            async { page.await.map(|page| (page.jobs, page.next_mark.map(ShardPosition::Ended))) }
        };
        collect_page(from, max_jobs, list_shard).await
    }

    /// Lists all jobs of a shard. Storage limits keep them to a few thousand.
    pub(super) async fn list_shard(
        &self,
        shard: u16,
        filter: EndedJobFilter,
    ) -> Result<Vec<(JobId, JobView)>, Error> {
        let mut jobs = Vec::new();
        let mut next_offset = Some(0);
        while let Some(offset) = next_offset {
            let page =
                self.store.backend().list_ended(shard, filter, offset, MAX_PAGE_SIZE).await?;
            jobs.extend(page.jobs);
            next_offset = page.next_mark;
        }
        Ok(jobs)
    }
}

/// Collects a page shard by shard, until it has `max_jobs` jobs.
async fn collect_page<F>(
    from: JobCursor,
    max_jobs: usize,
    list_shard: impl Fn(u16, ShardPosition, usize) -> F,
) -> Result<JobPage, Error>
where
    F: Future<Output = Result<(Vec<(JobId, JobView)>, Option<ShardPosition>), Error>>,
{
    let max_jobs = max_jobs.clamp(1, MAX_PAGE_SIZE);
    let mut jobs = Vec::new();
    let mut next = Some(from);
    while let Some(JobCursor { shard, position }) = next.filter(|_| jobs.len() < max_jobs) {
        let (views, next_position) = list_shard(shard, position, max_jobs - jobs.len()).await?;
        jobs.extend(views.into_iter().map(|(id, job)| JobInfo::from_view(id, job)));
        next = match next_position {
            Some(position) => Some(JobCursor { shard, position }),
            None => JobCursor::start_of(shard + 1),
        };
    }
    Ok(JobPage { jobs, next })
}
