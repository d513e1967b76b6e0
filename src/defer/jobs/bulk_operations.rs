//! Many jobs at a time: listings, redriving all of them, purging the old.

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

/// Most that one call lists.
const MAX_PAGE_SIZE: usize = 100;

impl DeferredJobs {
    /// Dead letters, at most `most` of them (from 1 to 100). A listing goes shard by shard, so it is in no
    /// order of time; what is filed while it goes on may be missed, and nothing else.
    ///
    /// # Errors
    ///
    /// If the store is away.
    pub async fn dead(&self, from: JobCursor, most: usize) -> Result<JobPage, Error> {
        self.list_ended(EndedFilter::Dead, from, most).await
    }

    /// As [`dead`](Self::dead), those that have run and whose response is kept; also those that ran at once and are
    /// remembered. What was cancelled or expired is in no listing: it is found by its id for a day, and counted by
    /// [`stats`](Self::stats).
    ///
    /// # Errors
    ///
    /// If the store is away.
    pub async fn done(&self, from: JobCursor, most: usize) -> Result<JobPage, Error> {
        self.list_ended(EndedFilter::Done, from, most).await
    }

    /// As [`dead`](Self::dead), those that wait or run: which they are, how they stand in their lines, when they are due,
    /// and why they have come back. A resource's jobs come in their order, one after the other.
    ///
    /// What waits all the while in the same place is told, unless most others of its shard go meanwhile; what is moved
    /// while the listing goes on (it runs, it fails, its delay is over) may be told twice or missed. Not in here: requests
    /// that were not deferred, and what has lost its line to a fault of the store, which
    /// [`Store::check`](crate::Store::check) puts back.
    ///
    /// # Errors
    ///
    /// If the store is away.
    pub async fn pending(&self, from: JobCursor, most: usize) -> Result<JobPage, Error> {
        let page = |shard, at: ShardPosition, most| {
            let page = self.store.backend().list_pending(shard, at.pending_mark(), most);
            async { page.await.map(|page| (page.jobs, page.next_mark.map(ShardPosition::Pending))) }
        };
        collect_page(from, most, page).await
    }

    /// Puts back all that are dead now, one each `every` (zero: as fast as the store answers), so that they
    /// don't come down on their lines at once. How many were put back.
    ///
    /// One that dies again meanwhile is not put back twice, also by two such calls at the same time. If this is dropped, or fails, those that it has
    /// put back stay so; calling it again goes on with the others.
    ///
    /// # Errors
    ///
    /// If the store is away.
    pub async fn redrive_all(&self, every: Duration) -> Result<u64, Error> {
        let mut next = Instant::now();
        let mut moved = 0;
        for shard in 0..SHARD_COUNT {
            // First all ids of the shard: what is put back and dies again would else be found again.
            for (id, job) in self.list_shard(shard, EndedFilter::Dead).await? {
                sleep_until(next).await;
                // From now on, not from when it was due: a slow store is not caught up with.
                next = Instant::now() + every.min(MAX_DURATION);
                let state = self.store.backend().redrive_job(id, job.history.ended_us).await?;
                moved += u64::from(state.is_some_and(JobState::is_pending));
            }
        }
        tracing::info!(moved, "dead letters were put back");
        Ok(moved)
    }

    /// Forgets the dead letters that died at least so long ago. How many they were.
    ///
    /// # Errors
    ///
    /// If the store is away. Those that it has forgotten stay so.
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
        tracing::info!(purged, "dead letters were forgotten");
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

    /// All of a shard, which its caps keep to a few thousand.
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

/// Shard by shard, until there are as many as were asked for.
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
