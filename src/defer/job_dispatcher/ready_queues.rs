//! Locks that wait for room here: those of requests, and those of callbacks, which have a room of their own.

use tokio::time::Instant;

use super::webhook_ready_queue::WebhookReadyQueue;
use crate::{defer::ready_queue::ReadyQueue, key::Key, store::JobId};

/// Most requests that wait. What is beyond it is found in the due index.
const MAX_QUEUED_REQUESTS: usize = 1_000;

/// Neither stands behind the other: requests may wait for leave for hours, and whom a callback is for may be slow.
#[derive(Default)]
pub(super) struct ReadyQueues {
    requests: ReadyQueue,
    pub(super) webhooks: WebhookReadyQueue,
}

impl ReadyQueues {
    /// Those among which this one waits, for it to be put there.
    pub(super) fn queue_for(&mut self, key: &Key) -> &mut ReadyQueue {
        if key.is_webhook() { self.webhooks.queue_for(key) } else { &mut self.requests }
    }

    /// Whether one more may wait beside this one.
    pub(super) fn accepts(&self, key: &Key) -> bool {
        if key.is_webhook() {
            self.webhooks.accepts()
        } else {
            self.requests.len() < MAX_QUEUED_REQUESTS
        }
    }

    pub(super) fn pop_request(&mut self) -> Option<(Key, Option<JobId>)> {
        self.requests.pop()
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        match key.is_webhook() {
            true => self.webhooks.queue().contains(key),
            false => self.requests.contains(key),
        }
    }

    pub(super) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    pub(super) fn has_webhooks(&self) -> bool {
        !self.webhooks.queue().is_empty()
    }

    pub(super) fn request_count(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.has_requests() && !self.has_webhooks()
    }

    pub(super) fn clear(&mut self) {
        self.requests.clear();
        self.webhooks.clear();
    }

    /// As that of either, for both.
    pub(super) fn next_to_forward(
        &mut self,
        most: usize,
        all: bool,
        now: Instant,
    ) -> Vec<(Key, Option<JobId>)> {
        let mut found = self.webhooks.queue_mut().next_to_forward(most.div_ceil(2), all, now);
        let left = most.saturating_sub(found.len());
        found.extend(self.requests.next_to_forward(left, all, now));
        found
    }
}
