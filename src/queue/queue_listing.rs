//! [`QueueInfo`] and [`TaskListing`]: the queues of a store, and their tasks that wait or run.

use std::{fmt, str::FromStr, time::Duration};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde::{Serialize, Serializer};

use super::{admin::TaskInfo, queue_handle::Queue};
use crate::{
    error::{Error, ParseCursorError},
    json_time::optional_duration_ms,
    key::Key,
    store::{MAX_TASKS_PER_STEP, QueueStats, Store, TaskFilter},
};

/// Most concurrent calls in an operation on all queues.
const MAX_CONCURRENT_CALLS: usize = 8;

/// A task queue of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueueInfo {
    /// Name of the queue, as in [`Queue::name`].
    pub name: String,
    /// Counts of its tasks.
    #[serde(flatten)]
    pub stats: QueueStats,
    /// Time for which its oldest due task has been due; `None` if no task is due.
    #[serde(rename = "oldest_due_ms", serialize_with = "optional_duration_ms")]
    pub oldest_due: Option<Duration>,
}

/// Page of tasks that wait or run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TaskListing {
    /// The tasks, in the order of their [filter](TaskFilter).
    pub tasks: Vec<TaskInfo>,
    /// Start of the next page; `None` on the last page.
    pub next: Option<TaskCursor>,
}

/// Position in a listing of tasks; its text form can be part of a URL. The default is the
/// beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TaskCursor(u64);

impl fmt::Display for TaskCursor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl FromStr for TaskCursor {
    type Err = ParseCursorError;

    fn from_str(text: &str) -> Result<Self, ParseCursorError> {
        text.parse().map(Self).map_err(|_| ParseCursorError)
    }
}

impl Serialize for TaskCursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Store {
    /// Lists the task queues that processes have used, by name, with their counts. At most 1,000,
    /// those that were used first by a process last.
    ///
    /// Queues are read one after the other, so their counts are of slightly different times. A
    /// queue that no process has used since the store lost its data is not listed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = lockgate::Store::memory();
    /// store.queue::<String>("emails").push(&"ada@example.org".to_owned()).await?;
    /// let queues = store.queues().await?;
    /// assert_eq!((queues[0].name.as_str(), queues[0].stats.due), ("emails", 1));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store is unavailable.
    pub async fn queues(&self) -> Result<Vec<QueueInfo>, Error> {
        let names = self.backend().list_queues().await?;
        let read_queue = |name: Key| async move {
            let backend = self.backend();
            let stats = backend.queue_stats(name.clone()).await?;
            let first = backend.list_tasks(name.clone(), TaskFilter::Due, 0, 1).await?;
            Ok(QueueInfo {
                name: name.operator_name().into_owned(),
                stats,
                oldest_due: (!first.tasks.is_empty()).then_some(first.oldest_due),
            })
        };
        let queues = stream::iter(names).map(read_queue).buffer_unordered(MAX_CONCURRENT_CALLS);
        let mut queues: Vec<QueueInfo> = queues.try_collect::<Vec<_>>().await?;
        queues.sort_unstable_by(|left, right| left.name.cmp(&right.name));
        Ok(queues)
    }
}

impl<T> Queue<T> {
    /// Lists tasks that wait or run: at most `max_tasks` (1 to 100) from the cursor on. A page has
    /// at most 4 MiB of tasks, but at least one.
    ///
    /// A position is a number of tasks, so a task that starts or ends between two pages shifts the
    /// others: one of them may be missing or listed twice.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lockgate::queue::{Queue, TaskCursor, TaskFilter};
    ///
    /// let emails: Queue<String> = lockgate::Store::memory().queue("emails");
    /// emails.push(&"ada@example.org".to_owned()).await?;
    /// let page = emails.tasks(TaskFilter::Due, TaskCursor::default(), 10).await?;
    /// assert_eq!(page.tasks.len(), 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store is unavailable.
    pub async fn tasks(
        &self,
        filter: TaskFilter,
        from: TaskCursor,
        max_tasks: usize,
    ) -> Result<TaskListing, Error> {
        let max_tasks = max_tasks.clamp(1, MAX_TASKS_PER_STEP);
        let backend = self.store.backend();
        let page = backend.list_tasks(self.name.clone(), filter, from.0, max_tasks).await?;
        Ok(TaskListing {
            tasks: page.tasks.into_iter().map(Into::into).collect(),
            next: page.next.map(TaskCursor),
        })
    }
}
