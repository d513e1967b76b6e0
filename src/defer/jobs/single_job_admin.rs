//! `DeferredJobs`: reads, cancels, redrives and purges single jobs.

use super::{
    cancel_waiting_job::cancel_job,
    job_info::{JobHead, JobInfo},
};
use crate::{
    defer::envelope::{EnvelopeBinding, decode_request},
    error::Error,
    store::{JobId, JobState, JobView, Store},
};

/// Administration of a store's deferred requests. Created by [`Store::deferred_jobs`].
///
/// Every method fails with the store's error ([`ErrorKind`](crate::ErrorKind)) and is cancel safe:
/// a dropped call was executed or was not, and may be repeated. [`redrive`](Self::redrive)
/// documents its exception.
#[derive(Debug, Clone)]
pub struct DeferredJobs {
    pub(super) store: Store,
}

impl Store {
    /// Returns the administration of this store's deferred requests.
    #[must_use]
    pub fn deferred_jobs(&self) -> DeferredJobs {
        DeferredJobs { store: self.clone() }
    }
}

impl DeferredJobs {
    /// Returns a job; `None` if it is unknown, or its retention has ended. A job that was evicted
    /// or purged before has a [tombstone](JobInfo::tombstone).
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable.
    pub async fn get(&self, id: &JobId) -> Result<Option<JobInfo>, Error> {
        let job = self.store.backend().job_view(id.clone()).await?;
        Ok(job.map(|job| JobInfo::from_view(id.clone(), job)))
    }

    /// Returns the head of the stored request without its values. `None` if no request is retained,
    /// as after a successful run, or if this version can't read it.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable.
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

    /// Cancels a queued job, before its first run or a retry. Returns the state afterwards, or
    /// `None` for an unknown job.
    ///
    /// Any state but [`JobState::Cancelled`] means that it was too late. That is final: no late
    /// copy of this call cancels a job that has run since.
    ///
    /// [`Admin::cancel_job`](crate::admin::Admin::cancel_job) also cancels a job that runs.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable.
    pub async fn cancel(&self, id: &JobId) -> Result<Option<JobState>, Error> {
        let cancelled =
            cancel_job(&self.store, id, || self.store.backend().job_view(id.clone())).await?;
        Ok(cancelled.map(|cancelled| cancelled.state()))
    }

    /// Lets a delayed job, or one that waits for a retry, run as soon as its lock and a worker are
    /// free. It keeps its place in the queue, so older jobs of its lock still run first. Returns
    /// the state afterwards, or `None` for an unknown job.
    ///
    /// [`JobState::Queued`] means that it waits for no time, or that it has run meanwhile. Another
    /// state means that it was not waiting, and that nothing was changed. No late copy of this call
    /// ends the delay before a later retry.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable.
    pub async fn run_now(&self, id: &JobId) -> Result<Option<JobState>, Error> {
        let backend = self.store.backend();
        match backend.job_view(id.clone()).await? {
            Some(JobView { state: JobState::Queued, history, .. }) => {
                backend.end_job_delay(id.clone(), history.started_us).await
            }
            job => Ok(job.map(|job| job.state)),
        }
    }

    /// Redrives a dead job: puts it at the tail of its queue, with all attempts renewed. Returns
    /// the state afterwards, or `None` for an unknown job.
    ///
    /// [`JobState::Queued`] means that it waits now. A job that is not dead is left unchanged. The
    /// call applies to the death that it reads: no late copy of it redrives a job that has died
    /// again since. A second call does. If the reply of the first was lost, [`get`](Self::get)
    /// shows whether the job has run since.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable.
    pub async fn redrive(&self, id: &JobId) -> Result<Option<JobState>, Error> {
        let backend = self.store.backend();
        match backend.job_view(id.clone()).await? {
            Some(JobView { state: JobState::Dead, history, .. }) => {
                backend.redrive_job(id.clone(), history.ended_us).await
            }
            job => Ok(job.map(|job| job.state)),
        }
    }

    /// Deletes an ended job except for a [tombstone](JobInfo::tombstone). Returns false if there is
    /// no ended job with this id.
    ///
    /// Until the retention ends, its status is 410, and a retry with its `Idempotency-Key` is told
    /// so instead of running a second time. No late copy of this call deletes another end.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable.
    pub async fn purge(&self, id: &JobId) -> Result<bool, Error> {
        let backend = self.store.backend();
        let job = backend.job_view(id.clone()).await?;
        if job.as_ref().is_some_and(|job| job.state.is_pending()) {
            return Ok(false);
        }
        // Without a job view, remains of the job are deleted.
        backend.purge_job(id.clone(), job.map_or(0, |job| job.history.ended_us)).await
    }
}
