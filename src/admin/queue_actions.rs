//! Actions on task queues.

use serde_json::Value;

use super::{
    admin_error::AdminError,
    admin_handle::{Admin, AdminAction},
    cancel_request::CancelRequest,
    job_actions::interval_of,
    permission::Permission,
};
use crate::{
    key::Key,
    queue::Queue,
    store::{TaskId, TaskState},
};

impl Admin {
    /// Stops all workers from starting tasks of a queue, like
    /// [`Queue::pause`](crate::queue::Queue::pause).
    ///
    /// # Errors
    ///
    /// See [`AdminError`].
    pub async fn pause_queue(&self, queue: impl Into<Key>, reason: &str) -> Result<(), AdminError> {
        let queue = self.task_queue(queue);
        let pause = async { Ok(queue.pause().await?) };
        self.act("pause-queue", &queue.name(), reason, pause).await
    }

    /// Lets the workers start tasks of a queue again.
    ///
    /// # Errors
    ///
    /// See [`AdminError`].
    pub async fn resume_queue(
        &self,
        queue: impl Into<Key>,
        reason: &str,
    ) -> Result<(), AdminError> {
        let queue = self.task_queue(queue);
        let resume = async { Ok(queue.resume().await?) };
        self.act("resume-queue", &queue.name(), reason, resume).await
    }

    /// Cancels a task that waits or runs, and so deletes it.
    ///
    /// A run ends as in [`cancel_job`](Self::cancel_job). If it succeeds meanwhile, its task is
    /// done, which a queue does not record: the action succeeds too.
    ///
    /// # Errors
    ///
    /// [`AdminError::NotPossible`] if it is unknown or a dead letter, or if its worker has not
    /// ended the run in time; others as in [`AdminError`].
    pub async fn cancel_task(
        &self,
        queue: impl Into<Key>,
        id: &TaskId,
        reason: &str,
    ) -> Result<(), AdminError> {
        let queue = self.task_queue(queue);
        let cancel = async {
            let mut request = CancelRequest::new(&self.store, id.as_str());
            loop {
                match queue.cancel(id).await? {
                    Some(TaskState::Running) => request.send().await?,
                    None if request.was_sent() => return Ok(()),
                    state => return ensure_waiting(state),
                }
            }
        };
        self.act("cancel-task", &target_of(&queue, id), reason, cancel).await
    }

    /// Makes a delayed task, or one that waits for a retry, due now; see
    /// [`Queue::run_now`](crate::queue::Queue::run_now).
    ///
    /// # Errors
    ///
    /// [`AdminError::NotPossible`] if it does not wait; others as in [`AdminError`].
    pub async fn run_task_now(
        &self,
        queue: impl Into<Key>,
        id: &TaskId,
        reason: &str,
    ) -> Result<(), AdminError> {
        let queue = self.task_queue(queue);
        let run = async { ensure_waiting(queue.run_now(id).await?) };
        self.act("run-task-now", &target_of(&queue, id), reason, run).await
    }

    /// Puts a dead letter at the tail of its queue, with all attempts renewed.
    ///
    /// # Errors
    ///
    /// [`AdminError::NotPossible`] if it is no dead letter; others as in [`AdminError`].
    pub async fn redrive_task(
        &self,
        queue: impl Into<Key>,
        id: &TaskId,
        reason: &str,
    ) -> Result<(), AdminError> {
        let queue = self.task_queue(queue);
        let redrive = async { ensure_dead_letter(queue.redrive(id).await?) };
        self.act("redrive-task", &target_of(&queue, id), reason, redrive).await
    }

    /// Redrives all present dead letters of a queue and returns their number. They become due at
    /// most `per_second` (1 to 1,000) a second.
    ///
    /// # Errors
    ///
    /// See [`AdminError`].
    pub async fn redrive_tasks(
        &self,
        queue: impl Into<Key>,
        per_second: u32,
        reason: &str,
    ) -> Result<u64, AdminError> {
        let queue = self.task_queue(queue);
        let redrive = async { Ok(queue.redrive_all(interval_of(per_second)?).await?) };
        self.act("redrive-tasks", &queue.name(), reason, redrive).await
    }

    /// Deletes a dead letter.
    ///
    /// # Errors
    ///
    /// [`AdminError::NotPossible`] if it is no dead letter; others as in [`AdminError`].
    pub async fn purge_task(
        &self,
        queue: impl Into<Key>,
        id: &TaskId,
        reason: &str,
    ) -> Result<(), AdminError> {
        let queue = self.task_queue(queue);
        let purge = async { ensure_dead_letter(queue.purge_dead_letter(id).await?) };
        self.act("purge-task", &target_of(&queue, id), reason, purge).await
    }

    /// Returns the payload of a task. Needs [`Permission::SeePayloads`].
    ///
    /// # Errors
    ///
    /// [`AdminError::NotPossible`] if there is no such task; others as in [`AdminError`].
    pub async fn task_payload(
        &self,
        queue: impl Into<Key>,
        id: &TaskId,
        reason: &str,
    ) -> Result<Value, AdminError> {
        let queue = self.task_queue(queue);
        let read = async {
            let payload = queue.payload(id).await?;
            payload.ok_or_else(|| not_possible("there is no such task"))
        };
        let (name, needs) = ("task-payload", Permission::SeePayloads);
        let action = AdminAction { name, needs, target: &target_of(&queue, id), reason };
        self.perform(action, read).await
    }

    fn task_queue(&self, name: impl Into<Key>) -> Queue<Value> {
        self.store.queue(name)
    }
}

fn target_of(queue: &Queue<Value>, id: &TaskId) -> String {
    format!("{}/{id}", queue.name())
}

fn ensure_waiting(state: Option<TaskState>) -> Result<(), AdminError> {
    match state {
        Some(TaskState::Waiting) => Ok(()),
        Some(TaskState::Running) => Err(not_possible("it runs")),
        Some(TaskState::Dead) => Err(not_possible("it is a dead letter")),
        None => Err(not_possible("there is no such task")),
    }
}

fn ensure_dead_letter(was_dead: bool) -> Result<(), AdminError> {
    if was_dead { Ok(()) } else { Err(not_possible("it is no dead letter")) }
}

fn not_possible(text: &str) -> AdminError {
    AdminError::NotPossible(text.to_owned())
}
