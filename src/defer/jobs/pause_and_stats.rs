//! Operations of `DeferredJobs` on the queue as a whole: pause, resume, and counts.

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{job_info::DeferStats, single_job_admin::DeferredJobs};
use crate::{error::Error, key::SHARD_COUNT};

/// Most concurrent calls in an operation on all shards.
const MAX_CONCURRENT_CALLS: usize = 8;

impl DeferredJobs {
    /// Stops the workers of all processes from starting jobs; current runs continue. Requests are
    /// still deferred and stored, and requests that find their lock free still pass.
    ///
    /// From here on no job is offered to a worker, and each worker is notified. One that misses the
    /// wake-up may start due jobs until its next heartbeat, at most 10 s later.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable. If the reply was lost, the queue may be paused; pause it
    /// again to be sure. The call is never repeated automatically: a late copy would undo a
    /// [`resume`](Self::resume).
    pub async fn pause(&self) -> Result<(), Error> {
        self.store.backend().set_jobs_paused(true).await
    }

    /// Lets the workers start jobs again.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable. If the reply was lost, the queue may be resumed, as with
    /// [`pause`](Self::pause).
    pub async fn resume(&self) -> Result<(), Error> {
        self.store.backend().set_jobs_paused(false).await
    }

    /// Returns true if the queue is [paused](Self::pause), by any process.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable.
    pub async fn is_paused(&self) -> Result<bool, Error> {
        self.store.backend().are_jobs_paused().await
    }

    /// Counts jobs over all shards. Shards are read at different times, so a job that ends
    /// meanwhile may be counted twice or not at all.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable.
    pub async fn stats(&self) -> Result<DeferStats, Error> {
        let shard_stats =
            stream::iter(0..SHARD_COUNT).map(|shard| self.store.backend().shard_stats(shard));
        let add = |sum: DeferStats, shard| async move { Ok(sum.add_shard(shard)) };
        shard_stats
            .buffer_unordered(MAX_CONCURRENT_CALLS)
            .try_fold(DeferStats::default(), add)
            .await
    }
}
