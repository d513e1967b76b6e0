//! Implementation of [`JobBackend`]: each operation as its script call.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    key::Key,
    store::{
        backend::{
            ActiveRun, BeginDirectOutcome, ClaimCommand, ClaimOutcome, DirectRunCommand, DueLocks,
            EndedJobFilter, EnqueueCommand, EnqueueOutcome, HeartbeatReply, JobBackend, JobId,
            JobListPage, JobState, JobView, LockToken, NodeId, PendingCursor, SettleCommand,
            SettleOutcome, ShardStats, StoreFuture,
        },
        redis::RedisBackend,
        wakeup_message::WakeupMessage,
    },
};

impl JobBackend for RedisBackend {
    fn enqueue(&self, call: EnqueueCommand) -> StoreFuture<'_, EnqueueOutcome> {
        Box::pin(self.enqueue_job(call))
    }

    fn begin_direct(&self, call: DirectRunCommand) -> StoreFuture<'_, BeginDirectOutcome> {
        Box::pin(self.begin_direct_run(call))
    }

    fn finish_direct(
        &self,
        call: DirectRunCommand,
        response: Option<Bytes>,
    ) -> StoreFuture<'_, bool> {
        let verb = if response.is_some() { "end" } else { "discard" };
        Box::pin(self.update_direct_run(verb, call, response.unwrap_or_default()))
    }

    fn renew_direct(&self, call: DirectRunCommand) -> StoreFuture<'_, bool> {
        Box::pin(self.update_direct_run("renew", call, Bytes::new()))
    }

    fn mark_direct_dead(
        &self,
        call: DirectRunCommand,
        reason: &'static str,
    ) -> StoreFuture<'_, bool> {
        Box::pin(self.update_direct_run("mark_dead", call, Bytes::from_static(reason.as_bytes())))
    }

    fn claim(&self, call: ClaimCommand) -> StoreFuture<'_, ClaimOutcome> {
        Box::pin(self.claim_job(call))
    }

    fn settle(&self, call: SettleCommand) -> StoreFuture<'_, SettleOutcome> {
        Box::pin(self.settle_run(call))
    }

    fn cancel_waiting_job(
        &self,
        id: JobId,
        began_us: u64,
        retention: Duration,
    ) -> StoreFuture<'_, Option<JobState>> {
        Box::pin(self.cancel_queued_job(id, began_us, retention))
    }

    fn end_job_delay(&self, id: JobId, began_us: u64) -> StoreFuture<'_, Option<JobState>> {
        Box::pin(self.end_waiting_job_delay(id, began_us))
    }

    fn job_view(&self, id: JobId) -> StoreFuture<'_, Option<JobView>> {
        Box::pin(self.read_job_view(id))
    }

    fn active_run(&self, id: JobId) -> StoreFuture<'_, Option<ActiveRun>> {
        Box::pin(self.read_active_run(id))
    }

    fn job_envelope(&self, id: JobId) -> StoreFuture<'_, Option<Bytes>> {
        Box::pin(self.read_job_envelope(id))
    }

    fn server_time_us(&self) -> StoreFuture<'_, u64> {
        Box::pin(self.read_server_time_us())
    }

    #[cfg(test)]
    fn heads(&self, keys: Vec<Key>) -> StoreFuture<'_, Vec<Option<JobId>>> {
        Box::pin(self.read_queue_heads(keys))
    }

    fn poll_due(&self, shards: Vec<u16>, max_locks: usize) -> StoreFuture<'_, Vec<DueLocks>> {
        Box::pin(self.poll_due_locks(shards, max_locks))
    }

    fn unclaim(&self, key: Key, token: LockToken, id: Option<JobId>) -> StoreFuture<'_, bool> {
        Box::pin(self.undo_claim(key, token, id))
    }

    fn heartbeat(&self, node: NodeId, lease: Duration) -> StoreFuture<'_, HeartbeatReply> {
        Box::pin(self.send_heartbeat(node, lease))
    }

    fn send_wakeup(&self, node: NodeId, message: WakeupMessage) -> StoreFuture<'_, ()> {
        Box::pin(self.send_to_process(node, message))
    }

    fn list_ended(
        &self,
        shard: u16,
        filter: EndedJobFilter,
        after: u64,
        max_jobs: usize,
    ) -> StoreFuture<'_, JobListPage> {
        Box::pin(self.list_ended_jobs(shard, filter, after, max_jobs))
    }

    fn list_pending(
        &self,
        shard: u16,
        cursor: PendingCursor,
        max_jobs: usize,
    ) -> StoreFuture<'_, JobListPage<PendingCursor>> {
        Box::pin(self.list_pending_jobs(shard, cursor, max_jobs))
    }

    fn redrive_job(&self, id: JobId, ended_us: u64) -> StoreFuture<'_, Option<JobState>> {
        Box::pin(self.redrive_ended_job(id, ended_us))
    }

    fn purge_job(&self, id: JobId, ended_us: u64) -> StoreFuture<'_, bool> {
        Box::pin(self.purge_ended_job(id, ended_us))
    }

    fn shard_stats(&self, shard: u16) -> StoreFuture<'_, ShardStats> {
        Box::pin(self.read_shard_stats(shard))
    }

    fn set_jobs_paused(&self, paused: bool) -> StoreFuture<'_, ()> {
        Box::pin(self.pause_or_resume_jobs(paused))
    }

    fn are_jobs_paused(&self) -> StoreFuture<'_, bool> {
        Box::pin(self.read_jobs_paused())
    }
}
