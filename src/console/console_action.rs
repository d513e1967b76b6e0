//! [`ConsoleAction`]: an action as the page sends it.

use serde::Deserialize;

/// Action with its arguments. Unknown actions and arguments are refused.
#[derive(Debug, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum ConsoleAction {
    PauseJobs { reason: String },
    ResumeJobs { reason: String },
    CancelJob { id: String, reason: String },
    RedriveJob { id: String, reason: String },
    RedriveDeadJobs { per_second: u32, reason: String },
    PurgeJob { id: String, reason: String },
    PauseQueue { queue: String, reason: String },
    ResumeQueue { queue: String, reason: String },
    CancelTask { queue: String, id: String, reason: String },
    RedriveTask { queue: String, id: String, reason: String },
    RedriveTasks { queue: String, per_second: u32, reason: String },
    PurgeTask { queue: String, id: String, reason: String },
    Repair { reason: String },
}
