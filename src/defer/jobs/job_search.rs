//! Search for jobs of a listing, with a bound on the jobs that it reads.

use serde::Serialize;

use super::{
    job_cursor::JobCursor, job_filter::JobFilter, job_info::JobInfo, single_job_admin::DeferredJobs,
};
use crate::error::Error;

/// Jobs that one call reads before it returns what it has found.
const MAX_EXAMINED_JOBS: usize = 1_000;

/// A page of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JobSearchPage {
    /// Jobs that match, at most as many as requested, in no order of time.
    pub jobs: Vec<JobInfo>,
    /// Number of jobs that were read for this page, matching or not.
    /// [`DeferredJobs::stats`] has the number of all jobs.
    pub examined: usize,
    /// Start of the next page; `None` after the last one. A page before it may have few jobs, or
    /// none.
    pub next: Option<JobCursor>,
}

impl DeferredJobs {
    /// Finds jobs that match a filter, at most `max_jobs` of them (1 to 100).
    ///
    /// The store has no index of owners, locks, routes and reasons. One call reads about 1,000 jobs
    /// at most, says how many it has read, and returns a cursor to go on. What a listing may miss,
    /// such as [`pending`](Self::pending), a search may miss too.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockgate::Error> {
    /// use lockgate::{
    ///     Store,
    ///     defer::{JobCursor, JobFilter, JobGroup},
    /// };
    ///
    /// let jobs = Store::memory().deferred_jobs();
    /// let filter = JobFilter::new(JobGroup::Dead).owner("ada").reason("status 503");
    /// let page = jobs.find(&filter, JobCursor::default(), 20).await?;
    /// assert_eq!((page.jobs.len(), page.examined, page.next), (0, 0, None));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable.
    pub async fn find(
        &self,
        filter: &JobFilter,
        from: JobCursor,
        max_jobs: usize,
    ) -> Result<JobSearchPage, Error> {
        let max_jobs = max_jobs.clamp(1, 100);
        let mut page = JobSearchPage { next: Some(from), ..JobSearchPage::default() };
        while page.jobs.len() < max_jobs
            && page.examined < MAX_EXAMINED_JOBS
            && let Some(from) = page.next
        {
            let listed = filter.list(self, from, max_jobs - page.jobs.len()).await?;
            page.examined += listed.jobs.len();
            page.next = listed.next;
            page.jobs.extend(listed.jobs.into_iter().filter(|job| filter.matches(job)));
        }
        Ok(page)
    }
}
