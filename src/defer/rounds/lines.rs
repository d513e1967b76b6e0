//! Locks that wait for room here: those of requests, and those of callbacks, which have a room of their own.

use tokio::time::Instant;

use super::calls::Calls;
use crate::{defer::waiting::Waiting, key::Key, store::JobId};

/// Most requests that wait. What is beyond it is found in the due index.
const MOST_WAITING: usize = 1_000;

/// Neither stands behind the other: requests may wait for leave for hours, and whom a callback is for may be slow.
#[derive(Default)]
pub(super) struct Lines {
    requests: Waiting,
    pub(super) calls: Calls,
}

impl Lines {
    /// Those among which this one waits, for it to be put there.
    pub(super) fn entering(&mut self, key: &Key) -> &mut Waiting {
        if key.is_of_callback() { self.calls.entering(key) } else { &mut self.requests }
    }

    /// Whether one more may wait beside this one.
    pub(super) fn takes(&self, key: &Key) -> bool {
        if key.is_of_callback() { self.calls.takes() } else { self.requests.len() < MOST_WAITING }
    }

    pub(super) fn pop_request(&mut self) -> Option<(Key, Option<JobId>)> {
        self.requests.pop()
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        match key.is_of_callback() {
            true => self.calls.waiting().contains(key),
            false => self.requests.contains(key),
        }
    }

    pub(super) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    pub(super) fn has_calls(&self) -> bool {
        !self.calls.waiting().is_empty()
    }

    pub(super) fn requests(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.has_requests() && !self.has_calls()
    }

    pub(super) fn clear(&mut self) {
        self.requests.clear();
        self.calls.clear();
    }

    /// As that of either, for both.
    pub(super) fn next_to_tell(
        &mut self,
        most: usize,
        all: bool,
        now: Instant,
    ) -> Vec<(Key, Option<JobId>)> {
        let mut found = self.calls.waiting_mut().next_to_tell(most.div_ceil(2), all, now);
        let left = most.saturating_sub(found.len());
        found.extend(self.requests.next_to_tell(left, all, now));
        found
    }
}
