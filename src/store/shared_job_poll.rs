//! `SharedJobPoll`: poll of one job's state, shared by all local callers that wait for its end.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::{
    sync::{Mutex, watch},
    time::{Instant, timeout},
};

use super::{Store, backend::JobView, job_id::JobId};
use crate::error::Error;

/// Time to wait for the poll of another caller. That caller's future may not be polled: its runtime
/// has ended, or its thread is busy.
const PEER_POLL_TIMEOUT: Duration = Duration::from_secs(1);

/// Announces changes of a job, and polls the store once for all waiting callers.
///
/// One of the callers polls in its own future. If that future is dropped, the next caller polls.
#[derive(Debug, Default)]
pub(crate) struct SharedJobPoll {
    changes: watch::Sender<u64>,
    /// Number of requests for [`PollFreshness::Now`].
    now_requests: AtomicU64,
    last_poll: Mutex<Option<LastJobPoll>>,
}

/// Oldest poll that satisfies a caller.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PollFreshness {
    /// A poll that begins after this call: the caller may have changed the job just before.
    Now,
    /// A poll that began after this change was announced.
    AfterChange(u64),
    /// A poll that began at this time or later.
    AfterInstant(Instant),
}

/// Latest poll, with its result.
#[derive(Debug)]
struct LastJobPoll {
    started_at: Instant,
    /// Requests for [`PollFreshness::Now`] that were made before the poll began.
    now_requests: u64,
    /// Changes that were announced before the poll began.
    changes: u64,
    result: Result<Option<JobView>, Error>,
}

impl LastJobPoll {
    fn satisfies(&self, freshness: PollFreshness, request_number: u64) -> bool {
        match freshness {
            PollFreshness::Now => request_number < self.now_requests,
            PollFreshness::AfterChange(change) => change <= self.changes,
            PollFreshness::AfterInstant(instant) => instant <= self.started_at,
        }
    }
}

impl SharedJobPoll {
    pub(crate) fn notify_changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Subscribes to changes announced from now on.
    pub(crate) fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the job from a recent enough poll, which another caller may have made. Cancel safe.
    pub(crate) async fn poll_job(
        &self,
        store: &Store,
        id: &JobId,
        freshness: PollFreshness,
    ) -> Result<Option<JobView>, Error> {
        let request_number = match freshness {
            PollFreshness::Now => self.now_requests.fetch_add(1, Ordering::AcqRel),
            PollFreshness::AfterChange(_) | PollFreshness::AfterInstant(_) => 0,
        };
        let Ok(mut last_poll) = timeout(PEER_POLL_TIMEOUT, self.last_poll.lock()).await else {
            return store.backend().job_view(id.clone()).await;
        };
        let reusable = last_poll.as_ref().filter(|poll| poll.satisfies(freshness, request_number));
        if let Some(poll) = reusable {
            return poll.result.clone();
        }
        let started_at = Instant::now();
        let now_requests = self.now_requests.load(Ordering::Acquire);
        let changes = *self.changes.borrow();
        let result = store.backend().job_view(id.clone()).await;
        *last_poll =
            Some(LastJobPoll { started_at, now_requests, changes, result: result.clone() });
        result
    }
}
