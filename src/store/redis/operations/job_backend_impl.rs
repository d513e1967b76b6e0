//! Implementation of [`JobBackend`]: each operation as its script call.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    key::Key,
    store::{
        backend::{
            ActiveRun, BeginDirectOutcome, ClaimCommand, ClaimOutcome, DirectRunCommand, DueLocks,
            EndedFilter, EnqueueCommand, EnqueueOutcome, Heartbeat, JobBackend, JobId, JobListPage,
            JobState, JobView, LockToken, NodeId, PendingCursor, SettleCommand, SettleOutcome,
            ShardStats, StoreFuture,
        },
        redis::RedisBackend,
        wakeups::WakeupMessage,
    },
};

impl JobBackend for RedisBackend {
    fn enqueue(&self, call: EnqueueCommand) -> StoreFuture<'_, EnqueueOutcome> {
        Box::pin(self.do_enqueue(call))
    }

    fn begin_direct(&self, call: DirectRunCommand) -> StoreFuture<'_, BeginDirectOutcome> {
        Box::pin(self.do_begin_direct(call))
    }

    fn finish_direct(
        &self,
        call: DirectRunCommand,
        response: Option<Bytes>,
    ) -> StoreFuture<'_, bool> {
        let verb = if response.is_some() { "end" } else { "forget" };
        Box::pin(self.do_update_direct(verb, call, response.unwrap_or_default()))
    }

    fn renew_direct(&self, call: DirectRunCommand) -> StoreFuture<'_, bool> {
        Box::pin(self.do_update_direct("renew", call, Bytes::new()))
    }

    fn mark_direct_dead(
        &self,
        call: DirectRunCommand,
        reason: &'static str,
    ) -> StoreFuture<'_, bool> {
        Box::pin(self.do_update_direct("bury", call, Bytes::from_static(reason.as_bytes())))
    }

    fn claim(&self, call: ClaimCommand) -> StoreFuture<'_, ClaimOutcome> {
        Box::pin(self.do_claim(call))
    }

    fn settle(&self, call: SettleCommand) -> StoreFuture<'_, SettleOutcome> {
        Box::pin(self.do_settle(call))
    }

    fn cancel_waiting_job(
        &self,
        id: JobId,
        began_us: u64,
        retention: Duration,
    ) -> StoreFuture<'_, Option<JobState>> {
        Box::pin(self.do_cancel_job(id, began_us, retention))
    }

    fn job_view(&self, id: JobId) -> StoreFuture<'_, Option<JobView>> {
        Box::pin(self.do_job_view(id))
    }

    fn active_run(&self, id: JobId) -> StoreFuture<'_, Option<ActiveRun>> {
        Box::pin(self.do_active_run(id))
    }

    fn job_envelope(&self, id: JobId) -> StoreFuture<'_, Option<Bytes>> {
        Box::pin(self.do_job_envelope(id))
    }

    fn server_time_us(&self) -> StoreFuture<'_, u64> {
        Box::pin(self.do_server_time_us())
    }

    #[cfg(test)]
    fn heads(&self, keys: Vec<Key>) -> StoreFuture<'_, Vec<Option<JobId>>> {
        Box::pin(self.do_heads(keys))
    }

    fn poll_due(&self, shards: Vec<u16>, most: usize) -> StoreFuture<'_, Vec<DueLocks>> {
        Box::pin(self.do_poll_due(shards, most))
    }

    fn unclaim(&self, key: Key, me: LockToken, id: Option<JobId>) -> StoreFuture<'_, bool> {
        Box::pin(self.do_unclaim(key, me, id))
    }

    fn heartbeat(&self, node: NodeId, lease: Duration) -> StoreFuture<'_, Heartbeat> {
        Box::pin(self.do_heartbeat(node, lease))
    }

    fn send_wakeup(&self, node: NodeId, hint: WakeupMessage) -> StoreFuture<'_, ()> {
        Box::pin(self.do_send_wakeup(node, hint))
    }

    fn list_ended(
        &self,
        shard: u16,
        which: EndedFilter,
        from: u64,
        most: usize,
    ) -> StoreFuture<'_, JobListPage> {
        Box::pin(self.do_list_ended(shard, which, from, most))
    }

    fn list_pending(
        &self,
        shard: u16,
        from: PendingCursor,
        most: usize,
    ) -> StoreFuture<'_, JobListPage<PendingCursor>> {
        Box::pin(self.do_list_pending(shard, from, most))
    }

    fn redrive_job(&self, id: JobId, ended_us: u64) -> StoreFuture<'_, Option<JobState>> {
        Box::pin(self.do_redrive_job(id, ended_us))
    }

    fn purge_job(&self, id: JobId, ended_us: u64) -> StoreFuture<'_, bool> {
        Box::pin(self.do_purge_job(id, ended_us))
    }

    fn shard_stats(&self, shard: u16) -> StoreFuture<'_, ShardStats> {
        Box::pin(self.do_shard_stats(shard))
    }

    fn set_jobs_paused(&self, paused: bool) -> StoreFuture<'_, ()> {
        Box::pin(self.do_set_jobs_paused(paused))
    }

    fn are_jobs_paused(&self) -> StoreFuture<'_, bool> {
        Box::pin(self.do_are_jobs_paused())
    }
}
