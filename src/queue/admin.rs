//! Administration of a queue: inspect tasks, cancel, redrive, purge, pause.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, SystemTime},
};

use serde::{Serialize, Serializer, de::DeserializeOwned};

use super::{queue_handle::Queue, sealed_payload::open_payload, task::system_time};
use crate::{
    durations::MAX_DURATION,
    error::{Error, ErrorKind, ParseCursorError},
    json_time::{duration_ms, time_ms},
    store::{MAX_TASKS_PER_STEP, QueueStats, TaskFault, TaskId, TaskState, TaskView},
};

/// State of a task, without its payload. Its JSON form has times in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TaskInfo {
    /// Identifier, as returned by the push.
    pub id: TaskId,
    /// Current state.
    pub state: TaskState,
    /// Time until the task is due; zero if it is due or not waiting.
    #[serde(rename = "due_in_ms", serialize_with = "duration_ms")]
    pub due_in: Duration,
    /// Time of the push, by the store's clock.
    #[serde(rename = "pushed_ms", serialize_with = "time_ms")]
    pub pushed_at: SystemTime,
    /// Length of the payload in bytes.
    pub bytes: u64,
    /// Failed attempts since the task was last redriven.
    pub attempts: u32,
    /// The crashes among them.
    pub crashes: u32,
    /// The last failed attempts, at most 8, the latest at the end; for a dead letter, that is the
    /// cause.
    pub history: Vec<TaskAttempt>,
}

/// A failed attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TaskAttempt {
    /// Time of the failure, by the store's clock.
    #[serde(rename = "at_ms", serialize_with = "time_ms")]
    pub at: SystemTime,
    /// Kind of the failure.
    pub fault: TaskFault,
    /// The handler's error, or a description of the failure.
    pub reason: String,
}

/// Page of dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TaskPage {
    /// The dead letters, oldest first.
    pub tasks: Vec<TaskInfo>,
    /// Start of the next page; `None` on the last page.
    pub next: Option<DeadLetterCursor>,
}

/// Position between two pages of dead letters; its text form can be part of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadLetterCursor(u64);

impl fmt::Display for DeadLetterCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for DeadLetterCursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
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
        let failures = view.history.failures.into_iter().map(|failure| TaskAttempt {
            at: system_time(failure.at_us),
            fault: failure.fault,
            reason: failure.reason,
        });
        Self {
            id: view.id,
            state: view.state,
            due_in: view.due_in,
            pushed_at: system_time(view.pushed_us),
            bytes: view.payload_bytes,
            attempts: view.history.attempts,
            crashes: view.history.crashes,
            history: failures.collect(),
        }
    }
}

/// Each operation is one call, or one call for every hundred tasks or 4 MiB of tasks. An operation
/// that changes something is not retried once it may have run: after a timeout, or after its future
/// was dropped, check the result.
impl<T> Queue<T> {
    /// Returns the state of a task; `None` if it is done, cancelled, purged or unknown.
    ///
    /// # Errors
    ///
    /// The store is unavailable.
    pub async fn get(&self, id: &TaskId) -> Result<Option<TaskInfo>, Error> {
        let view = self.store.backend().task_view(self.name.clone(), id.clone()).await?;
        Ok(view.map(Into::into))
    }

    /// Cancels a waiting task. Returns its previous state: a [running](TaskState::Running) or
    /// [dead](TaskState::Dead) task stays as it is. `None` as in [`get`](Self::get). See also
    /// [`Admin::cancel_task`](crate::admin::Admin::cancel_task), which ends a run.
    ///
    /// # Errors
    ///
    /// The store is unavailable. After a timeout, the task may have been cancelled.
    pub async fn cancel(&self, id: &TaskId) -> Result<Option<TaskState>, Error> {
        self.store.backend().cancel_task(self.name.clone(), id.clone()).await
    }

    /// Makes a delayed task, or one that waits for a retry, due now, behind the tasks that are due.
    /// Returns its state: one that does not [wait](TaskState::Waiting) stays as it is. `None` as in
    /// [`get`](Self::get).
    ///
    /// # Errors
    ///
    /// The store is unavailable. After a timeout, the task may be due.
    pub async fn run_now(&self, id: &TaskId) -> Result<Option<TaskState>, Error> {
        self.store.backend().run_task_now(self.name.clone(), id.clone()).await
    }

    /// Lists dead letters, oldest first: at most `max_tasks` (1 to 100) after the cursor, or from
    /// the beginning. A page has at most 4 MiB of tasks, but at least one task, so it may have
    /// fewer than `max_tasks`; the last page has no [`next`](TaskPage::next).
    ///
    /// # Errors
    ///
    /// The store is unavailable.
    pub async fn dead_letters(
        &self,
        after: Option<DeadLetterCursor>,
        max_tasks: usize,
    ) -> Result<TaskPage, Error> {
        let after = after.map_or(0, |cursor| cursor.0);
        let count = max_tasks.clamp(1, MAX_TASKS_PER_STEP);
        let page = self.store.backend().list_dead_letters(self.name.clone(), after, count).await?;
        let tasks = page.dead_letters.into_iter().map(Into::into).collect();
        Ok(TaskPage { tasks, next: page.next.map(DeadLetterCursor) })
    }

    /// Puts a dead letter at the tail of the queue, with a full number of attempts; its history
    /// stays. Returns false if the task is not a dead letter.
    ///
    /// The task gets its [unique key](super::PushRequest::unique) back, unless another task has
    /// that key by now; then it waits without one. Once the other task has ended, a further task
    /// may be stored under the key beside this one.
    ///
    /// # Errors
    ///
    /// The store is unavailable. After a timeout, the task may have been redriven.
    pub async fn redrive(&self, id: &TaskId) -> Result<bool, Error> {
        self.store.backend().redrive_dead_letter(self.name.clone(), id.clone()).await
    }

    /// Redrives all current dead letters, oldest first, like [`redrive`](Self::redrive), and
    /// returns their number. Each becomes due `spacing` later than the one before it, so that the
    /// cause of their failure does not meet all of them at once.
    ///
    /// # Errors
    ///
    /// The store is unavailable. Some may have been redriven.
    pub async fn redrive_all(&self, spacing: Duration) -> Result<u64, Error> {
        let (backend, mut redriven) = (self.store.backend(), 0);
        let dead_letters = self.stats().await?.dead_letters;
        let spacing = spacing.min(MAX_DURATION);
        while redriven < dead_letters {
            let count = usize::try_from(dead_letters - redriven)
                .unwrap_or(MAX_TASKS_PER_STEP)
                .min(MAX_TASKS_PER_STEP);
            let first_delay = spacing.saturating_mul(u32::try_from(redriven).unwrap_or(u32::MAX));
            let first_delay = first_delay.min(MAX_DURATION);
            let name = self.name.clone();
            let moved = backend.redrive_dead_letters(name, count, first_delay, spacing).await?;
            if moved == 0 {
                break;
            }
            redriven += moved as u64;
        }
        Ok(redriven)
    }

    /// Purges all waiting tasks, delayed tasks and retries included, and returns their number.
    /// Running tasks go on; dead letters and tasks pushed after the start of the call stay. A task
    /// that returns to the queue during the call (a retry, a redriven letter) may be purged too.
    ///
    /// # Errors
    ///
    /// The store is unavailable. Some may have been purged.
    pub async fn purge_waiting(&self) -> Result<u64, Error> {
        let (mut purged, mut cursor) = (0, None);
        loop {
            let name = self.name.clone();
            let page = self.store.backend().purge_waiting(name, cursor, MAX_TASKS_PER_STEP).await?;
            purged += page.purged as u64;
            cursor = page.next;
            if cursor.is_none() {
                return Ok(purged);
            }
        }
    }

    /// Purges a dead letter; returns false if the task is not one. It is
    /// [counted](QueueStats::trimmed).
    ///
    /// # Errors
    ///
    /// The store is unavailable. After a timeout, it may have been purged.
    pub async fn purge_dead_letter(&self, id: &TaskId) -> Result<bool, Error> {
        self.store.backend().purge_dead_letter(self.name.clone(), id.clone()).await
    }

    /// Purges all current dead letters and returns their number.
    ///
    /// # Errors
    ///
    /// The store is unavailable. Some may have been purged.
    pub async fn purge_dead_letters(&self) -> Result<u64, Error> {
        // Bounded by the number at the start: tasks may die all the time.
        let (dead_letters, mut purged) = (self.stats().await?.dead_letters, 0);
        while purged < dead_letters {
            let count = self.store.backend().purge_dead_letters(self.name.clone()).await?;
            if count == 0 {
                break;
            }
            purged += count as u64;
        }
        Ok(purged)
    }

    /// Pauses the queue: no worker starts a task until it is [resumed](Self::resume). Running tasks
    /// go on.
    ///
    /// # Errors
    ///
    /// The store is unavailable. After a timeout, the queue may be paused; a repeated call is
    /// harmless.
    pub async fn pause(&self) -> Result<(), Error> {
        self.store.backend().set_tasks_paused(self.name.clone(), true).await
    }

    /// Ends a [pause](Self::pause), and wakes a worker.
    ///
    /// # Errors
    ///
    /// As for `pause`.
    pub async fn resume(&self) -> Result<(), Error> {
        self.store.backend().set_tasks_paused(self.name.clone(), false).await
    }

    /// Returns the number of tasks in each state, and counts of all past tasks.
    ///
    /// # Errors
    ///
    /// The store is unavailable.
    pub async fn stats(&self) -> Result<QueueStats, Error> {
        self.store.backend().queue_stats(self.name.clone()).await
    }
}

impl<T: DeserializeOwned> Queue<T> {
    /// Returns the payload of a task that waits, runs or is dead, to inspect one that can't run.
    ///
    /// # Errors
    ///
    /// The store is unavailable; [`ErrorKind::Protocol`] if the payload does not decode, or is
    /// sealed with a key that this handle does not have: the error's source tells which.
    pub async fn payload(&self, id: &TaskId) -> Result<Option<T>, Error> {
        let unreadable = || Error::new(ErrorKind::Protocol, "payload");
        let record = self.store.backend().task_payload(self.name.clone(), id.clone()).await?;
        let Some(record) = record else { return Ok(None) };
        let record = crate::store::TaskRecord::decode(&record).ok_or_else(unreadable)?;
        let payload = open_payload(&self.store, &self.name, id, &record.payload);
        let payload = payload.map_err(|error| unreadable().with_source(error.to_string()))?;
        serde_json::from_slice(&payload).map(Some).map_err(|error| unreadable().with_source(error))
    }
}
