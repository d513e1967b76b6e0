//! `JobWatch`: poll of one job, shared by all local callers that wait for it.

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
pub(crate) struct JobWatch {
    changes: watch::Sender<u64>,
    /// Number of requests for [`PollFreshness::Now`].
    fresh_requests: AtomicU64,
    last_poll: Mutex<Option<JobPoll>>,
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

#[derive(Debug)]
struct JobPoll {
    started_at: Instant,
    fresh_requests: u64,
    changes: u64,
    result: Result<Option<JobView>, Error>,
}

impl JobPoll {
    fn satisfies(&self, since: PollFreshness, number: u64) -> bool {
        match since {
            PollFreshness::Now => number < self.fresh_requests,
            PollFreshness::AfterChange(change) => change <= self.changes,
            PollFreshness::AfterInstant(moment) => moment <= self.started_at,
        }
    }
}

impl JobWatch {
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
        since: PollFreshness,
    ) -> Result<Option<JobView>, Error> {
        let number = match since {
            PollFreshness::Now => self.fresh_requests.fetch_add(1, Ordering::AcqRel),
            PollFreshness::AfterChange(_) | PollFreshness::AfterInstant(_) => 0,
        };
        let Ok(mut last) = timeout(PEER_POLL_TIMEOUT, self.last_poll.lock()).await else {
            return store.backend().job_view(id.clone()).await;
        };
        if let Some(poll) = last.as_ref().filter(|poll| poll.satisfies(since, number)) {
            return poll.result.clone();
        }
        let (began, asked) = (Instant::now(), self.fresh_requests.load(Ordering::Acquire));
        let changes = *self.changes.borrow();
        let job = store.backend().job_view(id.clone()).await;
        *last = Some(JobPoll {
            started_at: began,
            fresh_requests: asked,
            changes,
            result: job.clone(),
        });
        job
    }
}
