//! Administration of deferred requests: listing, redriving, cancelling, purging, pausing.
//!
//! [`Store::deferred_jobs`] returns the handle. Only [`DeferredJobs::request`] shows bodies and
//! values of headers; it is for operators that may see every client's requests. Ids are complete,
//! since operators need them; knowing an id permits asking the status resource about it.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use lockgate::{Store, defer::JobCursor};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), lockgate::Error> {
//! let store = Store::memory(); // or Store::connect("redis://127.0.0.1/").await?
//! let jobs = store.deferred_jobs();
//!
//! let stats = jobs.stats().await?;
//! println!("{} queued or running, {} dead", stats.pending, stats.dead);
//!
//! // Dead letters, page by page, with their reasons.
//! let mut cursor = Some(JobCursor::default());
//! while let Some(from) = cursor {
//!     let page = jobs.dead(from, 50).await?;
//!     for job in &page.jobs {
//!         println!("{} after {} runs: {:?}", job.id, job.attempts, job.reason);
//!         if let Some(head) = jobs.peek(&job.id).await? {
//!             println!("  {} {}, {} bytes", head.method, head.path, head.body_len);
//!         }
//!     }
//!     cursor = page.next;
//! }
//!
//! // After the cause is fixed: redrive them, a hundred per second.
//! let moved = jobs.redrive_all(Duration::from_millis(10)).await?;
//! // Delete those that are a week old.
//! let purged = jobs.purge_dead(Duration::from_secs(7 * 24 * 60 * 60)).await?;
//! println!("{moved} redriven, {purged} purged");
//! # Ok(()) }
//! ```

mod bulk_redrive_and_purge;
mod cancel_waiting_job;
mod job_cursor;
mod job_filter;
mod job_group;
mod job_info;
mod job_listings;
mod job_request;
mod job_search;
mod pause_and_stats;
mod single_job_admin;

pub(super) use self::cancel_waiting_job::{CANCELLED_RETENTION, CancelOutcome, cancel_job};
pub use crate::error::ParseCursorError;

pub use self::{
    job_cursor::JobCursor,
    job_filter::JobFilter,
    job_group::JobGroup,
    job_info::{DeferStats, JobHead, JobInfo, JobPage, JobRun},
    job_request::{JobRequest, RetainedRequest},
    job_search::JobSearchPage,
    single_job_admin::DeferredJobs,
};
