//! `JobBackend`: operations on deferred requests, implemented by both backends.

use std::time::Duration;

use bytes::Bytes;

use super::{
    claim_and_settle_command::{
        ActiveRun, ClaimCommand, ClaimOutcome, SettleCommand, SettleOutcome,
    },
    direct_run_command::{BeginDirectOutcome, DirectRunCommand},
    enqueue_command::{EnqueueCommand, EnqueueOutcome},
    heartbeat_reply_and_due_locks::{DueLocks, HeartbeatReply},
    job_list_page::{EndedJobFilter, JobListPage, PendingCursor},
    job_view::JobView,
    shard_stats::ShardStats,
};
use crate::{
    key::Key,
    store::{
        backend::StoreFuture,
        job_id::{JobId, JobState},
        lock_token::LockToken,
        node_id::NodeId,
        wakeup_message::WakeupMessage,
    },
};

/// Operations on deferred requests.
pub(crate) trait JobBackend {
    fn enqueue(&self, call: EnqueueCommand) -> StoreFuture<'_, EnqueueOutcome>;
    /// Starts a direct run, before the handler runs and under its lock.
    fn begin_direct(&self, call: DirectRunCommand) -> StoreFuture<'_, BeginDirectOutcome>;
    /// Ends a direct run. `Some` stores the response as that of a done job; `None` deletes the
    /// record, so that a retry runs again. It affects only the run that began with this id; returns
    /// false if nothing of it was running.
    fn finish_direct(
        &self,
        call: DirectRunCommand,
        response: Option<Bytes>,
    ) -> StoreFuture<'_, bool>;
    /// Renews the run that began with this id by its lease. Returns false if nothing of it is
    /// running.
    fn renew_direct(&self, call: DirectRunCommand) -> StoreFuture<'_, bool>;
    /// Ends the run that began with this id as dead, since it is unknown how far it came. Returns
    /// false if nothing of it was running.
    fn mark_direct_dead(
        &self,
        call: DirectRunCommand,
        reason: &'static str,
    ) -> StoreFuture<'_, bool>;
    fn claim(&self, call: ClaimCommand) -> StoreFuture<'_, ClaimOutcome>;
    fn settle(&self, call: SettleCommand) -> StoreFuture<'_, SettleOutcome>;
    /// Cancels a waiting job if its last run began at `began_us` (0 = no run yet), as the caller
    /// has seen. Returns the state afterwards: `Queued` if it has run since and waits again, `None`
    /// for an unknown job.
    fn cancel_waiting_job(
        &self,
        id: JobId,
        began_us: u64,
        retention: Duration,
    ) -> StoreFuture<'_, Option<JobState>>;
    /// Ends the delay or backoff of a queued job that has not run since `began_us`, the start of
    /// the last run that the caller has seen. Returns the state afterwards, `None` for an unknown
    /// job.
    fn end_job_delay(&self, id: JobId, began_us: u64) -> StoreFuture<'_, Option<JobState>>;
    fn job_view(&self, id: JobId) -> StoreFuture<'_, Option<JobView>>;
    /// Returns the run of a job that is in progress. `None` if there is none, or if its lock has
    /// expired or was released. Reads only.
    #[cfg_attr(
        not(feature = "http-replay"),
        allow(dead_code, reason = "used by the replay verifier only")
    )]
    fn active_run(&self, id: JobId) -> StoreFuture<'_, Option<ActiveRun>>;
    /// Returns the request envelope of a job while it is stored: until the job is done.
    fn job_envelope(&self, id: JobId) -> StoreFuture<'_, Option<Bytes>>;
    /// Returns the store's clock in microseconds since 1970, from which ages of jobs are computed.
    fn server_time_us(&self) -> StoreFuture<'_, u64>;
    /// Returns the first job of each queue, `None` for an empty one. All keys are in one shard.
    #[cfg(test)]
    fn heads(&self, keys: Vec<Key>) -> StoreFuture<'_, Vec<Option<JobId>>>;
    /// Returns at most `max_locks` locks that a worker has to poll, by shard. It also moves delayed
    /// jobs that are due into their queues, and expires jobs that are past their deadline.
    fn poll_due(&self, shards: Vec<u16>, max_locks: usize) -> StoreFuture<'_, Vec<DueLocks>>;
    /// Undoes the claim under this token after its caller was dropped: the job is queued again and
    /// the attempt is not charged. The job may be unknown. Returns false if the token has no run.
    fn unclaim(&self, key: Key, token: LockToken, id: Option<JobId>) -> StoreFuture<'_, bool>;
    /// Renews the membership of a worker and its share of the shards. A lease of zero removes it.
    fn heartbeat(&self, node: NodeId, lease: Duration) -> StoreFuture<'_, HeartbeatReply>;
    /// Sends a wake-up to one process.
    fn send_wakeup(&self, node: NodeId, message: WakeupMessage) -> StoreFuture<'_, ()>;
    /// Lists ended jobs of a shard from a mark on (0 = the first), at most 100.
    fn list_ended(
        &self,
        shard: u16,
        filter: EndedJobFilter,
        from_mark: u64,
        limit: usize,
    ) -> StoreFuture<'_, JobListPage>;
    /// Lists waiting and running jobs of a shard from a cursor on, at most 100.
    fn list_pending(
        &self,
        shard: u16,
        cursor: PendingCursor,
        limit: usize,
    ) -> StoreFuture<'_, JobListPage<PendingCursor>>;
    /// Returns a job that died at `ended_us` to the tail of its queue, with all its attempts.
    /// Returns the state afterwards.
    fn redrive_job(&self, id: JobId, ended_us: u64) -> StoreFuture<'_, Option<JobState>>;
    /// Purges a job that ended at `ended_us`. Returns false if there is none.
    fn purge_job(&self, id: JobId, ended_us: u64) -> StoreFuture<'_, bool>;
    fn shard_stats(&self, shard: u16) -> StoreFuture<'_, ShardStats>;
    /// Pauses or resumes deferred requests. While paused, no worker watches a shard: jobs are kept,
    /// and live requests overtake them.
    fn set_jobs_paused(&self, paused: bool) -> StoreFuture<'_, ()>;
    fn are_jobs_paused(&self) -> StoreFuture<'_, bool>;
}
