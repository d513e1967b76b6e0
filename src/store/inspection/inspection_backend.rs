//! [`InspectionBackend`]: operations of operators on the namespace as a whole.

use std::time::Duration;

use super::{audit_entry::AuditEntry, lock_snapshot::LockSnapshot};
use crate::{key::Key, store::backend::StoreFuture};

/// Number of registered queues, of which the oldest are forgotten. Names are constants of programs;
/// the bound is for a program that makes them from data.
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "a bound of Redis"))]
pub(crate) const MAX_REGISTERED_QUEUES: u64 = 10_000;

/// Most queues that one call lists.
pub(crate) const MAX_LISTED_QUEUES: usize = 1_000;

/// Operations of operators, part of [`Backend`](crate::store::backend::Backend).
pub(crate) trait InspectionBackend {
    /// Appends a record to the audit log and returns its number. Never sent twice.
    fn append_audit_record(&self, record: String) -> StoreFuture<'_, u64>;
    /// Replaces a record when its action has ended. Returns false if the record is gone.
    fn replace_audit_record(
        &self,
        number: u64,
        initial: String,
        finished: String,
    ) -> StoreFuture<'_, bool>;
    /// Returns at most `max_records` records before this number, the newest first; 0 is the newest
    /// page.
    fn read_audit_records(
        &self,
        before: u64,
        max_records: usize,
    ) -> StoreFuture<'_, Vec<AuditEntry>>;
    /// Registers the name of a task queue, so that it is listed.
    fn register_queue(&self, name: Key) -> StoreFuture<'_, ()>;
    /// Returns the names of at most `MAX_LISTED_QUEUES` task queues, the last registered first.
    fn list_queues(&self) -> StoreFuture<'_, Vec<Key>>;
    /// Returns who holds a lock, who waits for it, and its jobs.
    fn inspect_lock(&self, key: Key) -> StoreFuture<'_, LockSnapshot>;
    /// Takes a lock from its holders, tells their processes, and offers it to its queue. Returns
    /// the number of holders. Never sent twice.
    fn force_release(&self, key: Key) -> StoreFuture<'_, usize>;
    /// Asks all processes to end the run of the job or task with this id.
    fn cancel_run(&self, id: String) -> StoreFuture<'_, ()>;
    /// Sends an inquiry to all processes, and returns the number of receivers as far as the store
    /// knows it.
    fn ask_fleet(&self, inquiry: String, lock: Option<Key>) -> StoreFuture<'_, u64>;
    /// Appends the report of a process to the answers to an inquiry.
    fn append_report(&self, inquiry: String, report: String) -> StoreFuture<'_, ()>;
    /// Returns the answers to an inquiry so far, after the first `skipped` ones.
    fn read_reports(&self, inquiry: String, skipped: usize) -> StoreFuture<'_, Vec<String>>;
    /// Returns the nodes in the registry of workers for deferred requests, of which an expired one
    /// may be gone, and the rest of the lease of each; zero after its end.
    fn list_registered_workers(&self) -> StoreFuture<'_, Vec<(String, Duration)>>;
    /// Returns the number of live workers for deferred requests.
    #[cfg_attr(
        not(any(feature = "console", feature = "metrics")),
        allow(dead_code, reason = "read by the console and by metrics only")
    )]
    fn count_live_workers(&self) -> StoreFuture<'_, u64>;
}
