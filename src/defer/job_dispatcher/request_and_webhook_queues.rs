//! `RequestAndWebhookQueues`: ready locks of a worker, one queue for requests and one for webhooks,
//! with separate slots.

use tokio::time::Instant;

use super::webhook_ready_queue::WebhookReadyQueue;
use crate::{defer::ready_queue::ReadyQueue, key::Key, store::JobId};

/// Most request locks that wait here. The due index has the others.
const MAX_QUEUED_REQUESTS: usize = 1_000;

/// Separate queues, so that neither blocks the other: requests may wait hours for a permit, and
/// webhook receivers may be slow.
#[derive(Default)]
pub(super) struct RequestAndWebhookQueues {
    requests: ReadyQueue,
    pub(super) webhooks: WebhookReadyQueue,
}

impl RequestAndWebhookQueues {
    /// Returns the queue for this lock. Call it only to push the lock.
    pub(super) fn queue_for(&mut self, key: &Key) -> &mut ReadyQueue {
        if key.is_webhook() { self.webhooks.queue_for(key) } else { &mut self.requests }
    }

    /// Returns true if the queue for this lock accepts one more.
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

    /// Like [`ReadyQueue::next_to_forward`], over both queues. Webhooks get at most half of
    /// `max_locks`, rounded up.
    pub(super) fn next_to_forward(
        &mut self,
        max_locks: usize,
        all: bool,
        now: Instant,
    ) -> Vec<(Key, Option<JobId>)> {
        let mut locks = self.webhooks.queue_mut().next_to_forward(max_locks.div_ceil(2), all, now);
        let remaining = max_locks.saturating_sub(locks.len());
        locks.extend(self.requests.next_to_forward(remaining, all, now));
        locks
    }
}
