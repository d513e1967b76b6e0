//! [`ConsoleAction`]: an action as the page sends it, or a look that is recorded or costly.

use serde::Deserialize;

use crate::rate_limit::PolicyChange;

/// Action with its arguments. Unknown actions and arguments are refused.
#[derive(Debug, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum ConsoleAction {
    ForceRelease { lock: String, reason: String },
    SetPolicy { policy: String, change: PolicyChange, reason: String },
    ClearPolicy { policy: String, reason: String },
    ClearBlocks { policy: String, reason: String },
    ResetLimit { policy: String, subject: String, reason: String },
    Block { policy: String, subject: String, seconds: u64, reason: String },
    Unblock { policy: String, subject: String, reason: String },
    PauseJobs { reason: String },
    ResumeJobs { reason: String },
    CancelJob { id: String, reason: String },
    RunJobNow { id: String, reason: String },
    RedriveJob { id: String, reason: String },
    RedriveDeadJobs { per_second: u32, reason: String },
    PurgeDeadJobs { older_than_seconds: u64, reason: String },
    PurgeJob { id: String, reason: String },
    JobPayload { id: String },
    PauseQueue { queue: String, reason: String },
    ResumeQueue { queue: String, reason: String },
    CancelTask { queue: String, id: String, reason: String },
    RunTaskNow { queue: String, id: String, reason: String },
    RedriveTask { queue: String, id: String, reason: String },
    RedriveTasks { queue: String, per_second: u32, reason: String },
    PurgeTask { queue: String, id: String, reason: String },
    TaskPayload { queue: String, id: String },
    DrainProcess { node: String, reason: String },
    ResumeProcess { node: String, reason: String },
    Check {},
    Repair { reason: String },
}
