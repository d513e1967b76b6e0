//! Plan of a lock worker process.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lock_contender::ContenderConfig;

/// Distribution of keys over tasks.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum LockKeys {
    /// One key for all tasks of all processes.
    Hot,
    /// This many keys per task, used in turn by that task alone.
    Own(u32),
}

/// Load of one comparison, the same for all contenders.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct LockScenario {
    pub(crate) processes: u32,
    pub(crate) tasks_per_process: u32,
    pub(crate) keys: LockKeys,
    /// Iterations of the [work](crate::simulated_work) under the lock.
    pub(crate) work_iterations: u64,
}

/// Argument of the mode `worker`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WorkerPlan {
    pub(crate) contender: ContenderConfig,
    pub(crate) scenario: LockScenario,
    /// Index among the processes of the scenario.
    pub(crate) process_index: u32,
    pub(crate) redis_port: u16,
    pub(crate) window: Duration,
}
