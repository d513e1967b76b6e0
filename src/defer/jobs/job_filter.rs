//! [`JobFilter`]: which jobs a search returns.

use std::fmt;

use super::{
    job_cursor::JobCursor,
    job_group::JobGroup,
    job_info::{JobInfo, JobPage},
    single_job_admin::DeferredJobs,
};
use crate::{
    error::Error,
    key::{Key, LogHash},
    store::JobState,
};

/// Jobs that a [search](DeferredJobs::find) returns: those of one group, or fewer.
#[derive(Clone, PartialEq, Eq)]
pub struct JobFilter {
    group: JobGroup,
    owner: Option<String>,
    reason: Option<String>,
    route: Option<String>,
    lock: Option<Key>,
}

impl JobFilter {
    /// Returns all jobs of a group.
    #[must_use]
    pub fn new(group: JobGroup) -> Self {
        Self { group, owner: None, reason: None, route: None, lock: None }
    }

    /// Returns only jobs of this owner. By default the owner does not matter; an empty one finds
    /// jobs without an owner.
    #[must_use]
    pub fn owner(self, owner: impl Into<String>) -> Self {
        Self { owner: Some(owner.into()), ..self }
    }

    /// Returns only jobs with a reason that contains this text, in the same case. By default the
    /// reason does not matter.
    #[must_use]
    pub fn reason(self, text: impl Into<String>) -> Self {
        Self { reason: Some(text.into()), ..self }
    }

    /// Returns only jobs with a [route](JobInfo::route) that contains this text, in the same case.
    /// By default the route does not matter.
    #[must_use]
    pub fn route(self, text: impl Into<String>) -> Self {
        Self { route: Some(text.into()), ..self }
    }

    /// Returns only jobs of this lock. By default the lock does not matter.
    #[must_use]
    pub fn lock(self, key: impl Into<Key>) -> Self {
        Self { lock: Some(key.into()), ..self }
    }

    /// Returns a page of the listing that contains the group.
    pub(super) async fn list(
        &self,
        jobs: &DeferredJobs,
        from: JobCursor,
        max_jobs: usize,
    ) -> Result<JobPage, Error> {
        match self.group {
            JobGroup::Pending | JobGroup::Waiting | JobGroup::Delayed | JobGroup::Running => {
                jobs.pending(from, max_jobs).await
            }
            JobGroup::Done => jobs.done(from, max_jobs).await,
            JobGroup::Dead => jobs.dead(from, max_jobs).await,
        }
    }

    pub(super) fn matches(&self, job: &JobInfo) -> bool {
        let waits_for_time = job.due_in.is_some();
        let is_in_group = match self.group {
            JobGroup::Waiting => job.state == JobState::Queued && !waits_for_time,
            JobGroup::Delayed => job.state == JobState::Queued && waits_for_time,
            JobGroup::Running => job.state == JobState::Running,
            JobGroup::Pending | JobGroup::Done | JobGroup::Dead => true,
        };
        let reason = job.reason.as_deref().unwrap_or_default();
        let route = job.route.as_deref().unwrap_or_default();
        is_in_group
            && self.owner.as_ref().is_none_or(|owner| *owner == job.owner)
            && self.reason.as_ref().is_none_or(|text| reason.contains(text.as_str()))
            && self.lock.as_ref().is_none_or(|lock| job.lock.as_ref() == Some(lock))
            && self.route.as_ref().is_none_or(|text| route.contains(text.as_str()))
    }
}

impl fmt::Debug for JobFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The owner is an account, as in `JobInfo`.
        f.debug_struct("JobFilter")
            .field("group", &self.group)
            .field("owner", &self.owner.as_ref().map(|owner| LogHash(owner).to_string()))
            .field("reason", &self.reason)
            .field("route", &self.route)
            .field("lock", &self.lock)
            .finish()
    }
}
