//! Operations: what there is, what has died, and what is to become of it.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, SystemTime},
};

use serde::de::DeserializeOwned;

use super::{handle::Queue, sealed_payload::open_payload, task::system_time};
use crate::{
    clock::MAX_DURATION,
    error::{Error, ErrorKind, ParseCursorError},
    store::{MAX_TASKS_PER_STEP, QueueStats, TaskFault, TaskId, TaskState, TaskView},
};

/// What is told of a task; never its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskInfo {
    /// Its id.
    pub id: TaskId,
    /// Where it is.
    pub state: TaskState,
    /// How long until it may be run; zero if it may, or does not wait.
    pub due_in: Duration,
    /// When it was pushed, by the store's clock.
    pub pushed_at: SystemTime,
    /// Bytes of its payload.
    pub bytes: u64,
    /// Attempts that went wrong so far, since it was last redriven.
    pub attempts: u32,
    /// Those of them that were crashes.
    pub crashes: u32,
    /// The last of them, at most 8, the latest one at the end; that of a dead letter says why it died.
    pub history: Vec<TaskAttempt>,
}

/// An attempt that went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskAttempt {
    /// When it was over, by the store's clock.
    pub at: SystemTime,
    /// In what way.
    pub fault: TaskFault,
    /// What the handler said, or what happened.
    pub reason: String,
}

/// Some of the dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskPage {
    /// The oldest first.
    pub tasks: Vec<TaskInfo>,
    /// Where the next page starts; `None`: there is none.
    pub next: Option<DeadLetterCursor>,
}

/// A place between two pages of dead letters; as text it can go through an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadLetterCursor(u64);

impl fmt::Display for DeadLetterCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for DeadLetterCursor {
    type Err = ParseCursorError;

    fn from_str(text: &str) -> Result<Self, ParseCursorError> {
        text.parse().map(Self).map_err(|_| ParseCursorError)
    }
}

impl From<TaskView> for TaskInfo {
    fn from(view: TaskView) -> Self {
        let past = view.history.failures.into_iter().map(|past| TaskAttempt {
            at: system_time(past.at_us),
            fault: past.fault,
            reason: past.reason,
        });
        Self {
            id: view.id,
            state: view.state,
            due_in: view.due_in,
            pushed_at: system_time(view.pushed_us),
            bytes: view.payload_bytes,
            attempts: view.history.attempts,
            crashes: view.history.crashes,
            history: past.collect(),
        }
    }
}

/// Each is one call, or one for every hundred tasks, or 4 MiB of them. Those that change something are not sent again
/// once they may have run: on a timeout, or if the future is dropped, look.
impl<T> Queue<T> {
    /// What is known of a task; `None` if it is done, cancelled, thrown away or unknown.
    ///
    /// # Errors
    ///
    /// The store is away.
    pub async fn get(&self, id: &TaskId) -> Result<Option<TaskInfo>, Error> {
        let view = self.store.backend().task_view(self.name.clone(), id.clone()).await?;
        Ok(view.map(Into::into))
    }

    /// Takes a task out of the queue if it waits. Returns where it was: a [running](TaskState::Running) or
    /// [dead](TaskState::Dead) one stays as it is; `None` as in [`get`](Self::get).
    ///
    /// # Errors
    ///
    /// The store is away. On a timeout it may have been cancelled.
    pub async fn cancel(&self, id: &TaskId) -> Result<Option<TaskState>, Error> {
        self.store.backend().cancel_task(self.name.clone(), id.clone()).await
    }

    /// Dead letters, the oldest first: at most `most` (1 to 100) behind the cursor, from the beginning without one. Of large
    /// ones a page has fewer, 4 MiB, but one in any case: it is the last one if it names no [next](TaskPage::next).
    ///
    /// # Errors
    ///
    /// The store is away.
    pub async fn dead_letters(
        &self,
        after: Option<DeadLetterCursor>,
        most: usize,
    ) -> Result<TaskPage, Error> {
        let (after, most) = (after.map_or(0, |cursor| cursor.0), most.clamp(1, MAX_TASKS_PER_STEP));
        let page = self.store.backend().list_dead_letters(self.name.clone(), after, most).await?;
        let tasks = page.letters.into_iter().map(Into::into).collect();
        Ok(TaskPage { tasks, next: page.next.map(DeadLetterCursor) })
    }

    /// Puts a dead letter at the tail of the queue, with all its attempts before it; its history stays. False if it is
    /// none.
    ///
    /// It has its [unique key](super::PushRequest::unique) again, unless another task has that by now: then it waits
    /// without one. Once the other has ended, a further task may be stored under the key, beside this one.
    ///
    /// # Errors
    ///
    /// The store is away. On a timeout it may have been done.
    pub async fn redrive(&self, id: &TaskId) -> Result<bool, Error> {
        self.store.backend().redrive_dead_letter(self.name.clone(), id.clone()).await
    }

    /// As [`redrive`](Self::redrive), for all dead letters there are now, the oldest first; each becomes due by
    /// `spacing` later than the one before it, so what killed them is not met by all at once. How many.
    ///
    /// # Errors
    ///
    /// The store is away. Some may have been put back.
    pub async fn redrive_all(&self, spacing: Duration) -> Result<u64, Error> {
        let (backend, mut moved) = (self.store.backend(), 0);
        let all = self.stats().await?.dead_letters;
        let spacing = spacing.min(MAX_DURATION);
        while moved < all {
            let left =
                usize::try_from(all - moved).unwrap_or(MAX_TASKS_PER_STEP).min(MAX_TASKS_PER_STEP);
            let first = spacing.saturating_mul(u32::try_from(moved).unwrap_or(u32::MAX));
            let first = first.min(MAX_DURATION);
            let name = self.name.clone();
            let page = backend.redrive_dead_letters(name, left, first, spacing).await?;
            if page == 0 {
                break;
            }
            moved += page as u64;
        }
        Ok(moved)
    }

    /// Throws away all that waits, what is delayed and what is to be tried again included; how many. What runs goes
    /// on; what is pushed after it began, and dead letters, stay. Of what comes back to wait before it is through (a retry,
    /// a redriven letter) some may go, too.
    ///
    /// # Errors
    ///
    /// The store is away. Some may be gone.
    pub async fn purge_waiting(&self) -> Result<u64, Error> {
        let (mut gone, mut walk) = (0, None);
        loop {
            let name = self.name.clone();
            let page = self.store.backend().purge_waiting(name, walk, MAX_TASKS_PER_STEP).await?;
            gone += page.purged as u64;
            walk = page.next;
            if walk.is_none() {
                return Ok(gone);
            }
        }
    }

    /// Throws a dead letter away; false if it is none. It is [counted](QueueStats::trimmed).
    ///
    /// # Errors
    ///
    /// The store is away. On a timeout it may be gone.
    pub async fn purge_dead_letter(&self, id: &TaskId) -> Result<bool, Error> {
        self.store.backend().purge_dead_letter(self.name.clone(), id.clone()).await
    }

    /// Throws away the dead letters; how many.
    ///
    /// # Errors
    ///
    /// The store is away. Some may be gone.
    pub async fn purge_dead_letters(&self) -> Result<u64, Error> {
        // No more than there were when it began: others may die all the time.
        let (all, mut gone) = (self.stats().await?.dead_letters, 0);
        while gone < all {
            let page = self.store.backend().purge_dead_letters(self.name.clone()).await?;
            if page == 0 {
                break;
            }
            gone += page as u64;
        }
        Ok(gone)
    }

    /// No task of the queue is started any more, by any worker, until it is [resumed](Self::resume). What
    /// runs goes on.
    ///
    /// # Errors
    ///
    /// The store is away. On a timeout it may be paused; asking again does no harm.
    pub async fn pause(&self) -> Result<(), Error> {
        self.store.backend().set_tasks_paused(self.name.clone(), true).await
    }

    /// Ends a [pause](Self::pause), and wakes a worker.
    ///
    /// # Errors
    ///
    /// As `pause`.
    pub async fn resume(&self) -> Result<(), Error> {
        self.store.backend().set_tasks_paused(self.name.clone(), false).await
    }

    /// How many tasks there are, and what has become of all there were.
    ///
    /// # Errors
    ///
    /// The store is away.
    pub async fn stats(&self) -> Result<QueueStats, Error> {
        self.store.backend().queue_stats(self.name.clone()).await
    }
}

impl<T: DeserializeOwned> Queue<T> {
    /// The payload of a task that waits, runs or is dead: to look at what cannot be run.
    ///
    /// # Errors
    ///
    /// The store is away; [`ErrorKind::Protocol`] if the payload is of another form, or sealed with a key that this
    /// handle does not have: its source says which.
    pub async fn payload(&self, id: &TaskId) -> Result<Option<T>, Error> {
        let odd = || Error::new(ErrorKind::Protocol, "payload");
        let text = self.store.backend().task_payload(self.name.clone(), id.clone()).await?;
        let Some(text) = text else { return Ok(None) };
        let record = crate::store::TaskRecord::decode(&text).ok_or_else(odd)?;
        let payload = open_payload(&self.store, &self.name, id, &record.payload);
        let payload = payload.map_err(|why| odd().with_source(why.to_string()))?;
        serde_json::from_slice(&payload).map(Some).map_err(|error| odd().with_source(error))
    }
}
