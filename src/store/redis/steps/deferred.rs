//! The steps of deferred requests, each as its script call.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    key::Key,
    store::{
        backend::{
            Claim, Claimed, Due, Enqueue, Enqueued, JobId, JobState, JobView, Jobs, Node, Settle,
            SettledRun, Step,
        },
        redis::Redis,
    },
};

impl Jobs for Redis {
    fn enqueue(&self, call: Enqueue) -> Step<'_, Enqueued> {
        Box::pin(self.do_enqueue(call))
    }

    fn claim(&self, call: Claim) -> Step<'_, Claimed> {
        Box::pin(self.do_claim(call))
    }

    fn settle(&self, call: Settle) -> Step<'_, SettledRun> {
        Box::pin(self.do_settle(call))
    }

    fn cancel(&self, id: JobId, retention: Duration) -> Step<'_, Option<JobState>> {
        Box::pin(self.do_cancel(id, retention))
    }

    fn job(&self, id: JobId) -> Step<'_, Option<JobView>> {
        Box::pin(self.do_job(id))
    }

    fn envelope(&self, id: JobId) -> Step<'_, Option<Bytes>> {
        Box::pin(self.do_envelope(id))
    }

    fn clock(&self) -> Step<'_, u64> {
        Box::pin(self.do_clock())
    }

    fn heads(&self, keys: Vec<Key>) -> Step<'_, Vec<Option<JobId>>> {
        Box::pin(self.do_heads(keys))
    }

    fn due(&self, shards: Vec<u16>, most: usize) -> Step<'_, Vec<Due>> {
        Box::pin(self.do_due(shards, most))
    }

    fn watch(&self, node: Node, lease: Duration, most: usize) -> Step<'_, Vec<u16>> {
        Box::pin(self.do_watch(node, lease, most))
    }

    fn present(&self, node: Node, lease: Duration) -> Step<'_, usize> {
        Box::pin(self.do_present(node, lease))
    }
}
