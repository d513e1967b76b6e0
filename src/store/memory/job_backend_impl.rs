//! `JobBackend` for `MemoryBackend`: the operations of deferred requests; each method calls the
//! operation in its own file.

use std::time::Duration;

use bytes::Bytes;

use super::{MemoryBackend, local_pubsub::OutgoingWakeup, poll_due_locks::PollBudget, ready_ok};
use crate::{
    key::Key,
    store::{
        backend::{
            ActiveRun, BeginDirectOutcome, ClaimCommand, ClaimOutcome, DirectRunCommand, DueLocks,
            EndedJobFilter, EnqueueCommand, EnqueueOutcome, HeartbeatReply, JobBackend, JobId,
            JobListPage, JobState, JobView, LockToken, NodeId, PendingCursor, SettleCommand,
            SettleOutcome, ShardStats, StoreFuture,
        },
        wakeup_message::WakeupMessage,
    },
};

impl JobBackend for MemoryBackend {
    fn enqueue(&self, command: EnqueueCommand) -> StoreFuture<'_, EnqueueOutcome> {
        let key = command.key.clone();
        ready_ok(self.with_lock(&key, |transaction| transaction.enqueue(command)))
    }

    fn begin_direct(&self, command: DirectRunCommand) -> StoreFuture<'_, BeginDirectOutcome> {
        ready_ok(self.with_lock(&command.key, |transaction| transaction.begin_direct(&command)))
    }

    fn finish_direct(
        &self,
        command: DirectRunCommand,
        response: Option<Bytes>,
    ) -> StoreFuture<'_, bool> {
        ready_ok(self.with_lock(&command.key, |transaction| {
            transaction.finish_direct(&command, response.as_ref())
        }))
    }

    fn renew_direct(&self, command: DirectRunCommand) -> StoreFuture<'_, bool> {
        ready_ok(self.with_lock(&command.key, |transaction| transaction.renew_direct(&command)))
    }

    fn mark_direct_dead(
        &self,
        command: DirectRunCommand,
        reason: &'static str,
    ) -> StoreFuture<'_, bool> {
        ready_ok(
            self.with_lock(&command.key, |transaction| {
                transaction.mark_direct_dead(&command, reason)
            }),
        )
    }

    fn claim(&self, command: ClaimCommand) -> StoreFuture<'_, ClaimOutcome> {
        ready_ok(self.with_lock(&command.key, |transaction| transaction.claim(&command)))
    }

    fn settle(&self, command: SettleCommand) -> StoreFuture<'_, SettleOutcome> {
        let key = command.key.clone();
        ready_ok(self.with_lock(&key, |transaction| transaction.settle(command)))
    }

    fn cancel_waiting_job(
        &self,
        id: JobId,
        began_us: u64,
        retention: Duration,
    ) -> StoreFuture<'_, Option<JobState>> {
        ready_ok(self.cancel_queued_job(&id, began_us, retention))
    }

    fn end_job_delay(&self, id: JobId, began_us: u64) -> StoreFuture<'_, Option<JobState>> {
        let key = self.with_shard(id.shard(), |shard, now| shard.lock_of(&id, now));
        ready_ok(key.and_then(|key| {
            self.with_lock(&key, |transaction| transaction.end_job_delay(&id, began_us))
        }))
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
        let first_job =
            |key: &Key| self.with_shard(key.shard(), |shard, now| shard.first_job(key, now));
        ready_ok(keys.iter().map(first_job).collect())
    }

    fn poll_due(&self, shards: Vec<u16>, max_locks: usize) -> StoreFuture<'_, Vec<DueLocks>> {
        let (mut budget, mut outbox) = (PollBudget::new(max_locks), Vec::new());
        let poll_shard = |shard: &u16| {
            self.with_shard(*shard, |shard, now| shard.poll_due(&mut budget, now, &mut outbox))
        };
        let due = shards.iter().map(poll_shard).collect();
        self.pubsub.publish(outbox);
        ready_ok(due)
    }

    fn unclaim(&self, key: Key, token: LockToken, id: Option<JobId>) -> StoreFuture<'_, bool> {
        ready_ok(self.with_lock(&key, |transaction| transaction.unclaim(&token, id)))
    }

    fn heartbeat(&self, node: NodeId, lease: Duration) -> StoreFuture<'_, HeartbeatReply> {
        ready_ok(self.process_heartbeat(&node, lease))
    }

    fn send_wakeup(&self, node: NodeId, message: WakeupMessage) -> StoreFuture<'_, ()> {
        if message.encode().is_some() {
            self.pubsub
                .publish(vec![OutgoingWakeup { recipient: Some(node.as_str().into()), message }]);
        }
        ready_ok(())
    }

    fn list_ended(
        &self,
        shard: u16,
        filter: EndedJobFilter,
        from_mark: u64,
        max_jobs: usize,
    ) -> StoreFuture<'_, JobListPage> {
        ready_ok(
            self.with_shard(shard, |shard, now| shard.list_ended(filter, from_mark, max_jobs, now)),
        )
    }

    fn list_pending(
        &self,
        shard: u16,
        after: PendingCursor,
        max_jobs: usize,
    ) -> StoreFuture<'_, JobListPage<PendingCursor>> {
        ready_ok(self.with_shard(shard, |shard, now| shard.list_pending(after, max_jobs, now)))
    }

    fn redrive_job(&self, id: JobId, ended_us: u64) -> StoreFuture<'_, Option<JobState>> {
        let key = self.with_shard(id.shard(), |shard, now| shard.lock_of(&id, now));
        ready_ok(key.and_then(|key| {
            self.with_lock(&key, |transaction| transaction.redrive_job(&id, ended_us))
        }))
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
