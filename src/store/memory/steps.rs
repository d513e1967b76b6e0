//! The steps of deferred requests.

use std::time::Duration;

use bytes::Bytes;

use super::{Memory, done, shard::Left};
use crate::{
    key::Key,
    store::backend::{
        Claim, Claimed, Direct, Due, Enqueue, Enqueued, JobId, JobState, JobView, Jobs, Node,
        Settle, SettledRun, Step,
    },
};

impl Jobs for Memory {
    fn enqueue(&self, call: Enqueue) -> Step<'_, Enqueued> {
        let key = call.key.clone();
        done(self.visit(&key, |visit| visit.enqueue(call)))
    }

    fn begin_direct(&self, call: Direct) -> Step<'_, Option<JobId>> {
        done(self.visit(&call.key, |visit| visit.begin_direct(&call)))
    }

    fn end_direct(&self, call: Direct, response: Option<Bytes>) -> Step<'_, ()> {
        self.visit(&call.key, |visit| visit.end_direct(&call, response.as_ref()));
        done(())
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

    fn heads(&self, keys: Vec<Key>) -> Step<'_, Vec<Option<JobId>>> {
        let one = |key: &Key| self.at(key.shard(), |shard, now| shard.head(key, now));
        done(keys.iter().map(one).collect())
    }

    fn due(&self, shards: Vec<u16>, most: usize) -> Step<'_, Vec<Due>> {
        let (mut left, mut post) = (Left::new(most), Vec::new());
        let one = |shard: &u16| self.at(*shard, |shard, now| shard.due(&mut left, now, &mut post));
        let due = shards.iter().map(one).collect();
        self.post.send(post);
        done(due)
    }

    fn watch(&self, node: Node, lease: Duration, most: usize) -> Step<'_, Vec<u16>> {
        done(self.watched_by(&node, lease, most))
    }

    fn present(&self, node: Node, lease: Duration) -> Step<'_, usize> {
        done(self.count_workers(node, lease))
    }
}
