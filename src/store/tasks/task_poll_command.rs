//! `TaskPollCommand`: poll of a queue worker, which settles runs and starts others.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{TaskFault, TaskId};
use crate::{key::Key, store::backend::NodeId};

/// Run of a task, identified by its owner.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RunToken {
    pub(crate) id: TaskId,
    /// `<worker>.<poll number>`, unique among the runs of a task.
    pub(crate) owner: Arc<str>,
}

impl RunToken {
    /// Returns the member of the Redis key `zl`.
    pub(crate) fn to_member(&self) -> String {
        [self.id.as_str(), &self.owner].concat()
    }
}

impl fmt::Debug for RunToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunToken({:?})", self.id)
    }
}

/// Arguments of `TaskBackend::poll_tasks`.
#[derive(Debug, Clone)]
pub(crate) struct TaskPollCommand {
    pub(crate) queue: Key,
    pub(crate) node: NodeId,
    /// Id of the worker: 16 random hex digits.
    pub(crate) worker: Arc<str>,
    /// Number of the worker's poll. A poll that is sent again has the same number, and the same
    /// reply.
    pub(crate) poll_number: u64,
    /// Number of runs that the worker can start now.
    pub(crate) max_runs: usize,
    pub(crate) lease: Duration,
    pub(crate) limits: TaskRunLimits,
    /// Time that the worker may be idle without another poll; zero = it must not be woken.
    pub(crate) idle_timeout: Duration,
    /// The worker may be listed as idle by an earlier poll.
    pub(crate) can_stay_idle: bool,
    pub(crate) dead_letter_limits: DeadLetterLimits,
    pub(crate) settlements: Vec<TaskSettlement>,
}

/// Limits shared by all workers of a queue.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TaskRunLimits {
    /// Maximum number of concurrent runs; 0 = no limit.
    pub(crate) max_running: u64,
    /// Time between two starts, in us; 0 = no limit.
    pub(crate) start_interval_us: u64,
    /// Number of starts that may come at once.
    pub(crate) start_burst: u64,
}

/// Limits of dead letters, and the number of crashes that makes a task one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeadLetterLimits {
    pub(crate) retention: Duration,
    pub(crate) max_count: u64,
    /// Maximum bytes of their records.
    pub(crate) max_bytes: u64,
    /// Number of crashes after which a task is dead.
    pub(crate) max_crashes: u32,
}

/// End of a run.
#[derive(Debug, Clone)]
pub(crate) struct TaskSettlement {
    pub(crate) run: RunToken,
    /// Length of the record, by which the queue's bytes are counted.
    pub(crate) record_bytes: u64,
    /// Unique key to release, if it is kept as long as the task.
    pub(crate) unique_key: Option<Arc<str>>,
    pub(crate) outcome: TaskOutcome,
}

/// Outcome of a run, which decides what becomes of its task.
#[derive(Debug, Clone)]
pub(crate) enum TaskOutcome {
    Done,
    Retry {
        delay: Duration,
        fault: TaskFault,
        reason: String,
    },
    Dead {
        fault: TaskFault,
        reason: String,
    },
    /// An operator has cancelled the run. The task is deleted, like a waiting one that is
    /// cancelled.
    Cancelled,
    /// The task was not started, or is not at fault. The attempt is not charged; without a delay
    /// the task is first again.
    ReturnToQueue {
        delay: Duration,
    },
}

/// Outcome of a poll: the stored settlements, the started runs, the time of the next poll, and the
/// runs that it has taken back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TaskPollOutcome {
    /// For each settlement, true if it is stored, and false if the run had been lost.
    pub(crate) settled: Vec<bool>,
    pub(crate) started: Vec<StartedTask>,
    /// Time until the next poll; `None` = when woken.
    pub(crate) next_poll_in: Option<Duration>,
    /// The worker is listed as idle.
    pub(crate) is_listed_idle: bool,
    /// The worker is listed as idle, and no task waits, runs, or is to be deleted.
    pub(crate) is_queue_idle: bool,
    /// Runs with an ended lease whose tasks did not become dead letters: they run again, or their
    /// records have vanished.
    pub(crate) lost_runs: u32,
    /// Runs with an ended lease whose tasks have become dead letters.
    pub(crate) dead_runs: u32,
}

/// Run that has started.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StartedTask {
    pub(crate) id: TaskId,
    /// Counts from 1.
    pub(crate) attempt: u32,
    pub(crate) record: Bytes,
}

impl fmt::Debug for StartedTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The record is user data and is not printed.
        f.debug_tuple("StartedTask").field(&self.id).field(&self.attempt).finish()
    }
}
