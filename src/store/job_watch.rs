//! News of one job, shared by all in this process that wait for it.

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

/// How long the poll of another one is waited for. Its future may be one that is not polled: its runtime has ended, or its
/// thread is at something else.
const PEER_POLL_TIMEOUT: Duration = Duration::from_secs(1);

/// Announces that a job has changed, and polls the store once for all that wait for that.
///
/// One of those that wait polls, in its own future. If that is dropped, the next one does.
#[derive(Debug, Default)]
pub(crate) struct JobWatch {
    changes: watch::Sender<u64>,
    /// How often [`PollFreshness::Now`] was asked for.
    fresh_requests: AtomicU64,
    last_poll: Mutex<Option<JobPoll>>,
}

/// The oldest answer that will do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PollFreshness {
    /// Of a poll that begins after this call: whoever asks may have changed the job just before.
    Now,
    /// Of one that began after this change was announced.
    AfterChange(u64),
    /// Of one that began after this moment.
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

    /// Counts the changes that are announced from now on.
    pub(crate) fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The job, by a poll of the store that others may have made. Cancel safe.
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
