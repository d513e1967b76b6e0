//! The steps of deferred requests.

use std::time::Duration;

use bytes::Bytes;

use super::{Memory, done};
use crate::{
    key::Key,
    store::backend::{
        Claim, Claimed, Due, Enqueue, Enqueued, JobId, JobState, JobView, Jobs, Node, Settle,
        SettledRun, Step,
    },
};

impl Jobs for Memory {
    fn enqueue(&self, call: Enqueue) -> Step<'_, Enqueued> {
        let key = call.key.clone();
        done(self.visit(&key, |visit| visit.enqueue(call)))
    }

    fn claim(&self, call: Claim) -> Step<'_, Claimed> {
        done(self.visit(&call.key, |visit| visit.claim(&call)))
    }

    fn settle(&self, call: Settle) -> Step<'_, SettledRun> {
        let key = call.key.clone();
        done(self.visit(&key, |visit| visit.settle(call)))
    }

    fn cancel(&self, id: JobId, retention: Duration) -> Step<'_, Option<JobState>> {
        done(self.cancel_job(&id, retention))
    }

    fn job(&self, id: JobId) -> Step<'_, Option<JobView>> {
        done(self.at(id.shard(), |shard, now| shard.job(&id, now)))
    }

    fn envelope(&self, id: JobId) -> Step<'_, Option<Bytes>> {
        done(self.at(id.shard(), |shard, now| shard.envelope(&id, now)))
    }

    fn clock(&self) -> Step<'_, u64> {
        done(self.clock.now_us())
    }

    fn heads(&self, keys: Vec<Key>) -> Step<'_, Vec<Option<JobId>>> {
        let one = |key: &Key| self.at(key.shard(), |shard, now| shard.head(key, now));
        done(keys.iter().map(one).collect())
    }

    fn due(&self, shards: Vec<u16>, most: usize) -> Step<'_, Vec<Due>> {
        let mut room = most;
        let one = |shard: &u16| {
            let due = self.at(*shard, |shard, now| shard.due(room, now));
            room -= due.names.len();
            due
        };
        done(shards.iter().map(one).collect())
    }

    fn watch(&self, node: Node, lease: Duration, most: usize) -> Step<'_, Vec<u16>> {
        done(self.watched_by(&node, lease, most))
    }

    fn present(&self, node: Node, lease: Duration) -> Step<'_, usize> {
        done(self.count_workers(node, lease))
    }
}
