//! The steps of deferred requests.

use std::time::Duration;

use bytes::Bytes;

use super::{Memory, done, due::Left, post::Mail};
use crate::{
    key::Key,
    store::{
        backend::{
            Beat, Began, Claim, Claimed, Direct, Due, Enqueue, Enqueued, JobId, JobState, JobView,
            Jobs, Listed, Listing, Node, PendingMark, Running, Settle, SettledRun, Step, Tally,
            Token,
        },
        hints::Hint,
    },
};

impl Jobs for Memory {
    fn enqueue(&self, call: Enqueue) -> Step<'_, Enqueued> {
        let key = call.key.clone();
        done(self.visit(&key, |visit| visit.enqueue(call)))
    }

    fn begin_direct(&self, call: Direct) -> Step<'_, Began> {
        done(self.visit(&call.key, |visit| visit.begin_direct(&call)))
    }

    fn end_direct(&self, call: Direct, response: Option<Bytes>) -> Step<'_, bool> {
        done(self.visit(&call.key, |visit| visit.end_direct(&call, response.as_ref())))
    }

    fn renew_direct(&self, call: Direct) -> Step<'_, bool> {
        done(self.visit(&call.key, |visit| visit.renew_direct(&call)))
    }

    fn bury_direct(&self, call: Direct, reason: &'static str) -> Step<'_, bool> {
        done(self.visit(&call.key, |visit| visit.bury_direct(&call, reason)))
    }

    fn claim(&self, call: Claim) -> Step<'_, Claimed> {
        done(self.visit(&call.key, |visit| visit.claim(&call)))
    }

    fn settle(&self, call: Settle) -> Step<'_, SettledRun> {
        let key = call.key.clone();
        done(self.visit(&key, |visit| visit.settle(call)))
    }

    fn cancel(&self, id: JobId, began_us: u64, retention: Duration) -> Step<'_, Option<JobState>> {
        done(self.cancel_job(&id, began_us, retention))
    }

    fn job(&self, id: JobId) -> Step<'_, Option<JobView>> {
        done(self.at(id.shard(), |shard, now| shard.job(&id, now)))
    }

    fn running(&self, id: JobId) -> Step<'_, Option<Running>> {
        done(self.at(id.shard(), |shard, now| shard.running(&id, now)))
    }

    fn envelope(&self, id: JobId) -> Step<'_, Option<Bytes>> {
        done(self.at(id.shard(), |shard, now| shard.envelope(&id, now)))
    }

    fn clock(&self) -> Step<'_, u64> {
        done(self.clock.now_us())
    }

    #[cfg(test)]
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

    fn unclaim(&self, key: Key, me: Token, id: Option<JobId>) -> Step<'_, bool> {
        done(self.visit(&key, |visit| visit.unclaim(&me, id)))
    }

    fn beat(&self, node: Node, lease: Duration) -> Step<'_, Beat> {
        done(self.beats(&node, lease))
    }

    fn tell(&self, node: Node, hint: Hint) -> Step<'_, ()> {
        if hint.text().is_some() {
            self.post.send(vec![Mail { to: Some(node.as_str().into()), hint }]);
        }
        done(())
    }

    fn list(&self, shard: u16, which: Listing, from: u64, most: usize) -> Step<'_, Listed> {
        done(self.at(shard, |shard, now| shard.list(which, from, most, now)))
    }

    fn pending(&self, shard: u16, from: PendingMark, most: usize) -> Step<'_, Listed<PendingMark>> {
        done(self.at(shard, |shard, now| shard.pending(from, most, now)))
    }

    fn redrive(&self, id: JobId, ended_us: u64) -> Step<'_, Option<JobState>> {
        let key = self.at(id.shard(), |shard, now| shard.lock_of(&id, now));
        done(key.and_then(|key| self.visit(&key, |visit| visit.redrive(&id, ended_us))))
    }

    fn purge(&self, id: JobId, ended_us: u64) -> Step<'_, bool> {
        done(self.at(id.shard(), |shard, now| shard.purge(&id, ended_us, now)))
    }

    fn tally(&self, shard: u16) -> Step<'_, Tally> {
        done(self.at(shard, |shard, now| shard.tally(now)))
    }

    fn is_paused(&self) -> Step<'_, bool> {
        done(self.paused.load(std::sync::atomic::Ordering::SeqCst))
    }

    fn set_paused(&self, paused: bool) -> Step<'_, ()> {
        self.pause(paused);
        done(())
    }
}
