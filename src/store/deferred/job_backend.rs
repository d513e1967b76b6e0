//! The steps themselves, as both stores have them.

use std::time::Duration;

use bytes::Bytes;

use super::{
    claimed_run::{ActiveRun, ClaimCommand, ClaimOutcome, SettleCommand, SettleOutcome},
    enqueue_command::{BeginDirectOutcome, DirectRunCommand, EnqueueCommand, EnqueueOutcome},
    job_view::{DueLocks, EndedFilter, Heartbeat, JobListPage, JobView, PendingCursor, ShardStats},
};
use crate::{
    key::Key,
    store::{
        backend::{LockToken, NodeId, StoreFuture},
        job_id::{JobId, JobState},
        wakeups::WakeupMessage,
    },
};

/// The steps of deferred requests.
pub(crate) trait JobBackend {
    fn enqueue(&self, call: EnqueueCommand) -> StoreFuture<'_, EnqueueOutcome>;
    /// Before the handler runs, under its lock.
    fn begin_direct(&self, call: DirectRunCommand) -> StoreFuture<'_, BeginDirectOutcome>;
    /// After it: `Some` keeps this stored response as that of a job that is done, `None` forgets the record, so that
    /// a retry runs again. Ends nothing but what began with this id; false if nothing of it ran any more.
    fn finish_direct(
        &self,
        call: DirectRunCommand,
        response: Option<Bytes>,
    ) -> StoreFuture<'_, bool>;
    /// Prolongs the run that began with this id by its lease; false if nothing of it runs any more.
    fn renew_direct(&self, call: DirectRunCommand) -> StoreFuture<'_, bool>;
    /// Ends the run that began with this id as dead, since it is unknown how far it came; false as above.
    fn mark_direct_dead(
        &self,
        call: DirectRunCommand,
        reason: &'static str,
    ) -> StoreFuture<'_, bool>;
    fn claim(&self, call: ClaimCommand) -> StoreFuture<'_, ClaimOutcome>;
    fn settle(&self, call: SettleCommand) -> StoreFuture<'_, SettleOutcome>;
    /// Cancels a job that waits, as it was seen: the last run began then, or never (0). The state afterwards, `Queued`
    /// if it has run since and waits again; `None` for an unknown job.
    fn cancel_waiting_job(
        &self,
        id: JobId,
        began_us: u64,
        retention: Duration,
    ) -> StoreFuture<'_, Option<JobState>>;
    fn job_view(&self, id: JobId) -> StoreFuture<'_, Option<JobView>>;
    /// The run of a job that is under way: `running.lua`, reads only. `None` if there is none, or if the lock under it
    /// has lapsed or was given back.
    #[cfg_attr(
        not(feature = "http-replay"),
        allow(dead_code, reason = "nobody else asks whether a run is one")
    )]
    fn active_run(&self, id: JobId) -> StoreFuture<'_, Option<ActiveRun>>;
    /// The envelope of a job, as long as it is kept: until it has ended well.
    fn job_envelope(&self, id: JobId) -> StoreFuture<'_, Option<Bytes>>;
    /// The store's clock, in microseconds since 1970: what ages of jobs are told by.
    fn server_time_us(&self) -> StoreFuture<'_, u64>;
    /// The first jobs of these lines, none where a line has none. All of one shard.
    #[cfg(test)]
    fn heads(&self, keys: Vec<Key>) -> StoreFuture<'_, Vec<Option<JobId>>>;
    /// Moves what is late and has come due into its line, expires what is past its deadline, and says
    /// which locks are worth a visit.
    fn poll_due(&self, shards: Vec<u16>, most: usize) -> StoreFuture<'_, Vec<DueLocks>>;
    /// Undoes the claim under this token, whose caller has gone: the job waits again, uncharged. It may not be
    /// known which job it was. False if the token runs none, or none any more.
    fn unclaim(&self, key: Key, me: LockToken, id: Option<JobId>) -> StoreFuture<'_, bool>;
    /// A worker's sign of life: it is counted, and keeps its part of the shards. A lease of zero: it leaves.
    fn heartbeat(&self, node: NodeId, lease: Duration) -> StoreFuture<'_, Heartbeat>;
    /// Sends a hint to one process.
    fn send_wakeup(&self, node: NodeId, hint: WakeupMessage) -> StoreFuture<'_, ()>;
    /// Ended jobs of a shard, from a mark on (0 = the first), at most 100.
    fn list_ended(
        &self,
        shard: u16,
        which: EndedFilter,
        from: u64,
        most: usize,
    ) -> StoreFuture<'_, JobListPage>;
    /// Jobs of a shard that wait or run, from behind a mark, at most 100.
    fn list_pending(
        &self,
        shard: u16,
        from: PendingCursor,
        most: usize,
    ) -> StoreFuture<'_, JobListPage<PendingCursor>>;
    /// Puts a job that died then back, at the tail of its line, with its attempts to come. The state afterwards.
    fn redrive_job(&self, id: JobId, ended_us: u64) -> StoreFuture<'_, Option<JobState>>;
    /// Forgets a job that ended then, with all that is kept of it. False if there is none that has.
    fn purge_job(&self, id: JobId, ended_us: u64) -> StoreFuture<'_, bool>;
    fn shard_stats(&self, shard: u16) -> StoreFuture<'_, ShardStats>;
    /// While paused, no worker watches: jobs are kept, and live requests pass them.
    fn set_jobs_paused(&self, paused: bool) -> StoreFuture<'_, ()>;
    fn are_jobs_paused(&self) -> StoreFuture<'_, bool>;
}
