//! A worker's turn: the runs that it ends and those that it starts.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{TaskFault, TaskId};
use crate::{key::Key, store::backend::NodeId};

/// One run of a task: who owns it while it runs.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RunToken {
    pub(crate) id: TaskId,
    /// `<worker>.<turn>`: no two runs of a task have the same.
    pub(crate) owner: Arc<str>,
}

impl RunToken {
    /// The member of `zl`.
    pub(crate) fn to_member(&self) -> String {
        [self.id.as_str(), &self.owner].concat()
    }
}

impl fmt::Debug for RunToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunToken({:?})", self.id)
    }
}

/// `tasks_turn.lua`.
#[derive(Debug, Clone)]
pub(crate) struct TaskPollCommand {
    pub(crate) queue: Key,
    pub(crate) node: NodeId,
    /// The worker: random, 16 hex digits.
    pub(crate) worker: Arc<str>,
    /// Counts the worker's turns. One that is sent again has the same number, and the same answer.
    pub(crate) poll_number: u64,
    /// Runs that it would start at once.
    pub(crate) max_runs: usize,
    pub(crate) lease: Duration,
    pub(crate) limits: TaskRunLimits,
    /// How long it may be idle without another turn; zero: it is not to be woken.
    pub(crate) idle_timeout: Duration,
    /// It may stand among the idle ones.
    pub(crate) can_stay_idle: bool,
    pub(crate) dead_letter_limits: DeadLetterLimits,
    pub(crate) settlements: Vec<TaskSettlement>,
}

/// What binds all workers of a queue together.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TaskRunLimits {
    /// Runs at once; 0 = any number.
    pub(crate) max_running: u64,
    /// Between two starts, in us; 0 = no limit.
    pub(crate) start_interval_us: u64,
    /// Starts that may come at once.
    pub(crate) start_burst: u64,
}

/// What becomes of dead letters, and when a task is one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeadLetterLimits {
    pub(crate) retention: Duration,
    pub(crate) max_count: u64,
    /// Most bytes of their records.
    pub(crate) max_bytes: u64,
    /// Crashes after which a task is dead.
    pub(crate) max_crashes: u32,
}

/// How a run ended.
#[derive(Debug, Clone)]
pub(crate) struct TaskSettlement {
    pub(crate) run: RunToken,
    /// Length of the record, which the queue's bytes are counted by.
    pub(crate) record_bytes: u64,
    /// The unique key to be given up, if it is kept as long as the task.
    pub(crate) unique_key: Option<Arc<str>>,
    pub(crate) outcome: TaskOutcome,
}

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
    /// Not started, or not to be blamed: no attempt is charged, and it is first again.
    ReturnToQueue {
        delay: Duration,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TaskPollOutcome {
    /// Whether each end stands; if not, the run had been lost.
    pub(crate) settled: Vec<bool>,
    pub(crate) started: Vec<StartedTask>,
    /// When to look again; `None` = when told.
    pub(crate) next_poll_in: Option<Duration>,
    /// It stands among the idle ones now.
    pub(crate) is_listed_idle: bool,
    /// And nothing waits, runs, or is to be thrown away.
    pub(crate) is_queue_idle: bool,
}

/// A run that has begun.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StartedTask {
    pub(crate) id: TaskId,
    /// From 1.
    pub(crate) attempt: u32,
    pub(crate) record: Bytes,
}

impl fmt::Debug for StartedTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The record is the user's.
        f.debug_tuple("StartedTask").field(&self.id).field(&self.attempt).finish()
    }
}
