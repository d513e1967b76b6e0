//! Operations of deferred requests.

use std::time::Duration;

use bytes::Bytes;

use super::{MemoryBackend, local_pubsub::OutgoingWakeup, poll_due::PollBudget, ready_ok};
use crate::{
    key::Key,
    store::{
        backend::{
            ActiveRun, BeginDirectOutcome, ClaimCommand, ClaimOutcome, DirectRunCommand, DueLocks,
            EndedFilter, EnqueueCommand, EnqueueOutcome, Heartbeat, JobBackend, JobId, JobListPage,
            JobState, JobView, LockToken, NodeId, PendingCursor, SettleCommand, SettleOutcome,
            ShardStats, StoreFuture,
        },
        wakeups::WakeupMessage,
    },
};

impl JobBackend for MemoryBackend {
    fn enqueue(&self, call: EnqueueCommand) -> StoreFuture<'_, EnqueueOutcome> {
        let key = call.key.clone();
        ready_ok(self.with_lock(&key, |visit| visit.enqueue(call)))
    }

    fn begin_direct(&self, call: DirectRunCommand) -> StoreFuture<'_, BeginDirectOutcome> {
        ready_ok(self.with_lock(&call.key, |visit| visit.begin_direct(&call)))
    }

    fn finish_direct(
        &self,
        call: DirectRunCommand,
        response: Option<Bytes>,
    ) -> StoreFuture<'_, bool> {
        ready_ok(self.with_lock(&call.key, |visit| visit.finish_direct(&call, response.as_ref())))
    }

    fn renew_direct(&self, call: DirectRunCommand) -> StoreFuture<'_, bool> {
        ready_ok(self.with_lock(&call.key, |visit| visit.renew_direct(&call)))
    }

    fn mark_direct_dead(
        &self,
        call: DirectRunCommand,
        reason: &'static str,
    ) -> StoreFuture<'_, bool> {
        ready_ok(self.with_lock(&call.key, |visit| visit.mark_direct_dead(&call, reason)))
    }

    fn claim(&self, call: ClaimCommand) -> StoreFuture<'_, ClaimOutcome> {
        ready_ok(self.with_lock(&call.key, |visit| visit.claim(&call)))
    }

    fn settle(&self, call: SettleCommand) -> StoreFuture<'_, SettleOutcome> {
        let key = call.key.clone();
        ready_ok(self.with_lock(&key, |visit| visit.settle(call)))
    }

    fn cancel_waiting_job(
        &self,
        id: JobId,
        began_us: u64,
        retention: Duration,
    ) -> StoreFuture<'_, Option<JobState>> {
        ready_ok(self.cancel_queued_job(&id, began_us, retention))
    }

    fn job_view(&self, id: JobId) -> StoreFuture<'_, Option<JobView>> {
        ready_ok(self.with_shard(id.shard(), |shard, now| shard.job_view(&id, now)))
    }

    fn active_run(&self, id: JobId) -> StoreFuture<'_, Option<ActiveRun>> {
        ready_ok(self.with_shard(id.shard(), |shard, now| shard.active_run(&id, now)))
    }

    fn job_envelope(&self, id: JobId) -> StoreFuture<'_, Option<Bytes>> {
        ready_ok(self.with_shard(id.shard(), |shard, now| shard.job_envelope(&id, now)))
    }

    fn server_time_us(&self) -> StoreFuture<'_, u64> {
        ready_ok(self.clock.now_us())
    }

    #[cfg(test)]
    fn heads(&self, keys: Vec<Key>) -> StoreFuture<'_, Vec<Option<JobId>>> {
        let one = |key: &Key| self.with_shard(key.shard(), |shard, now| shard.first_job(key, now));
        ready_ok(keys.iter().map(one).collect())
    }

    fn poll_due(&self, shards: Vec<u16>, most: usize) -> StoreFuture<'_, Vec<DueLocks>> {
        let (mut left, mut post) = (PollBudget::new(most), Vec::new());
        let one = |shard: &u16| {
            self.with_shard(*shard, |shard, now| shard.poll_due(&mut left, now, &mut post))
        };
        let due = shards.iter().map(one).collect();
        self.pubsub.publish(post);
        ready_ok(due)
    }

    fn unclaim(&self, key: Key, me: LockToken, id: Option<JobId>) -> StoreFuture<'_, bool> {
        ready_ok(self.with_lock(&key, |visit| visit.unclaim(&me, id)))
    }

    fn heartbeat(&self, node: NodeId, lease: Duration) -> StoreFuture<'_, Heartbeat> {
        ready_ok(self.process_heartbeat(&node, lease))
    }

    fn send_wakeup(&self, node: NodeId, hint: WakeupMessage) -> StoreFuture<'_, ()> {
        if hint.encode().is_some() {
            self.pubsub.publish(vec![OutgoingWakeup {
                recipient: Some(node.as_str().into()),
                message: hint,
            }]);
        }
        ready_ok(())
    }

    fn list_ended(
        &self,
        shard: u16,
        which: EndedFilter,
        from: u64,
        most: usize,
    ) -> StoreFuture<'_, JobListPage> {
        ready_ok(self.with_shard(shard, |shard, now| shard.list_ended(which, from, most, now)))
    }

    fn list_pending(
        &self,
        shard: u16,
        from: PendingCursor,
        most: usize,
    ) -> StoreFuture<'_, JobListPage<PendingCursor>> {
        ready_ok(self.with_shard(shard, |shard, now| shard.list_pending(from, most, now)))
    }

    fn redrive_job(&self, id: JobId, ended_us: u64) -> StoreFuture<'_, Option<JobState>> {
        let key = self.with_shard(id.shard(), |shard, now| shard.lock_of(&id, now));
        ready_ok(key.and_then(|key| self.with_lock(&key, |visit| visit.redrive_job(&id, ended_us))))
    }

    fn purge_job(&self, id: JobId, ended_us: u64) -> StoreFuture<'_, bool> {
        ready_ok(self.with_shard(id.shard(), |shard, now| shard.purge_job(&id, ended_us, now)))
    }

    fn shard_stats(&self, shard: u16) -> StoreFuture<'_, ShardStats> {
        ready_ok(self.with_shard(shard, |shard, now| shard.shard_stats(now)))
    }

    fn are_jobs_paused(&self) -> StoreFuture<'_, bool> {
        ready_ok(self.jobs_paused.load(std::sync::atomic::Ordering::SeqCst))
    }

    fn set_jobs_paused(&self, paused: bool) -> StoreFuture<'_, ()> {
        self.apply_pause(paused);
        ready_ok(())
    }
}
