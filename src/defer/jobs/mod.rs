//! Deferred requests, for those who run the service: what is there, and what is done about it.
//!
//! [`Store::deferred_jobs`] is the handle. Nothing here shows a body or the value of a header field but
//! [`DeferredJobs::request`], which is for those who may see every client's requests; ids are
//! whole, since an operator needs them, and whoever has one may ask the status resource about it.
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
//! println!("{} wait or run, {} are dead", stats.pending, stats.dead);
//!
//! // What died, page by page: why, and of what kind it was.
//! let mut cursor = Some(JobCursor::default());
//! while let Some(from) = cursor {
//!     let page = jobs.dead_letters(from, 50).await?;
//!     for job in &page.jobs {
//!         println!("{} after {} runs: {:?}", job.id, job.attempts, job.reason);
//!         if let Some(head) = jobs.peek(&job.id).await? {
//!             println!("  {} {}, {} bytes", head.method, head.path, head.body_len);
//!         }
//!     }
//!     cursor = page.next;
//! }
//!
//! // The cause is mended: all of them again, at the tail of their lines, a hundred a second.
//! let back = jobs.redrive_all(Duration::from_millis(10)).await?;
//! // And what nobody wants any more goes.
//! let gone = jobs.purge_dead_letters(Duration::from_secs(7 * 24 * 60 * 60)).await?;
//! println!("{back} again, {gone} gone");
//! # Ok(()) }
//! ```

mod bulk_operations;
mod cancel;
mod deferred_jobs;
mod job_cursor;
mod job_info;
mod job_request;

pub(super) use self::cancel::{CancelOutcome, cancel_job};
pub use crate::error::ParseCursorError;

pub use self::{
    deferred_jobs::DeferredJobs,
    job_cursor::JobCursor,
    job_info::{DeferStats, JobHead, JobInfo, JobPage, JobRun},
    job_request::{JobRequest, RetainedRequest},
};
