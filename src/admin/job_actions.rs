//! Actions on deferred requests.

use std::time::Duration;

use super::{
    admin_error::AdminError,
    admin_handle::{Admin, AdminAction},
    cancel_request::CancelRequest,
    permission::Permission,
};
use crate::{
    defer::{JobRequest, RetainedRequest},
    store::{JobId, JobState},
};

impl Admin {
    /// Stops all workers from starting deferred requests, like
    /// [`DeferredJobs::pause`](crate::defer::DeferredJobs::pause).
    ///
    /// # Errors
    ///
    /// See [`AdminError`].
    pub async fn pause_jobs(&self, reason: &str) -> Result<(), AdminError> {
        let jobs = self.store.deferred_jobs();
        self.act("pause-jobs", "deferred requests", reason, async { Ok(jobs.pause().await?) }).await
    }

    /// Lets the workers start deferred requests again.
    ///
    /// # Errors
    ///
    /// See [`AdminError`].
    pub async fn resume_jobs(&self, reason: &str) -> Result<(), AdminError> {
        let jobs = self.store.deferred_jobs();
        self.act("resume-jobs", "deferred requests", reason, async { Ok(jobs.resume().await?) })
            .await
    }

    /// Cancels a deferred request that waits or runs.
    ///
    /// A run is told by its [`RunCancellation`](crate::RunCancellation), and dropped if it has not
    /// ended after 5 s. It is not repeated, also if it fails. A run that succeeds meanwhile keeps
    /// its response. The action takes until the run has ended, at most about 10 s.
    ///
    /// Cancel safe: the run may end as cancelled.
    ///
    /// # Errors
    ///
    /// [`AdminError::NotPossible`] if it is unknown or has ended, or if its worker has not ended
    /// the run in time: the worker is gone, is of an older version, sends its requests to another
    /// process, or its handler blocks its thread. Others as in [`AdminError`].
    pub async fn cancel_job(&self, id: &JobId, reason: &str) -> Result<(), AdminError> {
        let jobs = self.store.deferred_jobs();
        let cancel = async {
            let mut request = CancelRequest::new(&self.store, id.as_str());
            loop {
                match jobs.cancel(id).await? {
                    Some(JobState::Cancelled) => return Ok(()),
                    Some(JobState::Running) => request.send().await?,
                    state => return Err(unsuitable_state("cancelled", state)),
                }
            }
        };
        self.act("cancel-job", id.as_str(), reason, cancel).await
    }

    /// Lets a delayed deferred request, or one that waits for a retry, run as soon as its lock and
    /// a worker are free; see [`DeferredJobs::run_now`](crate::defer::DeferredJobs::run_now).
    ///
    /// # Errors
    ///
    /// [`AdminError::NotPossible`] if it is unknown, runs, or has ended; others as in
    /// [`AdminError`].
    pub async fn run_job_now(&self, id: &JobId, reason: &str) -> Result<(), AdminError> {
        let jobs = self.store.deferred_jobs();
        let run = async {
            match jobs.run_now(id).await? {
                Some(JobState::Queued) => Ok(()),
                state => Err(unsuitable_state("started", state)),
            }
        };
        self.act("run-job-now", id.as_str(), reason, run).await
    }

    /// Puts a dead deferred request at the tail of its queue, with all attempts renewed.
    ///
    /// # Errors
    ///
    /// [`AdminError::NotPossible`] if it is not dead; others as in [`AdminError`].
    pub async fn redrive_job(&self, id: &JobId, reason: &str) -> Result<(), AdminError> {
        let jobs = self.store.deferred_jobs();
        let redrive = async {
            match jobs.redrive(id).await? {
                Some(JobState::Queued) => Ok(()),
                state => Err(unsuitable_state("redriven", state)),
            }
        };
        self.act("redrive-job", id.as_str(), reason, redrive).await
    }

    /// Redrives all deferred requests that are dead now, at most `per_second` (1 to 1,000) of them
    /// in a second, and returns their number. If it fails or is dropped, those that were redriven
    /// stay so; call it again to continue.
    ///
    /// # Errors
    ///
    /// See [`AdminError`].
    pub async fn redrive_dead_jobs(
        &self,
        per_second: u32,
        reason: &str,
    ) -> Result<u64, AdminError> {
        let jobs = self.store.deferred_jobs();
        let redrive = async { Ok(jobs.redrive_all(interval_of(per_second)?).await?) };
        self.act("redrive-dead-jobs", "deferred requests", reason, redrive).await
    }

    /// Deletes an ended deferred request and its response; see
    /// [`DeferredJobs::purge`](crate::defer::DeferredJobs::purge).
    ///
    /// # Errors
    ///
    /// [`AdminError::NotPossible`] if it has not ended; others as in [`AdminError`].
    pub async fn purge_job(&self, id: &JobId, reason: &str) -> Result<(), AdminError> {
        let jobs = self.store.deferred_jobs();
        let purge = async {
            if jobs.purge(id).await? {
                return Ok(());
            }
            let state = jobs.get(id).await?.map(|job| job.state);
            Err(unsuitable_state("purged", state))
        };
        self.act("purge-job", id.as_str(), reason, purge).await
    }

    /// Deletes all deferred requests that died at least `older_than` ago (0 for all dead ones), and
    /// returns their number. If it fails or is dropped, those that were deleted stay so.
    ///
    /// # Errors
    ///
    /// See [`AdminError`].
    pub async fn purge_dead_jobs(
        &self,
        older_than: Duration,
        reason: &str,
    ) -> Result<u64, AdminError> {
        let jobs = self.store.deferred_jobs();
        let purge = async { Ok(jobs.purge_dead(older_than).await?) };
        self.act("purge-dead-jobs", "deferred requests", reason, purge).await
    }

    /// Returns the stored request of a job with its headers and its body. Needs
    /// [`Permission::SeePayloads`].
    ///
    /// # Errors
    ///
    /// [`AdminError::NotPossible`] if the request is not retained or cannot be read; others as in
    /// [`AdminError`].
    pub async fn job_payload(&self, id: &JobId, reason: &str) -> Result<JobRequest, AdminError> {
        let jobs = self.store.deferred_jobs();
        let read = async {
            let sentence = match jobs.request(id).await? {
                RetainedRequest::Whole(request) => return Ok(request),
                RetainedRequest::Unknown => "there is no such job",
                RetainedRequest::NotRetained => "its request is no longer retained",
                RetainedRequest::MissingKey => "its request is sealed with a key that is not here",
                RetainedRequest::NewerVersion => "a newer version has written its request",
                RetainedRequest::Corrupted => "its request was changed in the store",
            };
            Err(AdminError::NotPossible(sentence.to_owned()))
        };
        let (name, needs) = ("job-payload", Permission::SeePayloads);
        self.perform(AdminAction { name, needs, target: id.as_str(), reason }, read).await
    }
}

/// Returns the time between two redrives.
pub(super) fn interval_of(per_second: u32) -> Result<Duration, AdminError> {
    if (1..=1_000).contains(&per_second) {
        Ok(Duration::from_secs(1) / per_second)
    } else {
        Err(AdminError::Invalid("redrive 1 to 1,000 a second".to_owned()))
    }
}

fn unsuitable_state(verb: &str, state: Option<JobState>) -> AdminError {
    AdminError::NotPossible(match state {
        None => "there is no such job".to_owned(),
        Some(state) => format!("it cannot be {verb}: it is {}", state.as_str()),
    })
}
