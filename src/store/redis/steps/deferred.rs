//! The steps of deferred requests, each as its script call.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    key::Key,
    store::{
        backend::{
            Beat, Began, Claim, Claimed, Direct, Due, Enqueue, Enqueued, JobId, JobState, JobView,
            Jobs, Listed, Listing, Node, PendingMark, Running, Settle, SettledRun, Step, Tally,
            Token,
        },
        hints::Hint,
        redis::Redis,
    },
};

impl Jobs for Redis {
    fn enqueue(&self, call: Enqueue) -> Step<'_, Enqueued> {
        Box::pin(self.do_enqueue(call))
    }

    fn begin_direct(&self, call: Direct) -> Step<'_, Began> {
        Box::pin(self.do_begin_direct(call))
    }

    fn end_direct(&self, call: Direct, response: Option<Bytes>) -> Step<'_, bool> {
        let verb = if response.is_some() { "end" } else { "forget" };
        Box::pin(self.do_direct(verb, call, response.unwrap_or_default()))
    }

    fn renew_direct(&self, call: Direct) -> Step<'_, bool> {
        Box::pin(self.do_direct("renew", call, Bytes::new()))
    }

    fn bury_direct(&self, call: Direct, reason: &'static str) -> Step<'_, bool> {
        Box::pin(self.do_direct("bury", call, Bytes::from_static(reason.as_bytes())))
    }

    fn claim(&self, call: Claim) -> Step<'_, Claimed> {
        Box::pin(self.do_claim(call))
    }

    fn settle(&self, call: Settle) -> Step<'_, SettledRun> {
        Box::pin(self.do_settle(call))
    }

    fn cancel(&self, id: JobId, began_us: u64, retention: Duration) -> Step<'_, Option<JobState>> {
        Box::pin(self.do_cancel(id, began_us, retention))
    }

    fn job(&self, id: JobId) -> Step<'_, Option<JobView>> {
        Box::pin(self.do_job(id))
    }

    fn running(&self, id: JobId) -> Step<'_, Option<Running>> {
        Box::pin(self.do_running(id))
    }

    fn envelope(&self, id: JobId) -> Step<'_, Option<Bytes>> {
        Box::pin(self.do_envelope(id))
    }

    fn clock(&self) -> Step<'_, u64> {
        Box::pin(self.do_clock())
    }

    #[cfg(test)]
    fn heads(&self, keys: Vec<Key>) -> Step<'_, Vec<Option<JobId>>> {
        Box::pin(self.do_heads(keys))
    }

    fn due(&self, shards: Vec<u16>, most: usize) -> Step<'_, Vec<Due>> {
        Box::pin(self.do_due(shards, most))
    }

    fn unclaim(&self, key: Key, me: Token, id: Option<JobId>) -> Step<'_, bool> {
        Box::pin(self.do_unclaim(key, me, id))
    }

    fn beat(&self, node: Node, lease: Duration) -> Step<'_, Beat> {
        Box::pin(self.do_beat(node, lease))
    }

    fn tell(&self, node: Node, hint: Hint) -> Step<'_, ()> {
        Box::pin(self.do_tell(node, hint))
    }

    fn list(&self, shard: u16, which: Listing, from: u64, most: usize) -> Step<'_, Listed> {
        Box::pin(self.do_list(shard, which, from, most))
    }

    fn pending(&self, shard: u16, from: PendingMark, most: usize) -> Step<'_, Listed<PendingMark>> {
        Box::pin(self.do_pending(shard, from, most))
    }

    fn redrive(&self, id: JobId, ended_us: u64) -> Step<'_, Option<JobState>> {
        Box::pin(self.do_redrive(id, ended_us))
    }

    fn purge(&self, id: JobId, ended_us: u64) -> Step<'_, bool> {
        Box::pin(self.do_purge(id, ended_us))
    }

    fn tally(&self, shard: u16) -> Step<'_, Tally> {
        Box::pin(self.do_tally(shard))
    }

    fn set_paused(&self, paused: bool) -> Step<'_, ()> {
        Box::pin(self.do_set_paused(paused))
    }

    fn is_paused(&self) -> Step<'_, bool> {
        Box::pin(self.do_is_paused())
    }
}
