//! News of one job, shared by all in this process that wait for it.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::{
    sync::{Mutex, watch},
    time::{Instant, timeout},
};

use super::{Store, backend::JobView, job::JobId};
use crate::error::Error;

/// How long the poll of another one is waited for. Its future may be one that is not polled: its runtime has ended, or its
/// thread is at something else.
const PATIENCE: Duration = Duration::from_secs(1);

/// Announces that a job has changed, and polls the store once for all that wait for that.
///
/// One of those that wait polls, in its own future. If that is dropped, the next one does.
#[derive(Debug, Default)]
pub(crate) struct JobWatch {
    changes: watch::Sender<u64>,
    /// How often [`Since::Now`] was asked for.
    asked: AtomicU64,
    last: Mutex<Option<Poll>>,
}

/// The oldest answer that will do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Since {
    /// Of a poll that begins after this call: whoever asks may have changed the job just before.
    Now,
    /// Of one that began after this change was announced.
    Change(u64),
    /// Of one that began after this moment.
    Moment(Instant),
}

#[derive(Debug)]
struct Poll {
    began: Instant,
    asked: u64,
    changes: u64,
    job: Result<Option<JobView>, Error>,
}

impl Poll {
    fn covers(&self, since: Since, number: u64) -> bool {
        match since {
            Since::Now => number < self.asked,
            Since::Change(change) => change <= self.changes,
            Since::Moment(moment) => moment <= self.began,
        }
    }
}

impl JobWatch {
    pub(crate) fn announce(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Counts the changes that are announced from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The job, by a poll of the store that others may have made. Cancel safe.
    pub(crate) async fn job(
        &self,
        store: &Store,
        id: &JobId,
        since: Since,
    ) -> Result<Option<JobView>, Error> {
        let number = match since {
            Since::Now => self.asked.fetch_add(1, Ordering::AcqRel),
            Since::Change(_) | Since::Moment(_) => 0,
        };
        let Ok(mut last) = timeout(PATIENCE, self.last.lock()).await else {
            return store.backend().job(id.clone()).await;
        };
        if let Some(poll) = last.as_ref().filter(|poll| poll.covers(since, number)) {
            return poll.job.clone();
        }
        let (began, asked) = (Instant::now(), self.asked.load(Ordering::Acquire));
        let changes = *self.changes.borrow();
        let job = store.backend().job(id.clone()).await;
        *last = Some(Poll { began, asked, changes, job: job.clone() });
        job
    }
}
