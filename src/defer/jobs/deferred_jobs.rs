//! `DeferredJobs`: one job at a time, and the queue as a whole.

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    cancel::cancel_job,
    job_info::{DeferStats, JobHead, JobInfo},
};
use crate::{
    defer::envelope::{EnvelopeBinding, decode_request},
    error::Error,
    key::SHARD_COUNT,
    store::{JobId, JobState, JobView, Store},
};

/// Calls that are on their way at once when every shard is asked.
pub(super) const MAX_CONCURRENT_CALLS: usize = 8;

/// The deferred requests of a store. Made by [`Store::deferred_jobs`].
///
/// Every method fails as the store does ([`ErrorKind`](crate::ErrorKind)) and is cancel safe: a call that is
/// dropped has been done or has not, and doing it again is no harm, but of [`redrive`](Self::redrive) as said there.
#[derive(Debug, Clone)]
pub struct DeferredJobs {
    pub(super) store: Store,
}

impl Store {
    /// The deferred requests of this store, for those who run the service.
    #[must_use]
    pub fn deferred_jobs(&self) -> DeferredJobs {
        DeferredJobs { store: self.clone() }
    }
}

impl DeferredJobs {
    /// What has become of a job; `None` for one that is unknown, or whose time is over. Of one that was evicted or purged
    /// before, a [tombstone](JobInfo::tombstone) is told.
    ///
    /// # Errors
    ///
    /// If the store is away.
    pub async fn get(&self, id: &JobId) -> Result<Option<JobInfo>, Error> {
        let job = self.store.backend().job_view(id.clone()).await?;
        Ok(job.map(|job| JobInfo::from_view(id.clone(), job)))
    }

    /// What the stored request is, without what it says: `None` if none is kept, as after a run that went
    /// well, or if this version can't read it.
    ///
    /// # Errors
    ///
    /// If the store is away.
    pub async fn peek(&self, id: &JobId) -> Result<Option<JobHead>, Error> {
        let job = self.store.backend().job_view(id.clone()).await?;
        let Some(lock) = job.and_then(|job| job.history.lock) else {
            return Ok(None);
        };
        let Some(envelope) = self.store.backend().job_envelope(id.clone()).await? else {
            return Ok(None);
        };
        let at = EnvelopeBinding { store: &self.store, id, lock: &lock };
        Ok(decode_request(at, &envelope).ok().map(|request| JobHead::from_request(&request)))
    }

    /// Cancels a job that waits, for its first run or for another. The state afterwards: anything but
    /// [`JobState::CancelOutcome`] means that it was too late, and holds: no copy of this call that is still on its way
    /// cancels a job that has run since. `None` for an unknown one.
    ///
    /// # Errors
    ///
    /// If the store is away.
    pub async fn cancel(&self, id: &JobId) -> Result<Option<JobState>, Error> {
        let cancelled =
            cancel_job(&self.store, id, || self.store.backend().job_view(id.clone())).await?;
        Ok(cancelled.map(|cancelled| cancelled.state()))
    }

    /// Puts a dead job back, at the tail of its line, with all of its attempts to come. The state
    /// afterwards: [`JobState::Queued`] if it waits now; a job that is not dead is left as it is. `None`
    /// for an unknown one.
    ///
    /// It is about the death that this call sees: no copy of it that is still on its way puts back a job that has died again
    /// since. A second call does: where the answer of the first was lost, [`get`](Self::get) tells whether the job has run since.
    ///
    /// # Errors
    ///
    /// If the store is away.
    pub async fn redrive(&self, id: &JobId) -> Result<Option<JobState>, Error> {
        let backend = self.store.backend();
        match backend.job_view(id.clone()).await? {
            Some(JobView { state: JobState::Dead, history: past, .. }) => {
                backend.redrive_job(id.clone(), past.ended_us).await
            }
            other => Ok(other.map(|job| job.state)),
        }
    }

    /// Drops all that is kept of a job that has ended, but for a [tombstone](JobInfo::tombstone): its status is 410 until
    /// its time is over, and a retry under its `Idempotency-Key` is told so, instead of running a second time. False if
    /// there is none that has ended. No copy of this call that is still on its way forgets another end.
    ///
    /// # Errors
    ///
    /// If the store is away.
    pub async fn purge(&self, id: &JobId) -> Result<bool, Error> {
        let backend = self.store.backend();
        let seen = backend.job_view(id.clone()).await?;
        if seen.as_ref().is_some_and(|job| job.state.is_pending()) {
            return Ok(false);
        }
        // Of one whose facts have vanished what is left goes.
        backend.purge_job(id.clone(), seen.map_or(0, |job| job.history.ended_us)).await
    }

    /// Stops the workers of all processes from starting jobs; what runs goes on. Requests are still
    /// deferred and kept, and those that find a lock free pass as ever.
    ///
    /// Nothing is handed to a worker from this step on, and each is told by a message; one that misses it may start
    /// what comes due until its next sign of life, 10 s later at the latest.
    ///
    /// # Errors
    ///
    /// If the store is away. Where its answer was lost the queue may be paused all the same; pause it again to be sure. It is
    /// never sent again by itself: a copy that came late would undo a [`resume`](Self::resume).
    pub async fn pause(&self) -> Result<(), Error> {
        self.store.backend().set_jobs_paused(true).await
    }

    /// Lets the workers go on.
    ///
    /// # Errors
    ///
    /// If the store is away. Where its answer was lost they may go on all the same, as with [`pause`](Self::pause).
    pub async fn resume(&self) -> Result<(), Error> {
        self.store.backend().set_jobs_paused(false).await
    }

    /// Whether the queue is [paused](Self::pause): whoever has done it, in whichever process.
    ///
    /// # Errors
    ///
    /// If the store is away.
    pub async fn is_paused(&self) -> Result<bool, Error> {
        self.store.backend().are_jobs_paused().await
    }

    /// How many there are, summed over all shards. They are read one after the other, so a job that ends
    /// meanwhile may be counted twice or not at all.
    ///
    /// # Errors
    ///
    /// If the store is away.
    pub async fn stats(&self) -> Result<DeferStats, Error> {
        let tallies =
            stream::iter(0..SHARD_COUNT).map(|shard| self.store.backend().shard_stats(shard));
        let add = |sum: DeferStats, tally| async move { Ok(sum.add_shard(tally)) };
        tallies.buffer_unordered(MAX_CONCURRENT_CALLS).try_fold(DeferStats::default(), add).await
    }
}
