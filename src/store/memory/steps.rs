//! The steps of deferred requests.

use std::time::Duration;

use bytes::Bytes;

use super::{Memory, done, due::Left, post::Mail};
use crate::{
    key::Key,
    store::{
        backend::{
            Heartbeat, BeginDirectOutcome, ClaimCommand, ClaimOutcome, DirectRunCommand, DueLocks, EnqueueCommand, EnqueueOutcome, JobId, JobState, JobView,
            JobBackend, JobListPage, EndedFilter, NodeId, PendingCursor, ActiveRun, SettleCommand, SettleOutcome, StoreFuture, ShardStats,
            LockToken,
        },
        wakeups::WakeupMessage,
    },
};

impl JobBackend for Memory {
    fn enqueue(&self, call: EnqueueCommand) -> StoreFuture<'_, EnqueueOutcome> {
        let key = call.key.clone();
        done(self.visit(&key, |visit| visit.enqueue(call)))
    }

    fn begin_direct(&self, call: DirectRunCommand) -> StoreFuture<'_, BeginDirectOutcome> {
        done(self.visit(&call.key, |visit| visit.begin_direct(&call)))
    }

    fn finish_direct(&self, call: DirectRunCommand, response: Option<Bytes>) -> StoreFuture<'_, bool> {
        done(self.visit(&call.key, |visit| visit.end_direct(&call, response.as_ref())))
    }

    fn renew_direct(&self, call: DirectRunCommand) -> StoreFuture<'_, bool> {
        done(self.visit(&call.key, |visit| visit.renew_direct(&call)))
    }

    fn mark_direct_dead(&self, call: DirectRunCommand, reason: &'static str) -> StoreFuture<'_, bool> {
        done(self.visit(&call.key, |visit| visit.bury_direct(&call, reason)))
    }

    fn claim(&self, call: ClaimCommand) -> StoreFuture<'_, ClaimOutcome> {
        done(self.visit(&call.key, |visit| visit.claim(&call)))
    }

    fn settle(&self, call: SettleCommand) -> StoreFuture<'_, SettleOutcome> {
        let key = call.key.clone();
        done(self.visit(&key, |visit| visit.settle(call)))
    }

    fn cancel_waiting_job(&self, id: JobId, began_us: u64, retention: Duration) -> StoreFuture<'_, Option<JobState>> {
        done(self.cancel_job(&id, began_us, retention))
    }

    fn job_view(&self, id: JobId) -> StoreFuture<'_, Option<JobView>> {
        done(self.at(id.shard(), |shard, now| shard.job(&id, now)))
    }

    fn active_run(&self, id: JobId) -> StoreFuture<'_, Option<ActiveRun>> {
        done(self.at(id.shard(), |shard, now| shard.running(&id, now)))
    }

    fn job_envelope(&self, id: JobId) -> StoreFuture<'_, Option<Bytes>> {
        done(self.at(id.shard(), |shard, now| shard.envelope(&id, now)))
    }

    fn server_time_us(&self) -> StoreFuture<'_, u64> {
        done(self.clock.now_us())
    }

    #[cfg(test)]
    fn heads(&self, keys: Vec<Key>) -> Step<'_, Vec<Option<JobId>>> {
        let one = |key: &Key| self.at(key.shard(), |shard, now| shard.head(key, now));
        done(keys.iter().map(one).collect())
    }

    fn poll_due(&self, shards: Vec<u16>, most: usize) -> StoreFuture<'_, Vec<DueLocks>> {
        let (mut left, mut post) = (Left::new(most), Vec::new());
        let one = |shard: &u16| self.at(*shard, |shard, now| shard.due(&mut left, now, &mut post));
        let due = shards.iter().map(one).collect();
        self.post.send(post);
        done(due)
    }

    fn unclaim(&self, key: Key, me: LockToken, id: Option<JobId>) -> StoreFuture<'_, bool> {
        done(self.visit(&key, |visit| visit.unclaim(&me, id)))
    }

    fn heartbeat(&self, node: NodeId, lease: Duration) -> StoreFuture<'_, Heartbeat> {
        done(self.beats(&node, lease))
    }

    fn send_wakeup(&self, node: NodeId, hint: WakeupMessage) -> StoreFuture<'_, ()> {
        if hint.encode().is_some() {
            self.post.send(vec![Mail { to: Some(node.as_str().into()), hint }]);
        }
        done(())
    }

    fn list_ended(&self, shard: u16, which: EndedFilter, from: u64, most: usize) -> StoreFuture<'_, JobListPage> {
        done(self.at(shard, |shard, now| shard.list(which, from, most, now)))
    }

    fn list_pending(&self, shard: u16, from: PendingCursor, most: usize) -> StoreFuture<'_, JobListPage<PendingCursor>> {
        done(self.at(shard, |shard, now| shard.pending(from, most, now)))
    }

    fn redrive_job(&self, id: JobId, ended_us: u64) -> StoreFuture<'_, Option<JobState>> {
        let key = self.at(id.shard(), |shard, now| shard.lock_of(&id, now));
        done(key.and_then(|key| self.visit(&key, |visit| visit.redrive(&id, ended_us))))
    }

    fn purge_job(&self, id: JobId, ended_us: u64) -> StoreFuture<'_, bool> {
        done(self.at(id.shard(), |shard, now| shard.purge(&id, ended_us, now)))
    }

    fn shard_stats(&self, shard: u16) -> StoreFuture<'_, ShardStats> {
        done(self.at(shard, |shard, now| shard.tally(now)))
    }

    fn are_jobs_paused(&self) -> StoreFuture<'_, bool> {
        done(self.paused.load(std::sync::atomic::Ordering::SeqCst))
    }

    fn set_jobs_paused(&self, paused: bool) -> StoreFuture<'_, ()> {
        self.pause(paused);
        done(())
    }
}
