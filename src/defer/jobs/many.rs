//! Many jobs at a time: listings, redriving all of them, purging the old.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{
    handle::DeferredJobs,
    info::{JobCursor, JobInfo, JobPage},
};
use crate::{
    clock::micros,
    error::Error,
    key::SHARDS,
    store::{JobId, JobState, JobView, Listing},
};

/// Most that one call lists.
const PAGE: usize = 100;

impl DeferredJobs {
    /// Dead letters, at most `most` of them (from 1 to 100). A listing goes shard by shard, so it is in no
    /// order of time; what is filed while it goes on may be missed, and nothing else.
    ///
    /// # Errors
    ///
    /// If the store is away.
    pub async fn dead(&self, from: JobCursor, most: usize) -> Result<JobPage, Error> {
        self.list(Listing::Dead, from, most).await
    }

    /// As [`dead`](Self::dead), those that have run and whose response is kept; also those that ran at once and are
    /// remembered. What was cancelled or expired is in no listing: it is found by its id for a day, and counted by
    /// [`stats`](Self::stats).
    ///
    /// # Errors
    ///
    /// If the store is away.
    pub async fn done(&self, from: JobCursor, most: usize) -> Result<JobPage, Error> {
        self.list(Listing::Done, from, most).await
    }

    /// Puts back all that are dead now, one each `every` (zero: as fast as the store answers), so that they
    /// don't come down on their lines at once. How many were put back.
    ///
    /// One that dies again meanwhile is not put back twice. If this is dropped, or fails, those that it has
    /// put back stay so; calling it again goes on with the others.
    ///
    /// # Errors
    ///
    /// If the store is away.
    pub async fn redrive_all(&self, every: Duration) -> Result<u64, Error> {
        let mut next = Instant::now();
        let mut moved = 0;
        for shard in 0..SHARDS {
            // First all ids of the shard: what is put back and dies again would else be found again.
            for (id, _) in self.shard(shard, Listing::Dead).await? {
                sleep_until(next).await;
                // From now on, not from when it was due: a slow store is not caught up with.
                next = Instant::now() + every;
                let state = self.store.backend().redrive(id).await?;
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
        let until = self.store.backend().clock().await?.saturating_sub(micros(older_than));
        let mut purged = 0;
        for shard in 0..SHARDS {
            for (id, job) in self.shard(shard, Listing::Dead).await? {
                if job.past.ended_us <= until {
                    purged += u64::from(self.store.backend().purge(id).await?);
                }
            }
        }
        tracing::info!(purged, "dead letters were forgotten");
        Ok(purged)
    }

    async fn list(&self, which: Listing, from: JobCursor, most: usize) -> Result<JobPage, Error> {
        let most = most.clamp(1, PAGE);
        let mut jobs = Vec::new();
        let mut at = Some(from);
        while let Some(cursor) = at.filter(|_| jobs.len() < most) {
            let JobCursor { shard, from } = cursor;
            let left = most - jobs.len();
            let page = self.store.backend().list(shard, which, from, left).await?;
            jobs.extend(page.jobs.into_iter().map(|(id, job)| JobInfo::of(id, job)));
            at = match page.next {
                Some(from) => Some(JobCursor { shard, from }),
                None => Some(JobCursor { shard: shard + 1, from: 0 }).filter(|c| c.shard < SHARDS),
            };
        }
        Ok(JobPage { jobs, next: at })
    }

    /// All of a shard, which its caps keep to a few thousand.
    async fn shard(&self, shard: u16, which: Listing) -> Result<Vec<(JobId, JobView)>, Error> {
        let mut jobs = Vec::new();
        let mut at = Some(0);
        while let Some(from) = at {
            let page = self.store.backend().list(shard, which, from, PAGE).await?;
            jobs.extend(page.jobs);
            at = page.next;
        }
        Ok(jobs)
    }
}
